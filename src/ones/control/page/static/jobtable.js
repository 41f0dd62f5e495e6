// Three tables of jobs: running, waiting, ended.

import { $, Keyed, el, setText } from "./dom.js";
import { jobColour } from "./colours.js";
import { askToCancel } from "./cancel.js";
import { clock, duration, progress, eta, iso, number, percent, stateClass } from "./format.js";
import { arrayCell, foldArrays } from "./arrays.js";

const MOST_ENDED = 100;

function jobCell(card) {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.backgroundColor = jobColour(card.id);
  return el(
    "th",
    { scope: "row", role: "rowheader" },
    el("span", { class: "name", title: card.id }, swatch, el("a", { href: `/jobs/${encodeURIComponent(card.id)}` }, card.id)),
    " ",
    el("span", { class: "muted" }, card.owner),
  );
}

const cell = (label, kind = "") => el("td", { role: "cell", class: kind, "data-label": label });

function actCell(card) {
  const button = el("button", { type: "button", class: "small danger", "aria-label": `Cancel ${card.id}` }, "Cancel");
  button.addEventListener("click", () => askToCancel(card.id));
  const td = cell("", "act");
  td.append(button);
  return td;
}

function setState(td, card) {
  if (!td.firstChild) td.append(el("span"), " ", el("span", { class: "muted fixed" }));
  td.firstChild.className = `state ${stateClass(card.state)}`;
  setText(td.firstChild, card.state);
  setText(td.lastChild, card.elastic ? "" : "fixed size");
}

function setEta(td, card, now) {
  const words = eta(card, now);
  if (!words) {
    if (td.firstElementChild || !td.textContent) td.replaceChildren(el("span", { class: "range" }, "not known yet"));
    return;
  }
  if (td.children.length !== 2) td.replaceChildren(el("span"), " ", el("span", { class: "range" }));
  setText(td.firstElementChild, words[0]);
  setText(td.lastElementChild, `(${words[1]})`);
}

const wants = (card) => {
  if (card.min_gpus === card.max_gpus) return String(card.min_gpus);
  return card.max_gpus === null ? `${card.min_gpus} or more` : `${card.min_gpus} to ${card.max_gpus}`;
};

export class JobTables {
  constructor() {
    this.cards = new Map();
    this.accepts = () => true;
    this.order = null; // null: each table has its own
    this.shown = [];
    this.now = 0;
    this.open = new Set(); // arrays of which each task has a row
    this.running = this.table(
      "running",
      [["State"], ["GPUs", "number"], ["Batch", "number"], ["Epoch", "number"], ["Loss", "number"], ["Accuracy", "number"], ["Done in (90 % range)", "wide"], ["", "why"]],
      true,
      ([state, gpus, batch, epochs, loss, accuracy, done, why], card) => {
        setState(state, card);
        setText(gpus, number(card.gpus));
        setText(batch, number(card.batch));
        setText(epochs, progress(card));
        setText(loss, number(card.loss));
        setText(accuracy, percent(card.accuracy));
        setEta(done, card, this.now);
        setText(why, card.note);
      },
    );
    this.queue = this.table(
      "queue",
      [["Priority", "number"], ["Wants GPUs", "number"], ["Waiting for", "number"], ["", "why"]],
      true,
      ([priority, gpus, waiting, why], card) => {
        setText(priority, number(card.priority));
        setText(gpus, wants(card));
        // the sum of the waits before its first start and after each stop
        setText(waiting, duration(card.queue_seconds + (this.now - card.seen_at)));
        setText(why, card.note);
      },
    );
    this.ended = this.table(
      "ended",
      [["How"], ["Epochs", "number"], ["Loss", "number"], ["Accuracy", "number"], ["Waited", "number"], ["Ran", "number"], ["Rescales", "number"], ["Ended", "number"], ["", "why"]],
      false,
      ([how, epochs, loss, accuracy, waited, ran, rescales, ended, why], card) => {
        setState(how, card);
        setText(epochs, progress(card));
        setText(loss, number(card.loss));
        setText(accuracy, percent(card.accuracy));
        setText(waited, duration(card.queue_seconds));
        setText(ran, duration(card.run_seconds));
        setText(rescales, number(card.rescales));
        if (!ended.firstChild) ended.append(el("time"));
        ended.firstChild.dateTime = iso(card.ended_at);
        setText(ended.firstChild, clock(card.ended_at));
        setText(why, card.message);
      },
    );
  }

  table(id, columns, canCancel, fill) {
    const make = (card) => {
      const cells = columns.map(([label, kind]) => cell(label, kind));
      const head = card.tasks ? arrayCell(card, () => this.toggle(card.array)) : jobCell(card);
      const last = !canCancel ? null : card.tasks ? cell("", "act") : actCell(card);
      const row = el("tr", { role: "row", [card.tasks ? "data-array" : "data-job"]: card.id }, head, ...cells, last);
      row.cells_ = cells;
      return row;
    };
    const show = (row, card) => {
      row.classList.toggle("task", card.under);
      fill(row.cells_, card);
      if (card.tasks) row.firstElementChild.show_(card, this.open.has(card.array));
    };
    return new Keyed($(id).tBodies[0], make, show);
  }

  toggle(array) {
    if (!this.open.delete(array)) this.open.add(array);
    this.show(this.now);
  }

  take(news) {
    if (news.all) this.cards.clear();
    for (const card of news.cards) this.cards.set(card.id, { ...card, seen_at: news.now });
  }

  show(now) {
    this.now = now;
    const all = [...this.cards.values()].filter(this.accepts);
    this.shown = all;
    const live = all.filter((card) => card.ended_at === null);
    const running = live.filter((card) => card.gpus > 0).sort((a, b) => a.submitted_at - b.submitted_at);
    const waiting = live
      .filter((card) => card.gpus === 0)
      .sort((a, b) => b.priority - a.priority || a.submitted_at - b.submitted_at);
    const ended = all
      .filter((card) => card.ended_at !== null)
      .sort((a, b) => b.ended_at - a.ended_at);
    for (const [id, rows, list] of [
      ["running", this.running, running],
      ["queue", this.queue, waiting],
      ["ended", this.ended, ended],
    ]) {
      const folded = foldArrays(this.order ? list.sort(this.order) : list, this.open);
      rows.show(id === "ended" ? folded.slice(0, MOST_ENDED) : folded, (card) => (card.tasks ? `array ${card.id}` : card.id));
      setText($(`${id}-count`), list.length ? String(list.length) : "");
      $(id).hidden = !list.length;
      $(id).parentElement.querySelector(".empty").hidden = list.length > 0;
    }
  }
}
