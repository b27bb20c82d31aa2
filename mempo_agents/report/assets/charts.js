// Figures: plotly, unpacked when the first figure comes into view; colours by name, for the light and the dark look.

const LOOKS = {
  light: {series: ["#D55E00", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#7a7f86"], ink: "#1b1f24", grid: "#e6e3dc", muted: "#555d66", card: "#ffffff"},
  dark: {series: ["#F07A2A", "#2BC59A", "#4FA8E8", "#DE9BC2", "#F0B429", "#8FD0F5", "#a5abb3"], ink: "#e8e6e1", grid: "#2c3138", muted: "#a5abb3", card: "#1c2026"},
};
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false, plotlyReady = null;
const drawn = new Map();

const look = () => LOOKS[DARK.matches && !printing ? "dark" : "light"];

function colour(name) {
  const [key, opacity] = name.slice(1).split("/");
  const found = look().series[key] || look()[key] || look().ink;
  if (opacity === undefined) return found;
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(found.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

// A copy of a figure's part with colours put in; only strings like "@2" or "@2/0.2" are colours.
function coloured(value) {
  if (typeof value === "string") return /^@(\d|ink|grid|muted|card)(\/[\d.]+)?$/.test(value) ? colour(value) : value;
  if (Array.isArray(value)) return value.length > 50 && typeof value[0] !== "string" ? value : value.map(coloured);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
  return value;
}

function withLook(layout) {
  const axis = {gridcolor: look().grid, linecolor: look().grid, automargin: true, zeroline: false, exponentformat: "power",
    title: {font: {size: 13}, standoff: 8}, tickfont: {size: 12}};
  const result = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {family: "system-ui, sans-serif", color: look().ink},
    margin: {l: 50, r: 12, t: 12, b: 44}, hovermode: "closest", autosize: true,
    legend: {orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, font: {size: 12}},
    hoverlabel: {bgcolor: look().card, bordercolor: look().muted, font: {color: look().ink, size: 13}, align: "left"}, ...coloured(layout),
  };
  for (const name of Object.keys(result).filter((key) => /^[xy]axis\d*$/.test(key))) {
    const own = result[name];
    result[name] = {...axis, ...own, title: {...axis.title, ...(own.title || {})}};
  }
  return result;
}

function plotly() {
  plotlyReady ||= unpackText(bytesOf(document.getElementById("report-plotly").textContent.trim())).then((source) => {
    document.head.append(Object.assign(document.createElement("script"), {textContent: source}));
    return window.Plotly;
  });
  return plotlyReady;
}

const forPlotly = (text) => visible(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "% {");

function named(i) {
  const row = EPISODES[i];
  return forPlotly(`${row.task}, ${row.trajectory}${REPORT.several_runs ? ", " + row.run : ""}`);
}

// Draw `spec` into `place`; traces with `episodes` get the names of these as hover text, and open them at a click.
async function draw(place, spec) {
  const Plotly = await plotly();
  const traces = spec.data.map((trace) => {
    const copy = coloured(trace);
    if (trace.episodes) copy.text = trace.episodes.map((i) => i === null ? "" : named(i));
    return copy;
  });
  await Plotly.react(place, traces, withLook(spec.layout || {}), {responsive: true, displayModeBar: false});
  if (!drawn.has(place)) {
    place.on("plotly_click", (event) => {
      const point = event.points.find((p) => p.data.episodes);
      if (point) open_(point.data.episodes[point.pointIndex], Math.max(0, point.x - 1), "step");
      else if (place.onStep) place.onStep(event.points[0].x - 1);
    });
  }
  drawn.set(place, spec);
}

function redrawAll() { for (const [place, spec] of drawn) if (place.isConnected && place.offsetParent) draw(place, spec).catch(trouble); }

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    const figure = entry.target;
    const spec = REPORT.sections[figure.dataset.in].figures[figure.dataset.figure];
    draw(figure.querySelector(".plot"), spec).catch(trouble);
  }
}, {rootMargin: "400px"});

function startCharts() {
  for (const figure of document.querySelectorAll("figure.chart")) watcher.observe(figure);
  for (const select of document.querySelectorAll("select[data-choice]")) {
    select.addEventListener("change", () => {
      for (const figure of document.querySelectorAll(`figure.chart[data-in="${select.dataset.choice}"][data-of]`)) {
        figure.hidden = Number(figure.dataset.of) !== select.selectedIndex;
      }
    });
  }
  DARK.addEventListener("change", redrawAll);
  window.addEventListener("beforeprint", () => { printing = true; redrawAll(); });
  window.addEventListener("afterprint", () => { printing = false; redrawAll(); });
}
