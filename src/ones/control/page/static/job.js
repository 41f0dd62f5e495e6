// The page of a job: its numbers, curves, history and output.

import { $, el, setText } from "./dom.js";
import { Charts } from "./charts.js";
import { Live, serverNow } from "./live.js";
import { Output } from "./output.js";
import { Story } from "./story.js";
import { Utilisation } from "./utilisation.js";
import { askToCancel } from "./cancel.js";
import { listen, showHold } from "./hold.js";
import { clock, duration, progress, eta, number, percent, stateClass } from "./format.js";
import { jobColour } from "./colours.js";

const id = decodeURIComponent(location.pathname.split("/").pop());
const charts = new Charts();
const story = new Story();
const utilisation = new Utilisation();
let card = null;
let live = null;
const output = new Output(id, () => live.open());

$("swatch").style.backgroundColor = jobColour(id);
$("cancel").addEventListener("click", () => askToCancel(id));
listen(id);

/** [name, value, details] of each fact that has a value */
function facts(now) {
  const since = card.ended_at === null ? now - card.seen_at : 0;
  const waited = card.queue_seconds + (card.gpus ? 0 : since);
  const ran = card.run_seconds + (card.gpus ? since : 0);
  const done = eta(card, now);
  return [
    ["GPUs", number(card.gpus), card.workers.map((w) => `${w.gpu}${w.leaving ? " (leaving)" : w.coming ? " (coming)" : ""}`).join(", ")],
    ["Batch", number(card.batch), shares()],
    card.work && card.work.unit !== "epochs"
      ? ["Progress", progress(card), ""]
      : ["Epochs", progress(card), card.dataset_size ? `${number(card.dataset_size)} samples each` : ""],
    ["Loss", number(card.loss), ""],
    ["Accuracy", percent(card.accuracy), ""],
    ["Samples per second", speed(), card.step_seconds ? `${number(1000 * card.step_seconds, 3)} ms a step` : ""],
    card.ended_at === null
      ? ["Done in", done ? done[0] : "–", done ? `90 %: ${done[1]}` : "not known yet"]
      : ["Ended", clock(card.ended_at), ""],
    ["Waited", duration(waited), ""],
    ["Ran", duration(ran), `${duration(card.gpu_seconds + card.gpus * since)} GPU time`],
    ["Rescales", number(card.rescales), card.rescales ? `${pause()} of pauses` : ""],
    ["Preempted", number(card.preemptions), card.losses ? `${card.losses} ${card.losses === 1 ? "worker" : "workers"} lost` : ""],
    ["Priority", number(card.priority), ""],
  ];
}

function shares() {
  const parts = card.workers.filter((w) => w.batch);
  if (parts.length < 2) return "";
  const micro = parts[0].micro_steps > 1 ? `, in ${parts[0].micro_steps} parts` : "";
  return `${parts.map((w) => w.batch).join(" + ")}${micro}`;
}

const pause = () => (card.pause_seconds < 1 ? `${Math.ceil(1000 * card.pause_seconds)} ms` : `${number(card.pause_seconds, 3)} s`);

const speed = () => number(charts.points.throughput.at(-1)?.[1], 3);

function show() {
  if (!card) return;
  const now = serverNow();
  const alive = card.ended_at === null;
  setText($("state"), card.elastic ? card.state : `${card.state} (fixed size)`);
  $("state").className = `state ${stateClass(card.state)}`;
  $("cancel").hidden = !alive;
  showHold(card);
  setText($("note"), card.message || card.note);
  showTracker(card.tracker);
  for (const [name, value, more] of facts(now)) showFact(name, value, more);
  charts.show(card.submitted_at, alive ? now : card.ended_at, alive);
}

function showTracker(address) {
  const link = $("tracker");
  link.hidden = !/^https?:\/\//.test(address);
  if (link.hidden || link.href === address) return;
  link.href = address;
  setText(link, `Run in the tracker: ${address}`);
}

const shown = new Map();
function showFact(name, value, more) {
  if (!shown.has(name)) {
    const big = el("span", { class: "big" });
    const small = el("span", { class: "more" });
    const box = el("div", {}, el("dt", {}, name), el("dd", {}, big, small));
    $("facts").append(box);
    shown.set(name, { box, big, small });
    if (name === "Ended") shown.get("Done in")?.box.replaceWith(box);
  }
  const { box, big, small } = shown.get(name);
  box.hidden = !value;
  setText(big, value);
  setText(small, more);
}

live = new Live(
  {
    hello: () => {
      story.forget();
      charts.forget();
    },
    jobs: (news) => {
      const mine = news.cards.find((c) => c.id === id);
      if (mine) card = { ...mine, seen_at: news.now };
      show();
    },
    story: (lines) => story.take(lines),
    points: (news) => {
      charts.take(news);
      show();
    },
    used: (news) => utilisation.take(news),
    launches: (processes) => output.takeProcesses(processes),
    output: (news) => output.take(news),
  },
  () => ({ job: id, ...output.query() }),
);
setInterval(() => {
  if (!document.body.classList.contains("is-away") && card?.ended_at === null) show();
}, 1000);
