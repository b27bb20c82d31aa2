// The panels of sections 3 to 7, drawn for the chosen episode and step.

const PARTS = [["memory", "memory", "@2"], ["think", "thought", "@4"], ["call", "call", "@5"], ["answer", "answer", "@1"],
  ["other", "outside the format", "@6"], ["result", "result", "@3"]];
const stepNow = () => view.record && view.record.steps[view.step];
const facts = (...items) => el("ul.facts", {}, items.filter(Boolean).map((item) => el("li", {}, item)));
const markOf = (s) => ({type: "rect", layer: "below", yref: "paper", x0: s + 0.5, x1: s + 1.5, y0: 0, y1: 1, line: {width: 0}, fillcolor: "@ink/0.07"});
const label = (text) => el("p.label", {}, text);

// --- 3: one step, taken apart -----------------------------------------------------------------------------------------

function stepPanel(place) {
  const plot = el("div.plot", {role: "img", style: "height: 300px"}), rest = el("div", {});
  plot.onStep = (s) => { quiet = false; goTo(s); };
  place.append(el("figure", {style: "margin: 0"}, el("figcaption", {}, "Tokens of each step of this episode, by part"), plot), rest);
  return () => {
    const step = stepNow(), steps = view.record ? view.record.steps : [];
    plot.hidden = !steps.length;
    rest.replaceChildren();
    if (!step) return;
    const x = steps.map((_, s) => s + 1);
    const traces = PARTS.map(([key, name, c]) => ({type: "bar", name, x, y: steps.map((s) => s.parts[key]),
      marker: {color: c},
      hovertemplate: `<b>${name}</b>, step %{x}<br>%{y:,} tokens<extra></extra>`})).filter((trace) => trace.y.some(Boolean));
    plot.setAttribute("aria-label", `Bars of the tokens of ${plural(steps.length, "step")}, stacked by part. Step ${view.step + 1}: `
      + PARTS.map(([key, name]) => `${name} ${step.parts[key]}`).join(", ") + " tokens.");
    draw(plot, {data: traces, layout: {barmode: "stack", shapes: [markOf(view.step)], xaxis: {title: {text: "step"}, dtick: steps.length > 20 ? 5 : 1}, yaxis: {title: {text: "tokens"}}}}).catch(trouble);
    const gone = step.history_tokens === null ? null : step.history_tokens - step.prompt_tokens;
    rest.append(
      el("h3", {}, `Step ${view.step + 1} of ${steps.length}: ${step.invalid ? `no valid action (${step.invalid.replace("_", " ")})` : step.action}`),
      facts(`Prompt: ${plural(step.prompt_tokens, "token")}`,
        gone === null ? "The whole history was not counted" : `With the whole history: ${plural(step.history_tokens, "token")}`,
        gone === null ? null : gone > 0 ? `Thrown away: ${plural(gone, "token")} (${number(100 * gone / step.history_tokens)}%)` : "Nothing was thrown away",
        `Written: ${plural(step.pieces.length, "token")}`, `Came back: ${plural(step.observation_tokens, "token")}`,
        step.format_valid ? "Well-formed" : "Not well-formed", `Sampling ended: ${step.finish_reason}`, step.seconds ? `${number(step.seconds, 3)} s` : null));
    for (const name of ["memory", "think", "call", "answer"]) {
      if (step.spans[name]) rest.append(label(`${PARTS.find((p) => p[0] === name)[1]}: ${plural(step.parts[name], "token")}`), textBox(spanText(step, name)));
    }
    if (!Object.keys(step.spans).length) rest.append(label("written"), textBox(step.text));
    rest.append(label(`result: ${plural(step.observation_tokens, "token")}${step.hits.length ? `, ${plural(step.hits.length, "passage")}` : ""}`),
      textBox(step.observation || "(nothing: the episode ended here)", "div.text.outside"));
    const seen = el("details.fold", {}, el("summary", {}, `What the policy saw at this step: ${plural(step.messages.length, "message")}, ${plural(step.prompt_tokens, "token")}`));
    seen.addEventListener("toggle", () => {
      if (seen.open && seen.childElementCount === 1) seen.append(...step.messages.map((n) => view.record.messages[n]).flatMap((m) => [label(m.role), textBox(m.content)]));
    });
    rest.append(seen, folded("Table: the steps of this episode", tableOf(
      [["step", 1], ["action"], ["prompt (tokens)", 1], ["whole history (tokens)", 1], ["prompt / history", 1], ...PARTS.map(([, name]) => [`${name} (tokens)`, 1])],
      steps.map((s, n) => [number(n + 1), s.invalid || s.action, number(s.prompt_tokens), number(s.history_tokens),
        s.history_tokens ? number(s.prompt_tokens / s.history_tokens, 3) : UNKNOWN, ...PARTS.map(([key]) => number(s.parts[key]))]), view.step)),
      questionsOf(), el("button.quiet", {type: "button", onclick: saveEpisode}, "Save this episode (JSON)"));
  };
}

