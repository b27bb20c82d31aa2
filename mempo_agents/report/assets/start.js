// Wiring: panels, links, downloads, keys; and, on a live page, looking for news.

const PANELS = {step: stepPanel, group: groupPanel, grade: gradePanel, credit: creditPanel, life: lifePanel};

function startDownloads() {
  for (const place of document.querySelectorAll("[data-long]")) {
    const fold = place.closest("details");
    fold.addEventListener("toggle", () => {
      if (fold.open && !place.childElementCount) place.append(described(place.dataset.long, tableById(place.dataset.long)));
    });
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-csv]"), link = event.target.closest("a[data-episode]");
    if (button) save(`${button.dataset.csv}.csv`, "text/csv", csv(tableById(button.dataset.csv)));
    if (link) {
      event.preventDefault();
      quiet = false;
      open_(Number(link.dataset.episode), Number(link.dataset.step), "step").catch(trouble);
    }
  });
  for (const button of document.querySelectorAll("[data-json]")) {
    const id = button.dataset.json;
    button.addEventListener("click", () => save(`${id}.json`, "application/json", JSON.stringify(REPORT.sections[id], null, 1)));
  }
}

function startEpisodes() {
  if (!EPISODES.length) return;
  for (const place of document.querySelectorAll("[data-widget]")) {
    const redraw = PANELS[place.dataset.widget](place);
    // A panel is drawn when it is on the screen, and again when the episode or step changed meanwhile.
    let seen = false, stale = false;
    const now = () => { stale = false; try { redraw(); } catch (error) { trouble(error); } };
    new IntersectionObserver((entries) => {
      seen = entries[entries.length - 1].isIntersecting;
      if (seen && stale) now();
    }, {rootMargin: "600px"}).observe(place.closest("section"));
    stepHooks.push(() => { if (seen) now(); else stale = true; });
  }
  drawFilters();
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", () => { quiet = false; readAddress(); });
  const linked = location.hash.includes("task=");
  quiet = !linked;
  if (!linked || !readAddress()) open_(firstEpisode(), 0).catch(trouble);
}

// A live page asks every two seconds whether the files changed, and loads itself again, where the reader is, when they did.
function startLive() {
  const sign = document.getElementById("live");
  setInterval(async () => {
    try {
      const answer = await fetch("state");
      if (!answer.ok) throw new Error(String(answer.status));
      sign.textContent = "live";
      if ((await answer.text()) !== STATE) {
        sessionStorage.setItem("place", String(window.scrollY));
        location.reload();
      }
    } catch { sign.textContent = "the server has stopped; what you see may be old"; }
  }, 2000);
  const place = sessionStorage.getItem("place");
  if (place) { sessionStorage.removeItem("place"); setTimeout(() => window.scrollTo(0, Number(place)), 300); }
}

startCharts();
startDownloads();
startEpisodes();
if (LIVE) startLive();
