// The curves of a job over time: one small chart for each, with a common cursor.

import { $, el, setText } from "./dom.js";
import { axisClock, clock, number, percent } from "./format.js";

/* global uPlot */

const HEIGHT = 190;
const CURVES = [
  { name: "loss", title: "Loss", text: (v) => number(v) },
  { name: "accuracy", title: "Accuracy", text: percent, range: [0, 1] },
  { name: "gpus", title: "GPUs", text: (v) => number(v), steps: true },
  { name: "batch", title: "Batch", text: (v) => number(v), steps: true },
  { name: "throughput", title: "Samples per second", text: (v) => number(v, 3), fromZero: true },
];

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Charts {
  constructor() {
    this.points = Object.fromEntries(CURVES.map((curve) => [curve.name, []]));
    this.plots = new Map();
    this.range = [0, 1];
    this.last = null;
    for (const curve of CURVES) {
      const caption = el("figcaption", {}, el("b", {}, curve.title), el("span", { class: "muted" }));
      const place = el("div", { class: "plot", role: "img", "aria-label": `${curve.title} against time` });
      const nothing = el("div", { class: "nothing muted" }, "nothing reported yet");
      $("charts").append(el("figure", { "data-curve": curve.name }, caption, place, nothing));
      Object.assign(curve, { place, nothing, value: caption.lastChild });
    }
    new ResizeObserver(() => this.resize()).observe($("charts"));
    const redraw = () => this.redraw();
    document.addEventListener("themechange", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  forget() {
    for (const curve of CURVES) this.points[curve.name] = [];
  }

  take(news) {
    for (const [name, values] of Object.entries(news)) this.points[name]?.push(...values.filter(([, v]) => v !== null));
  }

  /** Draws from `begin` to `end` (now, or the end of the job); step curves are extended to `end`. */
  show(begin, end, alive) {
    this.range = [begin, Math.max(end, begin + 1)];
    for (const curve of CURVES) {
      const points = this.points[curve.name];
      curve.place.hidden = !points.length;
      curve.nothing.hidden = points.length > 0;
      setText(curve.nothing, alive ? "nothing reported yet" : "nothing was reported");
      if (!points.length) continue;
      const x = points.map(([at]) => at);
      const y = points.map(([, value]) => value);
      if (curve.steps && x[x.length - 1] < end) {
        x.push(end);
        y.push(y[y.length - 1]);
      }
      if (!this.plots.has(curve.name)) this.plots.set(curve.name, this.plot(curve));
      this.plots.get(curve.name).setData([x, y]);
      const latest = `${alive ? "now" : "last"} ${curve.text(y[y.length - 1])}`;
      setText(curve.value, latest);
      curve.place.setAttribute("aria-label", `${curve.title} against time; ${latest}`);
    }
  }

  plot(curve) {
    const soft = css("--soft");
    const axis = { stroke: soft, grid: { stroke: css("--faint"), width: 1 }, ticks: { stroke: css("--faint"), width: 1 }, font: "11px system-ui, sans-serif" };
    const bottom = curve.fromZero || curve.steps;
    const stroke = css("--chart");
    return new uPlot(
      {
        width: this.width(curve),
        height: HEIGHT,
        legend: { show: false },
        cursor: { sync: { key: "job" }, drag: { x: false, y: false } },
        hooks: { setCursor: [(plot) => this.tell(curve, plot)] },
        scales: {
          x: { time: true, range: () => this.range },
          y: { range: curve.range ? () => curve.range : (_, low, high) => spread(bottom ? 0 : low, high) },
        },
        axes: [
          { ...axis, space: 80, size: 32, values: (_, splits, axisIndex, space, step) => splits.map((at) => axisClock(at, step)) },
          { ...axis, size: 56, values: (_, splits) => splits.map((v) => (curve.steps && !Number.isInteger(v) ? "" : axisText(curve, v))) },
        ],
        series: [
          {},
          {
            label: curve.title,
            stroke,
            width: 2,
            fill: curve.steps ? `${stroke}22` : undefined,
            paths: curve.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
            points: { show: curve.steps ? false : undefined, size: 5 },
          },
        ],
      },
      [[], []],
      curve.place,
    );
  }

  /** Shows the value under the cursor instead of the last one. */
  tell(curve, plot) {
    const index = plot.cursor.idx;
    const [x, y] = plot.data;
    if (index === null || index === undefined || y[index] === undefined || !(plot.cursor.left >= 0)) {
      if (y.length) setText(curve.value, curve.place.getAttribute("aria-label").split("; ")[1] ?? "");
    } else setText(curve.value, `${clock(x[index])}: ${curve.text(y[index])}`);
  }

  width(curve) {
    return Math.max(120, curve.place.parentElement.clientWidth - 16);
  }

  resize() {
    for (const curve of CURVES) this.plots.get(curve.name)?.setSize({ width: this.width(curve), height: HEIGHT });
  }

  redraw() {
    for (const curve of CURVES) {
      const old = this.plots.get(curve.name);
      if (!old) continue;
      const data = old.data;
      old.destroy();
      this.plots.set(curve.name, this.plot(curve));
      this.plots.get(curve.name).setData(data);
    }
  }
}

const axisText = (curve, value) => (curve.name === "accuracy" ? `${Math.round(100 * value)} %` : number(value, 3));

/** The range of the values with a margin; never empty. */
export function spread(low, high) {
  if (low === null || low === undefined || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low * 2), Math.max(0, high * 1.25)];
  const air = 0.08 * (high - low);
  return [low === 0 ? 0 : low - air, high + air];
}
