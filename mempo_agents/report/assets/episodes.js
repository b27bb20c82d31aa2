// Which episode and step are shown: the list, its filters, the address, the keys.

const view = {episode: null, step: 0, record: null, grade: null};
let allLines = null, allGrades = null;
const records = new Map();
const stepHooks = [];  // functions that redraw a panel for view.record and view.step

const unfold = (parts) => parts.map((p) => typeof p === "number" ? allLines[p] : p).join("\n");

async function load(i) {
  allLines ||= await part("report-lines", "lines");
  allGrades ||= await part("report-grades", "grades");
  if (!records.has(i)) {
    if (!LIVE && !BLOCKS[i]) { records.set(i, null); return null; }
    const record = LIVE ? await part("", `episode/${i}`) : await unpack(bytesOf(BLOCKS[i]));
    for (const step of record.steps) step.observation = unfold(step.observation);
    // A message is [role, lines] or [role, step, "response" | "observation"].
    record.messages = record.messages.map((m) => {
      if (m.length === 2) return {role: m[0], content: unfold(m[1])};
      const step = record.steps[m[1]];
      return {role: m[0], content: m[2] === "observation" ? step.observation : kept(step)};
    });
    records.set(i, record);
  }
  return records.get(i);
}

// The part of what was sampled that stayed in context.
const kept = (step) => step.kept === null ? step.text : step.text.slice(0, step.kept);

async function open_(i, step = 0, section = null) {
  if (i === null || !EPISODES[i]) return;
  const record = await load(i);
  view.episode = i;
  view.record = record;
  view.grade = (allGrades && allGrades[i]) || null;
  view.step = record ? Math.max(0, Math.min(step, record.steps.length - 1)) : 0;
  writeAddress();
  drawList();
  drawStepper();
  for (const hook of stepHooks) hook();
  if (section) document.getElementById(section).scrollIntoView();
}

function goTo(step) {
  if (!view.record || step < 0 || step >= view.record.steps.length) return;
  view.step = step;
  writeAddress();
  drawStepper();
  for (const hook of stepHooks) hook();
}

function address() {
  const row = EPISODES[view.episode];
  const entries = {task: row.task, trajectory: row.trajectory, step: view.step + 1};
  if (REPORT.several_runs) entries.run = row.run;
  return "#" + new URLSearchParams(entries);
}

let quiet = true;  // the address is left alone until the reader moves
function writeAddress() { if (!quiet && view.episode !== null) history.replaceState(null, "", address()); }

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (!wanted.has("task")) return false;
  const i = EPISODES.findIndex((row) => row.task === wanted.get("task")
    && (!wanted.has("trajectory") || row.trajectory === wanted.get("trajectory"))
    && (!wanted.has("run") || row.run === wanted.get("run")));
  if (i < 0) { trouble(new Error(`The address names an episode that is not on this page: ${location.hash.slice(1)}`)); return true; }
  open_(i, (Number(wanted.get("step")) || 1) - 1, "step").catch(trouble);
  return true;
}

const OUTCOMES = {
  all: ["any ending", () => true],
  right: ["all right", (row) => row.em === 1],
  wrong: ["something wrong", (row) => row.em !== null && row.em < 1],
  invalid: ["with invalid steps", (row) => row.invalid > 0],
  lost: ["lost an answer", (row) => row.lost > 0],
  cut: ["cut off", (row) => row.stop_reason === "max_steps" || row.stop_reason === "context_length"],
  failed: ["failed", (row) => row.stop_reason === "failed"],
  graded: ["memories graded", (row) => row.graded],
};
const filter = {run: "", policy: "", objectives: "", outcome: "all", text: ""};
const PAGE = 100;
let shown = PAGE;

const unique = (name) => [...new Set(EPISODES.map((row) => row[name]))];
const policyName = (policy) => REPORT.names[policy] || policy;

function matching() {
  const needle = filter.text.toLowerCase();
  return EPISODES.map((row, i) => i).filter((i) => {
    const row = EPISODES[i];
    return (!filter.run || row.run === filter.run) && (!filter.policy || row.policy === filter.policy)
      && (!filter.objectives || String(row.objectives) === filter.objectives) && OUTCOMES[filter.outcome][1](row)
      && (!needle || row.task.toLowerCase().includes(needle));
  });
}

function drawFilters() {
  const place = document.getElementById("filters");
  const select = (name, title, options) => {
    const node = el("select", {"data-filter": name}, options.map(([value, text]) => el("option", {value}, text)));
    node.addEventListener("change", () => { filter[name] = node.value; shown = PAGE; drawList(); });
    return el("label", {}, title, node);
  };
  const any = ["", "any"];
  if (REPORT.several_runs) place.append(select("run", "run", [any, ...unique("run").map((r) => [r, r])]));
  place.append(
    select("policy", "policy", [any, ...unique("policy").map((p) => [p, policyName(p)])]),
    select("objectives", "objectives", [any, ...unique("objectives").sort((a, b) => a - b).map((k) => [k, String(k)])]),
    select("outcome", "ending", Object.entries(OUTCOMES).map(([value, [text]]) => [value, text])));
  const search = el("input", {type: "search", size: "18", placeholder: "part of its name"});
  search.addEventListener("input", () => { filter.text = search.value; shown = PAGE; drawList(); });
  place.append(el("label", {}, "task", search));
}

