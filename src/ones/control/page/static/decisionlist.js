// Plans in words: what was ordered, and the reason that was given.

import { el } from "./dom.js";
import { clock, iso } from "./format.js";

function jobLink(job) {
  return el("a", { href: `/jobs/${encodeURIComponent(job)}` }, job);
}

/** null if nothing is left to say. `said`: the last reason of each job, so that none is told twice in a row. */
export function decisionItem(plan, withNotes, said) {
  const lines = [];
  const ordered = new Set();
  for (const action of plan.actions) {
    ordered.add(action.job);
    const why = plan.notes[action.job];
    lines.push(
      el("li", {}, jobLink(action.job), ` ${action.text}`, why ? el("span", { class: "muted" }, `: ${why}`) : null),
    );
  }
  for (const [job, note] of Object.entries(plan.notes)) {
    const isNew = said.get(job) !== note;
    said.set(job, note);
    if (withNotes && isNew && !ordered.has(job)) lines.push(el("li", { class: "muted" }, jobLink(job), `: ${note}`));
  }
  if (!lines.length) return null;
  return el(
    "li",
    { "data-number": plan.number },
    el("time", { datetime: iso(plan.at), title: `plan ${plan.plan}` }, clock(plan.at)),
    el("ul", {}, ...lines),
  );
}
