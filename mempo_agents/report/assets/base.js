"use strict";
// Small helpers. All text that comes from files enters the page through textContent, after `visible`.

const REPORT = JSON.parse(document.getElementById("report-data").textContent);
const BLOCKS = JSON.parse(document.getElementById("report-blocks").textContent);
const EPISODES = REPORT.episodes;

const NAMED = {0x200b: "ZWSP", 0x200e: "LRM", 0x200f: "RLM", 0x061c: "ALM", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF",
  0x202d: "LRO", 0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
  0x2028: "LS", 0x2029: "PS"};
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

// The same as `visible` in mempo_env/rendering.py: what would act on the eye or the page is shown as a sign.
function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return "\u27e6" + (NAMED[code] || "U+" + code.toString(16).toUpperCase().padStart(4, "0")) + "\u27e7";
  });
}

// el("td.n", {title: "..."}, "text", child, ...): an element; strings become text.
function el(kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}

const UNKNOWN = "\u2013";
const number = (x, digits = 0) => x === null || x === undefined ? UNKNOWN
  : Number(x).toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const signed = (x, digits = 3) => x === null || x === undefined ? UNKNOWN : (x > 0 ? "+" : x < 0 ? "\u2212" : "") + number(Math.abs(x), digits);
// A probability or a difference of two: small ones keep three figures.
const small = (x) => x !== null && x !== undefined && x !== 0 && Math.abs(x) < 0.01;
const chance = (x) => small(x) ? x.toPrecision(4) : number(x, 4);
const signedChance = (x) => small(x) ? (x > 0 ? "+" : "\u2212") + Math.abs(x).toPrecision(4) : signed(x, 4);
const plural = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

function bytesOf(base64) {
  const raw = atob(base64), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function unpackText(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function unpack(bytes) { return JSON.parse(await unpackText(bytes)); }

// A compressed part of the page, or of the live server.
async function part(elementId, path) {
  if (LIVE) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`The server answered ${answer.status} for ${path}.`);
    return unpack(new Uint8Array(await answer.arrayBuffer()));
  }
  const text = document.getElementById(elementId).textContent.trim();
  return text ? unpack(bytesOf(text)) : [];
}

function trouble(error) {
  const place = document.getElementById("trouble");
  place.hidden = false;
  place.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old to unpack the figures and episodes of this page (it lacks DecompressionStream); the tables are all here."
    : `Something on this page could not be shown: ${visible(error && error.message || error)}`;
  console.error(error);
}

function save(name, kind, text) {
  const link = el("a", {href: URL.createObjectURL(new Blob([text], {type: kind})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csv(table) {
  // A cell that a spreadsheet would take for a formula gets an apostrophe in front.
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = Array.isArray(value) ? value.join(" to ") : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const rows = [table.columns.map((c) => c[1]), ...table.rows.map((row) => table.columns.map((c) => row[c[0]]))];
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

const LONG = 20000;
// A box for text of any length: wraps, scrolls inside itself, and shows the rest of a very long text on demand.
function textBox(text, kind = "div.text") {
  const box = el(kind, {tabindex: "0"});
  if (text.length <= LONG) { box.append(visible(text)); return box; }
  box.append(visible(text.slice(0, LONG)));
  const more = el("button", {type: "button", onclick: () => { more.remove(); box.append(visible(text.slice(LONG))); }},
    `Show the other ${number(text.length - LONG)} characters`);
  box.append(more);
  return box;
}

function tableOf(columns, rows, here) {
  return el("div.scroll", {tabindex: "0"}, el("table", {},
    el("thead", {}, el("tr", {}, columns.map(([title, isNumber]) => el(isNumber ? "th.n" : "th", {scope: "col"}, title)))),
    el("tbody", {}, rows.map((row, i) => el(i === here ? "tr.here" : "tr", {},
      row.map((cell, c) => el(columns[c][1] ? "td.n" : "td", {}, cell)))))));
}

// A number in a format of Python's: sign, comma, decimals ("+,.3f", ",d", ".1f").
function formatted(value, form) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Array.isArray(value)) return value.map((v) => formatted(v, form)).join(" to ");
  if (!form || typeof value !== "number") return String(value);
  if (form.endsWith("g")) return form.startsWith("+") ? signedChance(value) : chance(value);
  const digits = form.endsWith("f") ? Number(form.match(/\.(\d+)f/)[1]) : 0;
  const text = value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: form.includes(",")});
  return form.startsWith("+") && value >= 0 ? "+" + text : text;
}

// A table that Python described, as page.html.j2 writes the short ones.
function described(id, table) {
  const rows = table.rows.map((row) => el("tr", {}, table.columns.map(([key, , form], c) => {
    const text = formatted(row[key], form);
    const link = c === 0 && row.episode !== undefined && row.episode !== null;
    return el(form ? "td.n" : "td", {}, link ? el("a", {href: "#", "data-episode": row.episode, "data-step": row.at_step || 0}, text) : text);
  })));
  return el("div.table", {}, el("div.table-head", {}, el("span.table-title", {}, table.caption), el("button.quiet", {type: "button", "data-csv": id}, "Save as CSV")),
    el("div.scroll", {tabindex: "0", role: "region", "aria-label": table.caption}, el("table", {},
      el("thead", {}, el("tr", {}, table.columns.map(([, title, form]) => el(form ? "th.n" : "th", {scope: "col"}, title)))), el("tbody", {}, rows))),
    table.note ? el("p.note", {}, table.note) : null);
}

const tableById = (id) => Object.values(REPORT.sections).map((s) => s.tables[id]).find(Boolean) || REPORT.overview[id];
const folded = (title, ...children) => el("details.fold", {}, el("summary", {}, title), ...children);
