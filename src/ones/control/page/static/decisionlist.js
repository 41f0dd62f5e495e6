// Decisions: what changes for each job, and why.

import { el } from "./dom.js";
import { clock, iso } from "./format.js";

function jobLink(job) {
  return el("a", { href: `/jobs/${encodeURIComponent(job)}` }, job);
}

/** The list item of a plan; null if it changes nothing. `said`: last reason by job, not shown twice in a row. */
export function decisionItem(plan, withNotes, said) {
  const lines = [];
  const ordered = new Set();
  for (const action of plan.actions) {
    ordered.add(action.job);
    if (action.text) lines.push(el("li", {}, jobLink(action.job), `: ${action.text}`));
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
