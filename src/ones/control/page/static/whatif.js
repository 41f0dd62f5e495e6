// The last hours under another policy: start a replay, watch it, and show its result beside what happened.

import { $, el, setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { Live } from "./live.js";

const POLL = 500; // ms between two requests while a replay runs
let polling = false;
let shownResult = 0; // start time of the shown replay

const time = (times, name) => (times === null ? "not run" : duration(times[name]));
const mean = (value) => (value === null ? "–" : duration(value));
const cell = (label, text, kind = "number") => el("td", { role: "cell", class: kind, "data-label": label }, text);

async function call(path, method = "GET", body = undefined) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error ?? answer.statusText), { status: answer.status });
  return found;
}

async function poll() {
  if (polling) return;
  polling = true;
  try {
    let replay = await call("/api/whatif");
    show(replay);
    while (replay.state === "running") {
      await new Promise((resolve) => setTimeout(resolve, POLL));
      replay = await call("/api/whatif");
      show(replay);
    }
  } catch (problem) {
    // 404: no replay yet; without a status: the controller does not answer, which the page shows already
    if (problem.status && problem.status !== 404) setText($("ask-problem"), problem.message);
    if (problem.status === 404) running(false);
  }
  polling = false;
}

function running(is) {
  $("start").disabled = is;
  $("cancel-replay").hidden = !is;
  $("progress").hidden = !is;
}

function show(replay) {
  running(replay.state === "running");
  if (replay.state === "running") {
    const { done, total } = replay;
    setText($("progress-label"), total ? `${replay.policy}: ${done} of ${total} jobs simulated` : "Reading the run log…");
    if (total) {
      $("bar").max = total;
      $("bar").value = done;
    } else $("bar").removeAttribute("value");
  }
  setText($("ask-problem"), replay.state === "cancelled" ? "The replay was cancelled." : replay.problem);
  $("result").hidden = !replay.result;
  if (replay.result && shownResult !== replay.started_at) {
    shownResult = replay.started_at;
    showResult(replay.result);
  }
}

function showResult(found) {
  setText($("result-title"), `${found.policy} instead of ${found.policy_then}`);
  setText(
    $("result-about"),
    `From ${clock(found.since)} to ${clock(found.until)}, ${found.gpus} GPUs; means over the ${found.happened.jobs} jobs that have ended. Simulated under ${found.policy_then}, the same jobs show the error of the simulation.`,
  );
  const names = [
    ["happened", `what happened (${found.policy_then})`],
    ["simulated", `simulated (${found.policy_then})`],
    ["whatif", `what if (${found.policy})`],
  ];
  $("means").tBodies[0].replaceChildren(
    ...names.map(([key, name]) =>
      el(
        "tr",
        { role: "row", "data-account": key },
        el("th", { scope: "row", role: "rowheader" }, name),
        cell("Completion", mean(found[key].mean_completion_seconds)),
        cell("Waiting", mean(found[key].mean_waiting_seconds)),
        cell("Completion, all", mean(found[key].mean_completion_of_all)),
        cell("Waiting, all", mean(found[key].mean_waiting_of_all)),
      ),
    ),
  );
  $("replayed").tBodies[0].replaceChildren(...found.jobs.map(jobRow));
  $("replayed").hidden = !found.jobs.length;
  $("others").hidden = !found.jobs_of_others;
  const one = found.jobs_of_others === 1;
  setText($("others"), `${found.jobs_of_others} ${one ? "job" : "jobs"} of other users ${one ? "counts" : "count"} in the means.`);
  $("assumptions").replaceChildren(...found.assumptions.map((sentence) => el("li", {}, sentence)));
}

function jobRow(job) {
  const accounts = [["Done in", "completion_seconds"], ["Waited", "waiting_seconds"]];
  return el(
    "tr",
    { role: "row", "data-job": job.job },
    el("th", { scope: "row", role: "rowheader" }, el("a", { href: `/jobs/${encodeURIComponent(job.job)}` }, job.job), " ", el("span", { class: "muted" }, job.owner)),
    ...accounts.flatMap(([label, name]) => [
      cell(label, job.happened === null ? "not ended" : time(job.happened, name)),
      cell("Simulated", time(job.simulated, name)),
      cell("What if", time(job.whatif, name)),
    ]),
    cell("Assumed length", job.assumed, "why"),
  );
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  setText($("ask-problem"), "");
  $("start").disabled = true;
  try {
    show(await call("/api/whatif", "POST", { policy: $("policy").value, hours: $("hours").valueAsNumber }));
    poll();
  } catch (problem) {
    $("start").disabled = false;
    setText($("ask-problem"), problem.status ? problem.message : "The controller does not answer; nothing was started.");
  }
});
$("cancel-replay").addEventListener("click", async () => {
  try {
    show(await call("/api/whatif/cancel", "POST"));
  } catch (problem) {
    setText($("ask-problem"), problem.status ? problem.message : "The controller does not answer.");
  }
});

new Live({ hello: poll });