function drawList() {
  const rows = matching(), place = document.getElementById("episode-list");
  const at = rows.indexOf(view.episode);
  if (at >= shown) shown = Math.ceil((at + 1) / PAGE) * PAGE;
  const columns = [["task"], ["policy"], ["sample", 1], ["objectives", 1], ["F1", 1], ["reward", 1], ["A_T", 1], ["steps", 1], ["tokens", 1], ["ended"]];
  const head = el("thead", {}, el("tr", {}, columns.map(([title, n]) => el(n ? "th.n" : "th", {scope: "col"}, title))));
  const body = el("tbody", {}, rows.slice(0, shown).map((i) => {
    const row = EPISODES[i], link = el("a", {href: "#"}, row.task);
    link.addEventListener("click", (event) => event.preventDefault());
    const cells = [link, policyName(row.policy) + (REPORT.several_runs ? ` (${row.run})` : ""), row.trajectory.split("/").pop(), number(row.objectives),
      number(row.f1, 2), number(row.reward, 2), signed(row.advantage, 2), number(row.steps), number(row.total_tokens), row.stop_reason.replace("_", " ")];
    return el(i === view.episode ? "tr.here" : "tr", {"data-row": i, onclick: () => { quiet = false; open_(i, 0).catch(trouble); }},
      cells.map((cell, c) => el(columns[c][1] ? "td.n" : "td", {}, cell)));
  }));
  const top = place.scrollTop;
  place.replaceChildren(el("table", {}, head, body));
  place.scrollTop = top;
  if (rows.length > shown) {
    place.append(el("button.quiet", {type: "button", onclick: () => { shown += PAGE; drawList(); }},
      `Show ${number(Math.min(PAGE, rows.length - shown))} more of ${number(rows.length)}`));
  }
  document.getElementById("episode-count").textContent = `${plural(rows.length, "episode")} of ${number(EPISODES.length)} match.`;
}

function drawStepper() {
  const bar = document.getElementById("stepper"), row = EPISODES[view.episode];
  bar.hidden = false;
  const who = el("div.who", {}, el("b", {}, policyName(row.policy)), ` on ${row.task}, sample ${row.trajectory.split("/").pop()}`
    + (REPORT.several_runs ? `, run ${row.run}` : "") + `: F1 ${number(row.f1, 2)}, reward ${number(row.reward, 2)}, ended: ${row.stop_reason.replace("_", " ")}`);
  if (!view.record) {
    bar.replaceChildren(who, el("p.missing", {}, "This episode's text is not in this file, only its figures. ",
      "Make the page with more --trajectories, or look at it with mempo report --serve."));
    return;
  }
  const steps = view.record.steps;
  if (!steps.length) { bar.replaceChildren(who, el("p.missing", {}, "This episode ended before its first step.")); return; }
  const lost = new Set(view.record.lost.map((pair) => pair[1]));
  const chips = el("div.chips", {role: "group", "aria-label": "Steps"}, steps.map((step, s) => el(step.invalid || lost.has(s) ? "button.bad" : "button", {
    type: "button", "aria-current": s === view.step ? "step" : null, onclick: () => { quiet = false; goTo(s); },
    title: `step ${s + 1}: ${step.invalid ? "invalid action" : step.action}${lost.has(s) ? "; an answer was lost" : ""}`,
  }, String(s + 1))));
  const move = (text, title, by) => el("button", {type: "button", title, "aria-label": title, disabled: !steps[view.step + by],
    onclick: () => { quiet = false; goTo(view.step + by); }}, text);
  bar.replaceChildren(who, el("div.bar", {}, move("\u25c0", "one step back (k)", -1), chips, move("\u25b6", "one step on (j)", 1)));
  const current = chips.querySelector("[aria-current]");
  if (current) chips.scrollLeft = current.offsetLeft - chips.clientWidth / 2;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea") || view.episode === null) return;
  const scrolls = event.target.closest(".scroll, .text, .chips");
  const by = event.key === "j" || (event.key === "ArrowRight" && !scrolls) ? 1 : event.key === "k" || (event.key === "ArrowLeft" && !scrolls) ? -1 : 0;
  const hop = event.key === "]" ? 1 : event.key === "[" ? -1 : 0;
  if (!by && !hop) return;
  event.preventDefault();
  quiet = false;
  if (by) goTo(view.step + by);
  else {
    const rows = matching(), next = rows[rows.indexOf(view.episode) + hop];
    if (next !== undefined) open_(next, 0).catch(trouble);
  }
}

// The episode to begin with: a graded one, or one that shows a memory at work.
function firstEpisode() {
  const score = (row) => (row.graded ? 8 : 0) + (row.policy === "mempo" ? 4 : 0) + (row.lost ? 2 : 0) + (row.advantage ? 1 : 0) + Math.min(row.objectives, 4) / 10;
  let best = 0;
  EPISODES.forEach((row, i) => { if ((LIVE || BLOCKS[i]) && score(row) > score(EPISODES[best])) best = i; });
  return best;
}