// Offsets of the tokens' text: token t stands in [starts[t], starts[t + 1]).
function starts(step) {
  const at = [0];
  for (const length of step.pieces) at.push(at[at.length - 1] + length);
  return at;
}

function spanText(step, name) {
  const at = starts(step), [from, to] = step.spans[name];
  return step.text.slice(at[from], at[to]).replace(/^\n+|\n+$/g, "");  // line breaks between the parts are only layout
}

function questionsOf() {
  const r = view.record;
  return folded(`Questions and answers (${r.questions.length})`, tableOf([["", 1], ["question"], ["right answer"], ["F1", 1], ["EM", 1]],
    r.questions.map((q, k) => [number(k + 1), q, r.answers[k].join(" / "), number(r.f1[k], 2), number(r.em[k], 2)])),
    el("p.note", {}, r.answer === null ? "It gave no answer." : `It answered: ${r.answer}`));
}

function saveEpisode() {
  const row = EPISODES[view.episode];
  save("episode.json", "application/json", JSON.stringify({...row, ...view.record, grade: view.grade}, null, 1));
}

// --- 4: a group -------------------------------------------------------------------------------------------------------

function groupPanel(place) {
  const groups = REPORT.sections.group.groups;
  const select = el("select", {"aria-label": "Group"}, groups.map((g, i) => el("option", {value: i},
    `${g.task}, ${policyName(g.policy)}${REPORT.several_runs ? `, ${g.run}` : ""} (${g.episodes.length})`)));
  const body = el("div", {});
  place.append(el("label.choice", {}, "Task and policy ", select), body);
  const show = () => {
    const g = groups[Number(select.value)], known = g.rewards.filter((r) => r !== null);
    const list = (values) => values.length > 12 ? values.slice(0, 12).map((v) => number(v, 2)).join(" + ") + ` + ${values.length - 12} more` : values.map((v) => number(v, 2)).join(" + ");
    const first = g.rewards.findIndex((r) => r !== null);
    const working = [`mean = (${list(known)}) / ${known.length} = ${number(g.mean, 4)}`,
      g.deviation === null ? "deviation: unknown with fewer than two rewards, so A_T = 0" : `deviation = square root of (sum of squared differences from the mean / ${known.length - 1}) = ${number(g.deviation, 4)}`];
    if (g.deviation) working.push(`sample ${g.samples[first]}: A_T = (${number(g.rewards[first], 4)} \u2212 ${number(g.mean, 4)}) / (${number(g.deviation, 4)} + ${g.eps}) = ${signed(g.advantages[first], 4)}`);
    else if (g.deviation === 0) working.push("all rewards are equal, so A_T = 0 for all");
    const most = Math.max(1e-9, ...g.advantages.map(Math.abs));
    body.replaceChildren(el("div.grid", {}, g.episodes.map((i, n) => {
      const a = g.advantages[n], cell = el("button", {type: "button", "aria-current": i === view.episode ? "true" : null,
        onclick: () => { quiet = false; open_(i, 0).catch(trouble); }},
        el("b", {}, `sample ${g.samples[n]}`), el("br", {}), `reward ${number(g.rewards[n], 3)}`, el("br", {}), `A_T ${signed(a)}`, el("br", {}), EPISODES[i].stop_reason.replace("_", " "));
      if (a) cell.style.background = tint(a / most);
      if (a) cell.style.borderStyle = a > 0 ? "solid" : "dashed";
      return cell;
    })), ...working.map((line) => el("p.working", {}, line)),
      folded("Table: this group", tableOf([["sample", 1], ["reward", 1], ["A_T", 1], ["F1", 1], ["steps", 1], ["total (tokens)", 1], ["ended"]],
        g.episodes.map((i, n) => [number(g.samples[n]), number(g.rewards[n], 4), signed(g.advantages[n], 4), number(EPISODES[i].f1, 3), number(EPISODES[i].steps), number(EPISODES[i].total_tokens), EPISODES[i].stop_reason.replace("_", " ")]))));
  };
  select.addEventListener("change", show);
  return () => {
    const mine = groups.findIndex((g) => g.episodes.includes(view.episode));
    if (mine >= 0) select.value = String(mine);
    show();
  };
}

