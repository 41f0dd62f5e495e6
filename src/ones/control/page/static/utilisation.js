// What the workers of a job use: a chart for each value, with a line for each GPU.

import { $, el, setText } from "./dom.js";
import { lineColour } from "./colours.js";
import { axisClock, clock, number, percent } from "./format.js";
import { LinePlot } from "./plot.js";

const CHARTS = [
  { name: "utilisation", title: "Utilisation", text: percent, fixed: [0, 1] },
  { name: "memory_mb", title: "Memory", text: memory, fromZero: true },
  { name: "power_watts", title: "Power", text: (watts) => `${number(watts, 3)} W`, fromZero: true },
  { name: "cpus", title: "CPUs kept busy", text: (cpus) => number(cpus, 3), fromZero: true },
];

function memory(mb) {
  return mb < 1024 ? `${number(mb, 3)} MB` : `${number(mb / 1024, 3)} GB`;
}

export class Utilisation {
  constructor() {
    this.plots = new Map();
  }

  /** `news`: as `/api/jobs/JOB/utilisation`, with the curves of some GPUs, and `gpus`, the number of all */
  take(news) {
    $("used-section").hidden = !news.at.length;
    for (const chart of CHARTS) {
      const lines = linesOf(news, chart.name);
      if (lines.length) this.plot(chart).show(lines);
    }
    setText($("used-warning"), warning(news.now));
  }

  plot(chart) {
    if (!this.plots.has(chart.name)) {
      const place = el("div", {});
      $("used").append(el("figure", { "data-used": chart.name }, el("figcaption", {}, el("b", {}, chart.title)), place));
      const options = { ...chart, height: 190, xText: clock, axis: axisClock, spanGaps: false, sync: "used" };
      this.plots.set(chart.name, new LinePlot(place, options));
    }
    return this.plots.get(chart.name);
  }
}

/** The line of each GPU, or of their mean if there are too many. */
function linesOf(news, name) {
  const all = news.gpus > news.curves.length;
  const found = all ? [{ ...news.all, gpu: `mean of ${news.gpus} GPUs` }] : news.curves;
  return found
    .map((curves, i) => ({
      key: curves.gpu,
      name: curves.gpu,
      colour: (dark) => lineColour(String(i + 1), dark),
      points: news.at.map((at, k) => [at, curves[name][k]]),
    }))
    .filter((line) => line.points.some(([, value]) => value !== null));
}

function warning(now) {
  const parts = [];
  if (now.idle_gpus.length) parts.push(`Idle: ${now.idle_gpus.join(", ")}.`);
  if (now.slow_gpus.length) parts.push(`Slower than the other workers: ${now.slow_gpus.join(", ")}.`);
  return parts.join(" ");
}
