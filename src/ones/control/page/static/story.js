// History of a job: a line for each change, the newest last.

import { $, el } from "./dom.js";
import { clock, iso } from "./format.js";

const MINOR = ["epoch", "ready", "left", "rescaled", "step"]; // `ones why` leaves them out, too
const BAD = ["lost", "failed"];
const MARKS = { reason: "waiting", order: "change", failed: "problem", step: "change" };
const MOST = 2000;

export class Story {
  constructor() {
    this.lines = [];
    $("everything").addEventListener("change", () => this.show());
  }

  forget() {
    this.lines = [];
  }

  take(lines) {
    this.lines.push(...lines);
    this.lines.splice(0, this.lines.length - MOST);
    this.show();
  }

  show() {
    const list = $("story");
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    const all = $("everything").checked;
    let said = "";
    const items = [];
    for (const line of this.lines) {
      if (!all && MINOR.includes(line.kind)) continue;
      if (line.kind === "reason") {
        if (line.text === said) continue; // the same reason again
        said = line.text;
      }
      const before = items[items.length - 1];
      if (before && before.line_.kind === line.kind && before.line_.text === line.text) {
        before.times_ += 1; // each worker reports it
        before.lastChild.textContent = `${line.text} (${before.times_} times)`;
        continue;
      }
      const kind = line.kind === "reason" ? "reason" : BAD.includes(line.kind) ? "bad" : "";
      const item = el(
        "li",
        { class: kind },
        el("time", { datetime: iso(line.at) }, clock(line.at)),
        el("span", { class: "mark" }, MARKS[line.kind] ?? line.kind),
        el("span", {}, line.text),
      );
      item.line_ = line;
      item.times_ = 1;
      items.push(item);
    }
    list.replaceChildren(...items);
    if (atEnd) list.scrollTop = list.scrollHeight;
  }
}
