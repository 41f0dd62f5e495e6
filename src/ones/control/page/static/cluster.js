// The map: every GPU with its job and its share of the batch.

import { $, el, setText } from "./dom.js";
import { jobColour } from "./colours.js";

const MANY = 96; // number of GPUs from which tiles are smaller

export function showCluster(cluster) {
  const place = $("map");
  const states = new Map(cluster.nodes.map((node) => [node.name, node.state]));
  const nodes = new Map();
  for (const slot of cluster.slots) {
    if (!nodes.has(slot.node)) nodes.set(slot.node, []);
    nodes.get(slot.node).push(slot);
  }
  const focused = document.activeElement?.closest?.(".slot")?.dataset.slot;
  place.classList.toggle("many", cluster.slots.length > MANY);
  place.replaceChildren(
    ...[...nodes].map(([name, slots]) =>
      el(
        "section",
        { class: "node" },
        nodes.size > 1 || states.get(name) !== "up" ? el("h3", {}, heading(name, states.get(name))) : null,
        el("ul", { class: "slots", "aria-label": `GPUs of ${name}` }, ...slots.map((slot) => tile(slot, states.get(name)))),
      ),
    ),
  );
  if (focused) place.querySelector(`[data-slot="${CSS.escape(focused)}"] a`)?.focus();
  const busy = cluster.slots.filter((slot) => slot.owner !== null).length;
  const foreign = cluster.slots.filter((slot) => slot.used_by.length).length;
  const aside = cluster.slots.filter((slot) => slot.state === "draining" && !slot.used_by.length).length;
  const words = [`${busy} of ${cluster.slots.length} in use`];
  if (foreign) words.push(`${foreign} used by others`);
  if (aside) words.push(`${aside} set aside`);
  words.push(`${cluster.running} ${cluster.running === 1 ? "job runs" : "jobs run"}`, cluster.waiting === 1 ? "1 waits" : `${cluster.waiting} wait`);
  setText($("map-summary"), words.join(" · "));
  $("map-hint").hidden = !aside;
}

const heading = (name, state) => (state === undefined || state === "up" ? name : `${name}: ${state}`);

function tile(slot, state) {
  const what = slot.kind === "gpu" ? "GPU" : "CPU slot";
  const index = slot.id.slice(slot.id.lastIndexOf("/") + 1);
  const [kind, title, more, mark] = described(slot, state);
  const node = el(
    "li",
    { class: `slot ${kind}`, "data-slot": slot.id, title: [slot.id, slot.name, slot.aside].filter(Boolean).join(" · ") },
    el("span", { class: "place" }, `${what} ${index}`, el("span", {}, mark)),
    el("span", { class: "job" }, slot.job ? el("a", { href: `/jobs/${encodeURIComponent(slot.job)}` }, title) : title),
    el("span", { class: "more" }, more),
  );
  if (slot.job) node.style.backgroundColor = jobColour(slot.job);
  return node;
}

/** [class, first line, second line, mark] */
function described(slot, state) {
  if (slot.owner !== null) {
    const batch = slot.batch ? `batch ${slot.batch}` : "";
    const mark = slot.leaving ? "leaving" : slot.coming ? "coming" : slot.aside ? "set aside" : "";
    const kind = (slot.job ? "busy" : "other") + (slot.leaving || slot.coming ? " changing" : "");
    return [kind, slot.job ?? `a job of ${slot.owner}`, batch, mark];
  }
  if (slot.used_by.length) return ["foreign", "used by others", slot.used_by.join(", "), ""];
  if (slot.aside) return ["foreign", "set aside", slot.aside, ""];
  if (state === "down") return ["down", "down", "", ""];
  if (state === "draining") return ["free", "draining", "no new jobs", ""];
  return ["free", "free", "", ""];
}
