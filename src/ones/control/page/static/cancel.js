// Ask before a job is cancelled, then cancel it.

import { $, setText } from "./dom.js";

let job = "";

export function askToCancel(id) {
  job = id;
  setText($("cancel-job"), id);
  setText($("cancel-problem"), "");
  $("cancel-yes").disabled = false;
  $("cancel-dialog").showModal();
}

$("cancel-yes").addEventListener("click", async () => {
  $("cancel-yes").disabled = true;
  try {
    const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/cancel`, { method: "POST" });
    if (answer.ok) {
      $("cancel-dialog").close();
      return;
    }
    setText($("cancel-problem"), (await answer.json()).error ?? answer.statusText);
  } catch {
    setText($("cancel-problem"), "The controller does not answer; nothing was cancelled.");
  }
  $("cancel-yes").disabled = false;
});
