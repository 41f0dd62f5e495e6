// A chart of several lines over one axis, with the values under the cursor beside their names.

import { el, setText } from "./dom.js";
import { css, spread } from "./charts.js";

/* global uPlot */

const DASHES = [[], [7, 4], [2, 3]];

export const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

/** `text`, `xText`, `axis`: a value, a position, a mark of the x axis as text. `steps`: a value holds until the next point.
    `whole`: only whole numbers are marked. */
export class LinePlot {
  constructor(place, options) {
    this.place = place;
    this.options = { height: 260, text: String, xText: String, ...options };
    this.legend = el("ul", { class: "legend values" });
    this.canvas = el("div", { class: "plot", role: "img" });
    place.append(this.canvas, this.legend);
    this.plot = null;
    this.lines = [];
    this.over = new AbortController();
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(place);
    const { signal } = this.over;
    const redraw = () => this.rebuild();
    document.addEventListener("themechange", redraw, { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });
  }

  close() {
    this.over.abort();
    this.resizing.disconnect();
    this.plot?.destroy();
    this.place.replaceChildren();
  }

  /** `lines`: [{key, name (text or node), colour: (isDark) => text, points: [[x, y], ...]}] */
  show(lines, range = null) {
    const same = lines.map((line) => line.key).join() === this.lines.map((line) => line.key).join();
    this.lines = lines;
    this.range = range;
    this.data = lines.length ? uPlot.join(lines.map((line) => columns(line.points))) : [[]];
    if (same && this.plot) this.plot.setData(this.data);
    else this.rebuild();
    this.tell();
    const summary = lines.map((line) => `${line.label ?? line.key}: ${this.latest(line)}`).join("; ");
    this.canvas.setAttribute("aria-label", `${this.options.title}; ${summary}`);
  }

  latest(line) {
    const last = line.points.findLast(([, y]) => y !== null);
    return last ? this.options.text(last[1]) : "nothing";
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.values = this.lines.map(() => el("span", { class: "muted" }));
    this.legend.replaceChildren(...this.lines.map((line, i) => this.item(line, i)));
    if (!this.lines.length) return;
    const faint = { stroke: css("--faint"), width: 1 };
    const axis = { stroke: css("--soft"), grid: faint, ticks: faint, font: "11px system-ui, sans-serif" };
    const { text, axis: mark, fixed, fromZero, steps, sync, whole } = this.options;
    this.plot = new uPlot(
      {
        width: this.width(),
        height: this.options.height,
        legend: { show: false },
        cursor: { sync: sync ? { key: sync } : undefined, drag: { x: false, y: false } },
        hooks: { setCursor: [() => this.tell()] },
        scales: {
          x: { time: false, range: (_, low, high) => this.range ?? (low === high ? [low, low + 1] : [low, high]) },
          y: { range: (_, low, high) => fixed ?? (fromZero ? [0, high ? 1.08 * high : 1] : spread(low, high)) },
        },
        axes: [
          { ...axis, space: 80, size: 32, values: (_, splits, i, space, step) => splits.map((at) => mark(at, step)) },
          { ...axis, size: 60, values: (_, splits) => splits.map((v) => (whole && !Number.isInteger(v) ? "" : text(v))) },
        ],
        series: [{}, ...this.lines.map((line, i) => this.series(line, i, steps))],
      },
      this.data,
      this.canvas,
    );
  }

  series(line, i, steps) {
    return {
      stroke: line.colour(isDark()),
      width: 2,
      dash: line.dash ?? DASHES[i % DASHES.length],
      spanGaps: this.options.spanGaps ?? true,
      paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: steps ? false : undefined, size: 5 },
    };
  }

  item(line, i) {
    const key = el("span", { class: "key", "aria-hidden": "true" });
    key.style.borderTopColor = line.colour(isDark());
    key.style.borderTopStyle = (line.dash ?? DASHES[i % DASHES.length]).length ? "dashed" : "solid";
    return el("li", {}, key, line.name, " ", this.values[i]);
  }

  /** Shows the values under the cursor, or the last ones. */
  tell() {
    const xs = this.data[0];
    const { idx, left } = this.plot?.cursor ?? {};
    const under = typeof idx === "number" && left >= 0 && idx < xs.length;
    const { steps, text, xText, spanGaps } = this.options;
    let last = under ? idx : xs.length - 1;
    const x = under && steps ? this.plot.posToVal(left, "x") : xs[last];
    if (steps) while (last > 0 && xs[last] > x) last -= 1;
    this.lines.forEach((line, i) => {
      const column = this.data[i + 1];
      let at = last;
      if (spanGaps !== false) while (at > 0 && (column[at] ?? null) === null) at -= 1;
      const y = column[at] ?? null;
      setText(this.values[i], y === null ? "nothing" : `${text(y)} at ${xText(steps && under ? x : xs[at])}`);
    });
  }

  width() {
    return Math.max(120, this.place.clientWidth - 16);
  }

  resize() {
    this.plot?.setSize({ width: this.width(), height: this.options.height });
  }
}

/** Points as columns with ascending x: of several values at one x, the last counts. */
function columns(points) {
  const found = new Map(points);
  const xs = [...found.keys()].sort((a, b) => a - b);
  return [xs, xs.map((x) => found.get(x))];
}
