// The use of the cluster over time, in four charts with a common cursor.

import { $, setText } from "./dom.js";
import { css } from "./charts.js";
import { axisClock, clock, number, percent } from "./format.js";
import { Live, serverNow } from "./live.js";
import { LinePlot } from "./plot.js";

const REFRESH = 10; // seconds between two requests
const first = () => css("--chart");
const second = () => css("--soft");
const CHARTS = [
  { name: "gpus", title: "GPUs", lines: [["used", "gpus_used", first], ["in the cluster", "gpus", second]], text: (v) => number(v, 3), fromZero: true },
  { name: "waiting", title: "Waiting jobs", lines: [["mean", "waiting", first], ["most", "most_waiting", second]], text: (v) => number(v, 3), fromZero: true },
  { name: "utilisation", title: "Share of the GPUs that is allocated", lines: [["allocated", "utilisation", first]], text: percent, fixed: [0, 1] },
  { name: "decisions", title: "Decisions per hour", lines: [["per hour", "decisions_per_hour", first]], text: (v) => number(v, 3), fromZero: true },
];

let plots = null;
let asked = 0;

function makePlots() {
  return CHARTS.map(({ name, ...options }) => {
    const place = document.querySelector(`[data-chart=${name}]`);
    return new LinePlot(place, { ...options, xText: (x) => clock(x), axis: axisClock, steps: true, spanGaps: false, sync: "history", height: 190 });
  });
}

/** Pairs of (time, value), with null where an interval is missing and at the end of the last one. */
function points(found, name) {
  const pairs = [];
  let end = null;
  for (const point of found.points) {
    if (end !== null && point.at > end) pairs.push([end, null]);
    pairs.push([point.at, point[name]]);
    end = point.at + found.step_seconds;
  }
  const last = found.points.at(-1);
  if (last && end <= found.now) pairs.push([end, null]);
  else if (last) pairs.push([Math.max(found.now, last.at + 1), last[name]]);
  return pairs;
}

async function ask() {
  asked = serverNow();
  const seconds = Number($("window").value);
  let found;
  try {
    const answer = await fetch(`/api/history?since=${serverNow() - seconds}`);
    if (!answer.ok) return;
    found = await answer.json();
  } catch {
    return; // the controller does not answer; the page shows that already
  }
  $("history").hidden = !found.points.length;
  $("nothing").hidden = found.points.length > 0;
  const minutes = found.step_seconds / 60;
  setText($("step"), `in steps of ${minutes < 120 ? (minutes === 1 ? "a minute" : `${minutes} minutes`) : `${number(minutes / 60)} hours`}`);
  if (!found.points.length) return;
  plots ??= makePlots();
  const range = [Math.max(found.since, found.points[0].at), found.now];
  CHARTS.forEach((chart, i) =>
    plots[i].show(
      chart.lines.map(([label, name, colour]) => ({ key: name, name: label, label, colour, dash: colour === second ? [5, 4] : [], points: points(found, name) })),
      range,
    ),
  );
}

new Live({
  hello: ask,
  tick: () => serverNow() - asked >= REFRESH && ask(),
});
$("window").addEventListener("change", ask);