// --- 5: a memory's grade ----------------------------------------------------------------------------------------------

const NO_GRADE = "The memories of this episode are not graded: its policy writes none, or the file of grades does not hold it. Choose one under \"ending: memories graded\".";

function gradePanel(place) {
  const plot = el("div.plot", {role: "img", style: "height: 320px"}), rest = el("div", {});
  plot.onStep = (s) => { quiet = false; goTo(s); };
  place.append(el("figure", {style: "margin: 0"}, el("figcaption", {}, "This episode's memories, step by step"), plot), rest);
  return () => {
    const g = view.grade, s = view.step;
    plot.hidden = !g;
    if (!g) { rest.replaceChildren(el("p.missing", {}, NO_GRADE)); return; }
    const x = g.p_memory.map((_, n) => n + 1);
    const line = (name, y, c, dash, symbol) => ({type: "scatter", mode: "lines+markers", name, x, y, line: {color: c, width: 2.5, dash}, marker: {color: c, size: 7, symbol},
      hovertemplate: `<b>${name}</b>, step %{x}<br>%{y:.4g}<extra></extra>`});
    const bar = (name, y, c) => ({type: "bar", name, x, y, marker: {color: c}, hovertemplate: `<b>${name}</b>, step %{x}<br>%{y:+.4g}<extra></extra>`});
    draw(plot, {data: [bar("R_M", g.reward, "@3/0.6"), line("P(answer | memory)", g.p_memory, "@2", "solid", "circle"), line("P(answer | history)", g.p_history, "@0", "dash", "square")],
      layout: {shapes: [markOf(s)], xaxis: {title: {text: "step"}, dtick: x.length > 20 ? 5 : 1}, yaxis: {zeroline: true, title: {text: "probability"}}}}).catch(trouble);
    plot.setAttribute("aria-label", `P(answer | memory), P(answer | history) and R_M by step. At step ${s + 1}: ${chance(g.p_memory[s])}, ${chance(g.p_history[s])} and ${signedChance(g.reward[s])}.`);
    const why = g.reward[s] !== null ? null : s === 0 ? "Step 1 has no grade: there is no result to remember yet." : "This step has no grade: it has no memory, no earlier result, or did not fit the model's window.";
    rest.replaceChildren(
      el("h3", {}, `Step ${s + 1}`),
      facts(`P(answer | memory) ${chance(g.p_memory[s])}`, `P(answer | history) ${chance(g.p_history[s])}`, `R_M ${signedChance(g.reward[s])}`, `A_M ${signed(g.advantage[s], 4)}`),
      why ? el("p.missing", {}, why) : el("p.working", {}, `R_M = ${chance(g.p_memory[s])} \u2212 ${chance(g.p_history[s])} = ${signedChance(g.reward[s])};  `
        + (g.pool_deviation ? `A_M = (${signedChance(g.reward[s])} \u2212 ${signedChance(g.pool_mean)}) / (${chance(g.pool_deviation)} + 0.000001) = ${signed(g.advantage[s], 4)}, over the ${plural(g.pool_size, "graded memory").replace("memorys", "memories")} of the group`
          : "A_M = 0: the group has fewer than two different memory rewards")),
      answerTokens(g, s),
      folded("Table: the steps of this episode", tableOf([["step", 1], ["P(answer | memory)", 1], ["P(answer | history)", 1], ["R_M", 1], ["A_M", 1]],
        x.map((n, i) => [number(n), chance(g.p_memory[i]), chance(g.p_history[i]), signedChance(g.reward[i]), signed(g.advantage[i], 4)]), s)));
  };
}

function answerTokens(g, s) {
  const t = g.tokens;
  if (!t || !t.p_history[s]) return el("p.note", {}, "The probabilities of the single answer tokens are not in the file of grades for this step.");
  const rows = t.text.map((text, n) => [text, chance(t.p_history[s][n]), t.p_memory[s] ? chance(t.p_memory[s][n]) : UNKNOWN]);
  return el("div", {}, label("The right answer, token by token: how probable each is with the history, and with the memory instead of it"),
    el("div.strip", {}, rows.map(([text, history, memory], n) => {
      const cell = el("div", {title: `token ${n + 1}`}, el("code", {}, text.replaceAll(" ", "\u2423")), el("br", {}), `history ${history}`, el("br", {}), `memory ${memory}`);
      const h = t.p_history[s][n], m = t.p_memory[s] ? t.p_memory[s][n] : null;
      if (m !== null && m !== h) { cell.style.background = tint(Math.max(-1, Math.min(1, 3 * (m - h)))); cell.style.borderStyle = m > h ? "solid" : "dashed"; }
      return cell;
    })), folded("Table: answer tokens", tableOf([["token"], ["P with the history", 1], ["P with the memory", 1]], rows)));
}

