// GPUs over time: a row for each GPU, a bar for each period of one job with one batch.

import { $, el, svg } from "./dom.js";
import { Live, serverNow } from "./live.js";
import { clock } from "./format.js";
import { jobColour } from "./colours.js";

const LABEL = 64; // px for the names of GPUs
const AXIS = 20;
const REFRESH = 2000; // ms between two requests
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

let data = null;
let asking = false;
let again = false;

const seconds = () => ($("window").value === "auto" ? 3600 : Number($("window").value));

/** Time at the left edge of the chart. */
function start(end) {
  const begin = end - seconds();
  if ($("window").value !== "auto") return begin;
  const first = Math.min(end - 60, ...data.segments.slice(0, 1000).map((s) => s.begin));
  return Math.max(begin, first - 0.02 * (end - first));
}

async function ask() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  again = false;
  try {
    const answer = await fetch(`/api/timeline?since=${serverNow() - seconds()}`);
    if (answer.ok) {
      data = await answer.json();
      draw();
      if ($("as-table").open) table();
    }
  } catch {
    // the controller does not answer; the page shows that already
  }
  setTimeout(() => {
    asking = false;
    if (again) ask();
  }, REFRESH);
}

const words = (s, end) => {
  const batch = s.batch ? `, batch ${s.batch}` : "";
  return `${s.job ?? `a job of ${s.owner}`} on ${s.gpu}${batch}, ${clock(s.begin)} to ${s.end === null ? "now" : clock(end)}`;
};

function draw() {
  if (!data) return;
  const end = document.body.classList.contains("is-away") ? data.now : serverNow();
  const begin = start(end);
  const width = Math.max(240, $("timeline").clientWidth - 16);
  const row = data.gpus.length <= 32 ? 24 : data.gpus.length <= 96 ? 14 : 7;
  const height = row * data.gpus.length + AXIS;
  const x = (at) => LABEL + ((width - LABEL) * (Math.max(at, begin) - begin)) / (end - begin);
  const rows = new Map(data.gpus.map((gpu, i) => [gpu, i]));
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": `Which job had which of ${data.gpus.length} GPUs since ${clock(begin)}; the same is below as a table`,
  });
  const step = STEPS.find((s) => ((width - LABEL) * s) / (end - begin) >= 80) ?? 172800;
  // full hours of the local time zone, not of UTC
  const shift = new Date(1000 * end).getTimezoneOffset() * 60;
  for (let at = Math.ceil((begin - shift) / step) * step + shift; at <= end; at += step) {
    picture.append(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height - AXIS }));
    const text = svg("text", { x: x(at), y: height - 6, "text-anchor": x(at) > width - 30 ? "end" : "middle" });
    text.textContent = step < 60 ? clock(at, end) : clock(at, end).replace(/:\d\d$/, "");
    picture.append(text);
  }
  data.gpus.forEach((gpu, i) => {
    picture.append(svg("line", { class: "row", x1: LABEL, x2: width, y1: (i + 1) * row, y2: (i + 1) * row }));
    if (row >= 12 || i % 8 === 0) {
      const text = svg("text", { x: 0, y: i * row + Math.max(row / 2, 6) + 4 });
      text.textContent = gpu.length > 10 ? `…${gpu.slice(-9)}` : gpu;
      picture.append(text);
    }
  });
  const jobs = new Map();
  for (const s of data.segments) {
    const to = s.end ?? end;
    if (!rows.has(s.gpu) || to <= begin) continue;
    if (s.job) jobs.set(s.job, Math.min(jobs.get(s.job) ?? Infinity, s.begin));
    picture.append(bar(s, rows.get(s.gpu) * row, row, x(s.begin), x(to), to));
  }
  if (!jobs.size && !picture.querySelector(".segment")) {
    const middle = row * Math.floor((data.gpus.length - 1) / 2) + row / 2; // within a row, not on a line
    const nothing = svg("text", { x: LABEL + (width - LABEL) / 2, y: middle + 4, "text-anchor": "middle" });
    nothing.textContent = "Nothing has run in this time.";
    picture.append(nothing);
  }
  $("timeline").replaceChildren(picture);
  legend([...jobs].sort((a, b) => a[1] - b[1]).map(([job]) => job));
}

function bar(s, top, height, left, right, end) {
  const rect = svg("rect", { x: left, y: top + 1, width: Math.max(1, right - left), height: height - 2, rx: height > 10 ? 3 : 0 });
  const group = svg(s.job ? "a" : "g", { class: s.job ? "segment" : "segment other" });
  if (s.job) {
    rect.style.fill = jobColour(s.job);
    group.setAttribute("href", `/jobs/${encodeURIComponent(s.job)}`);
    group.setAttribute("tabindex", "-1"); // there may be thousands; the keyboard reaches jobs in the legend
  }
  const title = svg("title");
  title.textContent = words(s, end);
  group.append(title, rect);
  const name = s.job ?? s.owner ?? "";
  const full = s.batch ? `${name} · ${s.batch}` : name;
  const room = (right - left - 8) / 6.4;
  if (height >= 20 && room >= 4) {
    const text = svg("text", { x: left + 4, y: top + height / 2 + 4 });
    text.textContent = full.length <= room ? full : name.length <= room ? name : `${name.slice(0, Math.floor(room) - 1)}…`;
    group.append(text);
  }
  return group;
}

let named = "";
function legend(jobs) {
  if (jobs.join() === named && $("legend").children.length) return;
  named = jobs.join();
  $("legend").replaceChildren(
    ...jobs.map((job) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.backgroundColor = jobColour(job);
      return el("li", {}, swatch, el("a", { href: `/jobs/${encodeURIComponent(job)}` }, job));
    }),
  );
}

function table() {
  const rows = data.segments
    .slice(-1000)
    .reverse()
    .map((s) => {
      const cells = [
        ["Job", s.job ?? `a job of ${s.owner}`, ""],
        ["Batch on it", s.batch === null ? "" : String(s.batch), "number"],
        ["From", clock(s.begin), ""],
        ["To", s.end === null ? "now" : clock(s.end), ""],
      ].map(([label, text, kind]) => el("td", { role: "cell", "data-label": label, class: kind }, text));
      return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, s.gpu), ...cells);
    });
  $("as-table").querySelector("tbody").replaceChildren(...rows);
}

new Live({ hello: ask, cluster: ask, jobs: ask });
$("window").addEventListener("change", () => {
  asking = false;
  ask();
});
$("as-table").addEventListener("toggle", () => $("as-table").open && data && table());
new ResizeObserver(draw).observe($("timeline"));
document.addEventListener("themechange", draw);
setInterval(() => {
  if (data && data.segments.length < 3000 && !document.body.classList.contains("is-away")) draw();
}, 1000);
