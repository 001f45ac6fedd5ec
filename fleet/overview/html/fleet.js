"use strict";
// Each event replaces the part of the page that it is named for. What is open stays open.
const live = document.getElementById("live");
const events = new EventSource("events");
for (const name of ["sums", "report", "datastores", "running", "failed", "ended", "workers"]) {
  events.addEventListener(name, (e) => {
    const part = document.getElementById(name);
    const titles = (d) => d.closest("li").querySelector(".image").textContent;
    const open = new Set(Array.from(part.querySelectorAll("details[open]"), titles));
    const at = part.querySelector(".scroll")?.scrollLeft ?? 0;
    part.innerHTML = e.data;
    for (const d of part.querySelectorAll("details")) d.open = open.has(titles(d));
    const scroll = part.querySelector(".scroll");
    if (scroll) scroll.scrollLeft = at;
  });
}
events.addEventListener("time", (e) => { live.textContent = "As of " + e.data + ", and kept up to date."; });
events.addEventListener("error", () => {
  live.textContent = "The server does not answer. The page shows what was last known, and tries again.";
});
