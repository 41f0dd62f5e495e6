// All decisions, the newest first; older ones on demand.

import { $ } from "./dom.js";
import { Live } from "./live.js";
import { decisionItem } from "./decisionlist.js";

const PAGE = 50;
const FIRST = 30; // number of decisions that come with the stream, if there are enough
const plans = new Map(); // by number

function show() {
  const withNotes = $("with-notes").checked;
  const said = new Map();
  const items = [];
  for (const number of [...plans.keys()].sort((a, b) => a - b)) {
    const item = decisionItem(plans.get(number), withNotes, said);
    if (item) items.unshift(item);
  }
  $("decisions").replaceChildren(...items);
  $("decisions").nextElementSibling.hidden = items.length > 0;
}

let pending = false;
function soon() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    show();
  });
}

new Live({
  decisions: (news) => {
    if (!plans.size) $("older").hidden = news.length < FIRST;
    for (const plan of news) plans.set(plan.number, plan);
    soon();
  },
});
$("with-notes").addEventListener("change", show);
$("older").addEventListener("click", async () => {
  const first = Math.min(...plans.keys());
  try {
    const answer = await fetch(`/api/decisions?telling=true&before=${first}&limit=${PAGE}`);
    const found = answer.ok ? await answer.json() : [];
    for (const plan of found) plans.set(plan.number, plan);
    $("older").hidden = found.length < PAGE;
    show();
  } catch {
    // the controller does not answer; the page shows that already
  }
});