// --- 6: credit on the text --------------------------------------------------------------------------------------------

const tint = (x) => `rgba(var(--${x > 0 ? "up" : "down"}), ${(0.08 + 0.42 * Math.min(1, Math.abs(x))).toFixed(3)})`;
const SINGLE_TOKENS = 3000;

function creditOf(step, s) {
  const a = EPISODES[view.episode].advantage;
  const m = view.grade && view.grade.advantage[s];
  return {a, m: m ?? null, memory: a + (m ?? 0)};
}

// Coloured spans for a step's sampled text: one a token, or one a run of equal credit where there are thousands.
function creditText(step, s, scale) {
  const c = creditOf(step, s), at = starts(step), total = step.pieces.length;
  const [from, to] = step.spans.memory || [0, 0];
  const forced = new Uint8Array(total);
  for (const [a, b] of step.forced) forced.fill(1, a, b);
  const kind = (t) => forced[t] ? "none" : t >= from && t < to ? "memory" : "rest";
  const single = total <= SINGLE_TOKENS;
  const box = el("div.text", {tabindex: "0"});
  let cut = 0;
  for (let t = 0; t < total;) {
    let end = t + 1;
    while (!single && end < total && kind(end) === kind(t)) end++;
    const k = kind(t), value = k === "none" ? null : k === "memory" ? c.memory : c.a;
    const text = step.text.slice(at[t], Math.min(at[end], at[t] + LONG));
    cut += at[end] - at[t] - text.length;
    const p = single && step.logprobs && step.logprobs[t] !== null ? `, probability when sampled ${number(Math.exp(step.logprobs[t]), 4)}` : "";
    const span = el("span", {title: `${single ? `token ${t + 1}` : `tokens ${t + 1} to ${end}`}: ${value === null ? "no credit (not the policy's choice)" : `${k === "memory" ? "A_T + A_M" : "A_T"} = ${signed(value, 4)}`}${p}`,
      "data-credit": value === null ? "" : value}, text);
    span.className = (value === null ? "none" : value > 0 ? "up" : value < 0 ? "down" : "zero") + (single ? " token" : "");
    if (value) span.style.background = tint(value / scale);
    box.append(span);
    t = end;
  }
  if (cut) box.append(el("span.none", {}, ` [${number(cut)} characters are not coloured here; section 3 shows the whole text]`));
  return box;
}

function creditPanel(place) {
  return () => {
    const step = stepNow(), s = view.step;
    if (!step) { place.replaceChildren(); return; }
    const c = creditOf(step, s);
    // One scale for the episode, so that steps can be compared.
    const scale = Math.max(1e-9, ...view.record.steps.flatMap((one, n) => { const d = creditOf(one, n); return [Math.abs(d.a), one.spans.memory ? Math.abs(d.memory) : 0]; }));
    const swatch = (x, line, text) => { const box = el("span.swatch", {}); box.style.background = tint(x); box.style.borderBottom = `2px ${line} rgb(var(--${x > 0 ? "up" : "down"}))`; return el("span", {}, box, text); };
    place.replaceChildren(
      el("h3", {}, `Step ${s + 1}`),
      facts(`A_T ${signed(c.a, 4)}`, c.m === null ? (step.spans.memory ? "A_M: not known for this memory, so its tokens get A_T" : "no memory in this step") : `A_M ${signed(c.m, 4)}`,
        step.spans.memory ? `Memory tokens get ${signed(c.memory, 4)}` : null, `All others get ${signed(c.a, 4)}`),
      el("div.legend", {}, swatch(1, "solid", `pushed up, at most ${signed(scale, 2)}`), swatch(-1, "dashed", `pushed down, at most ${signed(-scale, 2)}`), el("span.none", {}, "grey: no credit")),
      label("written by the policy"), creditText(step, s, scale),
      label("came back from the environment: outside, no credit"), textBox(step.observation || "(nothing: the episode ended here)", "div.text.outside"));
  };
}

// --- 7: the memory's life ---------------------------------------------------------------------------------------------

