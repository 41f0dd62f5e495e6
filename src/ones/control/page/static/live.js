// The event stream of a page: connects, shows when the controller does not answer, and reconnects.

import { $, setText } from "./dom.js";
import { clock } from "./format.js";

const SILENCE = 12000; // ms; the controller sends an event at least every 5 s
const HIDDEN = 60000; // a hidden tab closes its connection after this time, in ms
const NAMES = ["hello", "problems", "jobs", "cluster", "decisions", "story", "points", "used", "launches", "output", "tick"];

let ahead = 0; // controller's clock minus the browser's, in seconds
export const serverNow = () => Date.now() / 1000 + ahead;

/** `query()` returns the parameters of the stream each time it is opened. */
export class Live {
  constructor(handlers, query = () => ({})) {
    this.handlers = handlers;
    this.query = query;
    this.source = null;
    this.tries = 0;
    this.heard = 0;
    this.retry = null;
    document.addEventListener("visibilitychange", () => this.looked());
    window.addEventListener("online", () => this.soon(0));
    window.addEventListener("pagehide", () => this.close());
    window.addEventListener("pageshow", (event) => event.persisted && this.open());
    setInterval(() => this.check(), 1000);
    this.open();
  }

  open() {
    this.close();
    clearTimeout(this.retry);
    this.retry = null;
    const source = new EventSource(`/page/stream?${new URLSearchParams(this.query())}`);
    this.source = source;
    this.heard = Date.now();
    for (const name of NAMES) {
      source.addEventListener(name, (event) => {
        if (source === this.source) this.take(name, JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => source === this.source && this.lost());
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  take(name, data) {
    this.heard = Date.now();
    if (data && typeof data.now === "number") ahead = data.now - Date.now() / 1000;
    if (name === "hello") {
      this.tries = 0;
      this.connected();
    } else if (name === "problems") {
      setText($("problems"), data.join("; "));
      $("problems").hidden = !data.length;
    }
    this.handlers[name]?.(data);
  }

  connected() {
    document.body.classList.remove("is-away");
    $("away").hidden = true;
    $("connection").className = "pill is-good";
    setText($("connection"), "live");
  }

  lost() {
    this.close();
    if (!document.body.classList.contains("is-away")) this.since = serverNow();
    document.body.classList.add("is-away");
    $("connection").className = "pill is-bad";
    setText($("connection"), "controller away");
    this.tries += 1;
    this.soon(Math.min(10, 2 ** Math.min(this.tries, 4) / 2) * (0.8 + 0.4 * Math.random()));
    this.tell();
  }

  tell() {
    setText(
      $("away"),
      `The controller has not answered since ${clock(this.since)}. Training goes on without it; ` +
        "this page shows the state of that time and reconnects by itself.",
    );
    $("away").hidden = false;
  }

  soon(seconds) {
    if (this.source) return;
    clearTimeout(this.retry);
    this.retry = setTimeout(async () => {
      if (await this.isLoggedOut()) location.reload();
      else this.open();
    }, 1000 * seconds);
  }

  async isLoggedOut() {
    try {
      return (await fetch("/api/me")).status === 401;
    } catch {
      return false;
    }
  }

  check() {
    if (this.source && !document.hidden && Date.now() - this.heard > SILENCE) this.lost();
  }

  looked() {
    clearTimeout(this.parked);
    if (document.hidden) this.parked = setTimeout(() => this.close(), HIDDEN);
    else if (!this.source && !this.retry) this.open();
  }
}
