// The button that puts a job on hold, or releases it.

import { $, setText } from "./dom.js";

let action = "hold";

/** `card`: the job as it is now. A running job of a fixed size cannot be held. */
export function showHold(card) {
  action = card.on_hold ? "release" : "hold";
  setText($("hold"), card.on_hold ? "Release" : "Hold");
  $("hold").hidden = card.ended_at !== null || (!card.on_hold && !card.elastic && card.gpus > 0);
}

export function listen(id) {
  $("hold").addEventListener("click", async () => {
    setText($("hold-problem"), "");
    $("hold").disabled = true;
    try {
      const answer = await fetch(`/api/jobs/${encodeURIComponent(id)}/${action}`, { method: "POST" });
      if (!answer.ok) setText($("hold-problem"), (await answer.json()).error ?? answer.statusText);
    } catch {
      setText($("hold-problem"), "The controller does not answer; nothing was changed.");
    }
    $("hold").disabled = false;
  });
}