function lifePanel(place) {
  return () => {
    const r = view.record, s = view.step;
    if (!r || !r.steps.length) { place.replaceChildren(); return; }
    place.replaceChildren(el("h3", {}, "Where the right answers are"), presence(r, s),
      el("div.legend", {}, ...[["m", "M: in the memory"], ["r", "R: in the result that came back"], ["b", "B: in both"]].map(([k, text]) => { const box = el("span.swatch", {}); box.style.background = {m: "rgba(var(--up), .28)", r: "rgba(204, 121, 167, .28)", b: "linear-gradient(135deg, rgba(var(--up), .3) 50%, rgba(204, 121, 167, .3) 50%)"}[k]; return el("span", {}, box, text); }),
        el("span", {}, "\u00b7: in neither"), el("span", {}, "\u2717: lost, the prompt of this step no longer holds it"), el("span", {}, "?: cannot be traced")),
      ...r.lost.map(([k, at]) => el("p.warning", {}, `Objective ${k + 1} (${r.answers[k][0]}): it stood in the prompt of step ${at}, not in that of step ${at + 1}; what step ${at} wrote left it out.`)),
      el("h3", {}, s ? `The memory from step ${s} to step ${s + 1}` : "The first memory"), changes(r, s));
  };
}

function presence(r, now) {
  const lost = new Set(r.lost.map(([k, s]) => `${k} ${s}`));
  const cell = (k, s) => {
    const step = r.steps[s], m = step.in_memory ? step.in_memory[k] : false, reply = step.in_reply[k], gone = lost.has(`${k} ${s}`);
    const [mark, kind, words] = reply === null ? ["?", "", "cannot be traced"] : m && reply ? ["B", "b", "in memory and result"] : m ? ["M", "m", "in memory"] : reply ? ["R", "r", "in the result"] : ["\u00b7", "", "in neither"];
    const node = el("td", {title: `step ${s + 1}: ${words}; ${step.in_view[k] ? "in" : "not in"} the prompt${gone ? "; lost here" : ""}`}, gone ? `\u2717${mark === "\u00b7" ? "" : mark}` : mark);
    node.className = [kind, gone ? "lost" : "", s === now ? "now" : ""].join(" ").trim();
    return node;
  };
  const head = r.steps.map((_, s) => el("th", {scope: "col"}, el("button.quiet", {type: "button", "aria-label": `go to step ${s + 1}`, onclick: () => { quiet = false; goTo(s); }}, String(s + 1))));
  return el("div.scroll", {tabindex: "0"}, el("table.cells", {}, el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "objective: answer"), head)),
    el("tbody", {}, r.questions.map((q, k) => el("tr", {}, el("td", {title: visible(q)}, `${k + 1}: ${r.answers[k][0]}`), r.steps.map((_, s) => cell(k, s)))))));
}

function changes(r, s) {
  const step = r.steps[s], before = r.steps.slice(0, s).reverse().find((one) => one.memory !== null);
  if (step.memory === null) {
    return el("p.missing", {}, r.steps.some((one) => one.memory !== null) ? "This step wrote no memory." : "This policy writes no memory: it keeps the whole history in its prompt.");
  }
  const words = {a: 0, d: 0};
  for (const [kind, text] of step.diff) if (kind in words) words[kind] += text.split(/\s+/).filter(Boolean).length;
  const side = (skip) => {
    const box = el("div.text", {tabindex: "0"});
    let length = 0;
    for (const [kind, text] of step.diff) {
      if (kind === skip) continue;
      const piece = text.slice(0, Math.max(0, LONG - length));
      length += text.length;
      box.append(kind === "s" ? el("span", {}, piece) : kind === "a" ? el("ins.added", {}, piece) : el("del.dropped", {}, piece));
    }
    if (length > LONG) box.append(el("span.none", {}, ` [${number(length - LONG)} more characters; section 3 shows the whole text]`));
    if (!length) box.append(el("span.none", {}, "(empty)"));
    return box;
  };
  return el("div", {}, el("p.note", {}, `${plural(words.a, "word")} added, ${plural(words.d, "word")} dropped; a changed word counts as both.`),
    el("div.pair", {}, el("div", {}, label(before ? `step ${r.steps.indexOf(before) + 1}, what was dropped is struck out` : "before: no memory yet"), before ? side("a") : el("div.text", {}, el("span.none", {}, "(nothing)"))),
      el("div", {}, label(`step ${s + 1}, what is new is marked`), side("d"))));
}
