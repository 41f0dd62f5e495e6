// Tasks of an array in one row that opens, as in `ones ps`.

import { el, setText } from "./dom.js";

/** The cards with one card for all tasks of an array, in the place of the first; tasks of arrays in `open` follow it. */
export function foldArrays(cards, open) {
  const arrays = new Map();
  for (const card of cards) {
    if (card.array) arrays.set(card.array, [...(arrays.get(card.array) ?? []), card]);
  }
  const rows = [];
  for (const card of cards) {
    const tasks = arrays.get(card.array);
    if (!tasks || tasks.length < 2) rows.push({ ...card, under: false });
    else if (tasks[0] === card) {
      rows.push(arrayCard(card.array, tasks));
      if (open.has(card.array)) rows.push(...tasks.map((task) => ({ ...task, under: true })));
    }
  }
  return rows;
}

/** A card with the sums of the tasks, and what all of them have in common. */
function arrayCard(array, tasks) {
  const counts = new Map();
  for (const task of tasks) counts.set(task.state, (counts.get(task.state) ?? 0) + 1);
  const states = [...counts].sort((a, b) => b[1] - a[1]);
  const sum = (name) => tasks.reduce((total, task) => total + task[name], 0);
  const ends = tasks.map((task) => task.ended_at);
  const longest = tasks.reduce((a, b) => (b.queue_seconds - b.seen_at > a.queue_seconds - a.seen_at ? b : a));
  return {
    ...tasks[0],
    id: array,
    array,
    tasks,
    under: false,
    state: states.length === 1 ? states[0][0] : states.map(([state, count]) => `${count} ${state}`).join(", "),
    elastic: true,
    gpus: sum("gpus"),
    epochs: sum("epochs"),
    rescales: sum("rescales"),
    run_seconds: sum("run_seconds"),
    queue_seconds: longest.queue_seconds,
    seen_at: longest.seen_at,
    priority: tasks.every((task) => task.priority === tasks[0].priority) ? tasks[0].priority : null,
    planned_epochs: null,
    work: null,
    dataset_size: null,
    batch: null,
    loss: null,
    accuracy: null,
    eta: null,
    ended_at: ends.includes(null) ? null : Math.max(...ends),
    message: "",
    note: tasks[0].note && tasks.every((task) => task.note === tasks[0].note) ? tasks[0].note : "",
  };
}

/** The first cell of the row of an array: a button that shows its tasks. */
export function arrayCell(card, toggle) {
  const mark = el("span", { class: "opener", "aria-hidden": "true" });
  const count = el("span", { class: "muted" });
  const button = el("button", { type: "button", class: "quiet array" }, mark, card.id);
  button.addEventListener("click", toggle);
  const head = el("th", { scope: "row", role: "rowheader" }, button, " ", count);
  head.show_ = (array, isOpen) => {
    setText(mark, isOpen ? "▾" : "▸");
    button.setAttribute("aria-expanded", String(isOpen));
    setText(count, `${array.tasks.length} tasks`);
  };
  return head;
}
