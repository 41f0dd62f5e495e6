// Curves of several jobs on one chart. The address keeps the choice: #jobs=a,b&curve=loss&against=epochs&filter=tag:nlp

import { $, Keyed, el, setText } from "./dom.js";
import { lineColour } from "./colours.js";
import { matcher } from "./filter.js";
import { duration, number, percent } from "./format.js";
import { Live } from "./live.js";
import { LinePlot } from "./plot.js";

const MOST = 50; // jobs in one request
const REFRESH = 2000; // ms between two requests
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TEXTS = { accuracy: percent };
const STEPS = ["gpus", "batch"];
const MARKS = {
  epochs: (x) => (Number.isInteger(x) ? String(x) : ""),
  samples: (x) => compact.format(x),
  time: (x) => duration(x),
};
const POSITIONS = {
  epochs: (x) => `epoch ${number(x)}`,
  samples: (x) => `${compact.format(x)} samples`,
  time: (x) => duration(x),
};

const cards = new Map();
const chosen = new Set();
let plot = null; // of the present curve and axis
let kind = "";
let data = null;
let asking = false;
let again = false;

const rows = new Keyed(
  $("jobs"),
  (card) => {
    const box = el("input", { type: "checkbox", value: card.id });
    box.addEventListener("change", () => {
      if (box.checked) chosen.add(card.id);
      else chosen.delete(card.id);
      changed();
    });
    return el("li", {}, el("label", { class: "check" }, box, el("span", { class: "id" }, card.id), el("span", { class: "muted" })));
  },
  (row, card) => {
    row.querySelector("input").checked = chosen.has(card.id);
    setText(row.querySelector(".muted"), card.state);
  },
);

/** The jobs that the filter accepts, the newest first; chosen ones are before the others. */
function shown() {
  const accepts = matcher($("filter").value);
  return [...cards.values()].filter(accepts).sort((a, b) => b.submitted_at - a.submitted_at);
}

function list() {
  const found = shown();
  rows.show(found);
  $("no-jobs").hidden = found.length > 0;
}

function changed() {
  const state = { jobs: [...chosen].join(","), curve: $("curve").value, against: $("against").value, filter: $("filter").value.trim() };
  const kept = Object.entries(state).filter(([, value]) => value);
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  list();
  asking = false;
  ask();
}

async function ask() {
  if (asking) {
    again = true;
    return;
  }
  const jobs = [...chosen].slice(0, MOST);
  setText($("hint"), chosen.size > MOST ? `${MOST} of ${chosen.size} chosen jobs are drawn.` : "");
  $("hint").hidden = chosen.size <= MOST;
  if (!jobs.length) {
    data = null;
    draw();
    return;
  }
  asking = true;
  again = false;
  const query = new URLSearchParams([...jobs.map((job) => ["job", job]), ["against", $("against").value]]);
  try {
    const answer = await fetch(`/api/curves?${query}`);
    const found = await answer.json();
    setText($("chart-problem"), answer.ok ? "" : (found.error ?? answer.statusText));
    // the choice may have changed meanwhile
    if (answer.ok && found.against === $("against").value) {
      data = found;
      draw();
    }
  } catch {
    // the controller does not answer; the page shows that already
  }
  setTimeout(() => {
    asking = false;
    if (again) ask();
  }, REFRESH);
}

function draw() {
  const curve = $("curve").value;
  const against = $("against").value;
  const jobs = (data?.jobs ?? []).filter((job) => chosen.has(job.id));
  const drawn = jobs.filter((job) => job.curves[curve].length);
  $("chart").hidden = !drawn.length;
  $("nothing").hidden = drawn.length > 0;
  setText($("nothing"), jobs.length ? "The chosen jobs have not reported it." : "Choose jobs to compare.");
  if (!drawn.length) return;
  if (kind !== `${curve} ${against}`) {
    kind = `${curve} ${against}`;
    plot?.close();
    plot = new LinePlot($("chart"), {
      title: `${$("curve").selectedOptions[0].text} against ${against}`,
      text: TEXTS[curve] ?? ((v) => number(v)),
      xText: POSITIONS[against],
      axis: MARKS[against],
      steps: STEPS.includes(curve),
      whole: STEPS.includes(curve),
      fromZero: STEPS.includes(curve) || curve === "throughput",
      fixed: curve === "accuracy" ? [0, 1] : undefined,
      height: 420,
    });
  }
  plot.show(
    drawn.map((job) => ({
      key: job.id,
      name: el("a", { href: `/jobs/${encodeURIComponent(job.id)}` }, job.id),
      colour: (isDark) => lineColour(job.id, isDark),
      points: job.curves[curve],
    })),
  );
  const silent = jobs.filter((job) => !job.curves[curve].length).map((job) => job.id);
  if (silent.length) {
    setText($("hint"), `Nothing was reported by ${silent.join(", ")}.`);
    $("hint").hidden = false;
  }
}

const wanted = new URLSearchParams(location.hash.slice(1));
for (const job of (wanted.get("jobs") ?? "").split(",").filter(Boolean)) chosen.add(job);
$("filter").value = wanted.get("filter") ?? "";
for (const name of ["curve", "against"]) {
  if ([...$(name).options].some((option) => option.value === wanted.get(name))) $(name).value = wanted.get(name);
}
// from the page of the cluster: all jobs that its filter shows
let chooseAll = wanted.has("filter") && !chosen.size;

new Live({
  jobs: (news) => {
    if (news.all) cards.clear();
    for (const card of news.cards) cards.set(card.id, card);
    if (news.all && chooseAll) {
      chooseAll = false;
      for (const card of shown()) chosen.add(card.id);
      changed();
      return;
    }
    list();
    if (news.all || news.cards.some((card) => chosen.has(card.id))) ask();
  },
});
$("filter").addEventListener("input", () => list());
$("curve").addEventListener("change", changed);
$("against").addEventListener("change", changed);
$("all-shown").addEventListener("click", () => {
  for (const card of shown()) chosen.add(card.id);
  changed();
});
$("none").addEventListener("click", () => {
  chosen.clear();
  changed();
});
