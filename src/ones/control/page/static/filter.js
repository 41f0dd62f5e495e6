// The filter and the order of the job tables, and changes of all jobs that the filter shows.

import { $, setText } from "./dom.js";

const FIELDS = {
  user: (card) => [card.owner],
  tag: (card) => card.tags,
  state: (card) => [card.state],
  name: (card) => [card.name, card.id],
  array: (card) => [card.array],
};
const ORDERS = {
  oldest: (a, b) => a.submitted_at - b.submitted_at,
  newest: (a, b) => b.submitted_at - a.submitted_at,
  priority: (a, b) => b.priority - a.priority,
  user: (a, b) => a.owner.localeCompare(b.owner),
  "gpu-time": (a, b) => b.gpu_seconds - a.gpu_seconds,
};
const NAMED = 10;

/** Whether a card has all words: `user:ann`, `tag:nlp`, `state:held`, or a part of any of these. */
export function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (card) =>
    words.every((word) => {
      const colon = word.indexOf(":");
      const field = colon > 0 ? FIELDS[word.slice(0, colon)] : null;
      const values = field ? field(card) : Object.values(FIELDS).flatMap((values) => values(card));
      const part = field ? word.slice(colon + 1) : word;
      return values.some((value) => value.toLowerCase().includes(part));
    });
}

const post = (what) => (id) => fetch(`/api/jobs/${encodeURIComponent(id)}/${what}`, { method: "POST" });
const setPriority = (id) =>
  fetch(`/api/jobs/${encodeURIComponent(id)}`, {
    method: "PATCH",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ priority: $("bulk-priority").valueAsNumber }),
  });
const ACTIONS = {
  hold: ["Hold", post("hold")],
  release: ["Release", post("release")],
  priority: ["Set the priority of", setPriority],
  cancel: ["Cancel", post("cancel")],
};

/** `tables`: filtered here; `changed`: called when they must be shown anew. */
export function listenToFilter(tables, changed) {
  const box = $("filter");
  let action = "";
  let chosen = [];

  const apply = () => {
    tables.accepts = matcher(box.value);
    tables.order = ORDERS[$("order").value] ?? null;
    $("bulk").hidden = !box.value.trim();
    $("bulk-curves").href = `/curves#${new URLSearchParams({ filter: box.value.trim() })}`;
    history.replaceState(null, "", box.value.trim() ? `#${encodeURIComponent(box.value)}` : location.pathname);
    changed();
  };

  const ask = (name) => {
    action = name;
    chosen = tables.shown.filter((card) => card.ended_at === null).map((card) => card.id);
    const more = chosen.length > NAMED ? ` and ${chosen.length - NAMED} more` : "";
    setText($("bulk-title"), `${ACTIONS[name][0]} ${chosen.length} ${chosen.length === 1 ? "job" : "jobs"}?`);
    setText($("bulk-jobs"), chosen.slice(0, NAMED).join(", ") + more);
    setText($("bulk-problem"), "");
    $("bulk-value").hidden = name !== "priority";
    $("bulk-yes").disabled = !chosen.length;
    $("bulk-dialog").showModal();
  };

  $("bulk-yes").addEventListener("click", async () => {
    if (action === "priority" && Number.isNaN($("bulk-priority").valueAsNumber)) return;
    $("bulk-yes").disabled = true;
    const problems = [];
    for (const id of chosen) {
      try {
        const answer = await ACTIONS[action][1](id);
        if (!answer.ok) problems.push((await answer.json()).error ?? answer.statusText);
      } catch {
        problems.push("The controller does not answer.");
      }
    }
    if (!problems.length) {
      $("bulk-dialog").close();
      return;
    }
    setText($("bulk-problem"), `${problems.length} of ${chosen.length} were refused: ${problems[0]}`);
  });

  for (const name of Object.keys(ACTIONS)) $(`bulk-${name}-ask`).addEventListener("click", () => ask(name));
  box.addEventListener("input", apply);
  $("order").addEventListener("change", apply);
  box.value = decodeURIComponent(location.hash.slice(1));
  apply();
}
