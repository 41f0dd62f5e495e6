// The output of a process: its end, then new output as it comes, and earlier parts on demand.

import { $, el, setText } from "./dom.js";

const KEPT = 400000; // characters; older ones can be shown again
const EARLIER = 65536; // bytes

/** The text as a terminal shows it, without colours; overwritten lines are removed. */
export function plain(text) {
  return text
    .replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[@-Z\\-_]/g, "")
    .replace(/\r+\n/g, "\n")
    .replace(/[^\n]*\r(?=[^\n])/g, "")
    .replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g, "");
}

export class Output {
  /** `reopen()` opens the stream again, for the output of another process. */
  constructor(job, reopen) {
    this.job = job;
    this.chosen = ""; // by hand
    this.launch = "";
    this.text = "";
    this.first = 0; // offset of the first byte that is shown
    this.next = null;
    this.processes = [];
    $("launch").addEventListener("change", () => {
      this.chosen = $("launch").value;
      this.clear("");
      reopen();
    });
    $("follow").addEventListener("change", () => this.follow());
    $("output").addEventListener("scroll", () => {
      const node = $("output");
      const atEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 30;
      if (!atEnd && $("follow").checked && node.dataset.ours !== "1") $("follow").checked = false;
      delete node.dataset.ours;
    });
    $("earlier").addEventListener("click", () => this.earlier());
  }

  /** Parameters with which the stream continues. */
  query() {
    const launch = this.chosen || this.launch;
    if (!launch) return {};
    const goOn = this.next !== null && launch === this.launch ? { offset: this.next } : {};
    return { launch, pinned: Boolean(this.chosen), ...goOn };
  }

  clear(launch) {
    this.launch = launch;
    this.text = "";
    this.next = null;
    setText($("output"), "");
  }

  takeProcesses(processes) {
    this.processes = processes;
    const select = $("launch");
    const value = this.chosen;
    select.replaceChildren(
      el("option", { value: "" }, "the process that reports"),
      ...processes
        .slice()
        .reverse()
        .map((p) => el("option", { value: p.id }, `${p.slots.join(", ")}: ${p.ended || "alive"} (${p.id})`)),
    );
    select.value = value;
    this.tell();
  }

  take(news) {
    if (news.begins || news.launch !== this.launch) this.clear(news.launch);
    if (!this.text) this.first = news.offset;
    else if (this.next !== null && news.offset > this.next) this.text += `\n(${news.offset - this.next} bytes were dropped)\n`;
    this.text += news.text;
    this.next = news.next;
    if (this.text.length > KEPT) {
      const cut = this.text.length - KEPT;
      this.first += new TextEncoder().encode(this.text.slice(0, cut)).length;
      this.text = this.text.slice(cut);
    }
    this.show();
  }

  show() {
    setText($("output"), plain(this.text));
    $("earlier").hidden = this.first <= 0;
    this.tell();
    this.follow();
  }

  tell() {
    const process = this.processes.find((p) => p.id === this.launch);
    if (!process) {
      setText($("output-state"), this.processes.length ? "" : "No process has started yet.");
      return;
    }
    const where = `Process ${process.id} on ${process.slots.join(", ")}`;
    const nothing = this.text ? "" : "; it has printed nothing";
    setText($("output-state"), (process.alive ? `${where} is alive` : `${where}: ${process.ended}`) + nothing + ".");
  }

  follow() {
    if (!$("follow").checked) return;
    const node = $("output");
    node.dataset.ours = "1";
    node.scrollTop = node.scrollHeight;
  }

  async earlier() {
    const from = Math.max(0, this.first - EARLIER);
    const path = `/api/jobs/${encodeURIComponent(this.job)}/launches/${encodeURIComponent(this.launch)}/log`;
    try {
      const answer = await fetch(`${path}?offset=${from}&limit=${this.first - from}`);
      if (!answer.ok) return;
      const begins = Number(answer.headers.get("X-Offset"));
      const old = await answer.text();
      $("follow").checked = false;
      const node = $("output");
      const fromEnd = node.scrollHeight - node.scrollTop;
      if (begins < this.first) this.text = old + this.text;
      this.first = begins === from ? from : 0; // older output was dropped
      this.show();
      node.dataset.ours = "1";
      node.scrollTop = node.scrollHeight - fromEnd;
    } catch {
      // the controller does not answer; the page shows that already
    }
  }
}
