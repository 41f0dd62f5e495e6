"""A training process without training: it speaks the wire protocol and sleeps. Stdlib only.

    paced.py EPOCHS SECONDS_PER_EPOCH [wish...]

Wishes: `fail-at=N` exits with 3 in epoch N; `deaf` ignores SIGTERM and orders; `never-join`
does not call; `join-when=FILE`, `leave-when=FILE` and `end-when=FILE` wait for a file before they
join, leave, or finish the last epoch; `link=URL` reports a tracker's run. Rank 0 reports for all;
the number of finished epochs is kept in the job's checkpoint directory, so that later workers
continue from there.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# a collector of tests may import this, too
WORDS = sys.argv[1:] if __name__ == "__main__" else ["0", "0"]
ENV = os.environ.get
EPOCHS, SECONDS = int(WORDS[0]), float(WORDS[1])
WISHES = dict(w.partition("=")[::2] for w in WORDS[2:])
URL, TOKEN = ENV("ONES_CONTROLLER", ""), ENV("ONES_TOKEN", "")
ME, JOB = ENV("ONES_WORKER", ""), ENV("ONES_JOB", "")
KEPT = Path(ENV("ONES_CHECKPOINTS", "")) / "epochs"
DATASET, BATCH = 100, 10
TRUST = ssl.create_default_context() if URL.startswith("https") else None
if TRUST is not None and ENV("ONES_AUTHORITY"):
    TRUST.load_verify_locations(cadata=ENV("ONES_AUTHORITY"))


class Caller:
    def __init__(self) -> None:
        self.plan = int(os.environ["ONES_PLAN"])
        self.number = 0
        self.seen = 0
        self.orders: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def call(self, reports: list[dict[str, Any]], wait: float) -> None:
        body = {
            "type": "Reports",
            "job": JOB,
            "worker": ME,
            "plan": self.plan,
            "first": self.number + 1 if reports else 0,
            "reports": reports,
            "seen": self.seen,
        }
        request = urllib.request.Request(
            f"{URL}/worker/reports?wait={wait}",
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60, context=TRUST) as answer:
                    orders = json.load(answer)
                break
            except urllib.error.HTTPError as problem:
                if problem.code == 409:
                    print("no place", flush=True)
                    os._exit(0)
                time.sleep(0.1)
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)  # the controller is away or died within its answer: it comes back
        with self.lock:
            order = orders.get("order")
            if order is not None and order.get("plan", 0) > self.seen:
                self.seen = order["plan"]
                self.orders.append(order)

    def say(self, *reports: dict[str, Any]) -> None:
        self.call(list(reports), 0)
        self.number += len(reports)

    def listen(self) -> None:
        while True:
            self.call([], 5)

    def next_order(self) -> dict[str, Any] | None:
        with self.lock:
            return self.orders.pop(0) if self.orders else None


def wait_for_file(wish: str) -> None:
    while wish in WISHES and not os.path.exists(WISHES[wish]):
        time.sleep(0.01)


def finished() -> int:
    return int(KEPT.read_text()) if KEPT.exists() else 0


def keep(epoch: int) -> None:
    """As a checkpoint of real training: a full disk is waited for."""
    beside = KEPT.with_suffix(f".{os.getpid()}")
    while True:
        try:
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(str(epoch))
            beside.replace(KEPT)
        except OSError:
            time.sleep(0.1)
        else:
            return


class Trainer:
    def __init__(self) -> None:
        self.caller = Caller()
        self.members: list[str] = []
        self.began = time.monotonic()

    def obey(self, order: dict[str, Any]) -> bool:
        """False: it has to go."""
        if "deaf" in WISHES:
            return True
        if order["type"] == "CheckpointAndLeave":
            self.caller.say({"type": "Leaving"})
            print("saved", flush=True)
            return False
        if order["type"] != "Switch":
            print("ended:", order["reason"], flush=True)
            return False
        was_in = ME in self.members
        self.members = [member["worker"] for member in order["members"]]
        if ME not in self.members:
            wait_for_file("leave-when")
            self.caller.say({"type": "Leaving"})
            print("left", flush=True)
            return False
        self.caller.plan = order["plan"]
        if not was_in:
            self.caller.say({"type": "Ready"})
            if "link" in WISHES:
                self.caller.say({"type": "TrackerLink", "url": WISHES["link"]})
        if was_in or len(self.members) > 1:
            self.caller.say({"type": "Switched", "pause_seconds": 0.01})
        self.began = time.monotonic()
        return True

    def train(self) -> None:
        """Rank 0 does, as fast as all together."""
        if not self.members or self.members[0] != ME:
            return
        if time.monotonic() - self.began < SECONDS / len(self.members):
            return
        epoch = finished() + 1
        if epoch == EPOCHS and "end-when" in WISHES and not os.path.exists(WISHES["end-when"]):
            return
        self.began = time.monotonic()
        if WISHES.get("fail-at") == str(epoch):
            sys.exit(3)
        report = {"type": "Epoch", "epoch": epoch, "steps": DATASET // BATCH, "samples": DATASET}
        report |= {"loss": 1.0 / epoch, "accuracy": 1.0 - 0.5**epoch, "step_seconds": SECONDS / 10}
        self.caller.say(report)
        keep(epoch)
        print("epoch", epoch, flush=True)


def main() -> None:
    if "deaf" in WISHES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "never-join" in WISHES:
        wait_for_file("end-when")
        print("done without joining", flush=True)
        return
    wait_for_file("join-when")
    trainer = Trainer()
    caller = trainer.caller
    threading.Thread(target=caller.listen, daemon=True).start()
    joined = {"type": "Joined", "dataset_size": DATASET, "base_batch": BATCH}
    caller.say({**joined, "optimizer": "sgd", "parameter_bytes": 1000, "max_local_batch": 64})
    while finished() < EPOCHS:
        order = caller.next_order()
        if order is None:
            time.sleep(0.01)
        elif not trainer.obey(order):
            return
        trainer.train()
    caller.say({"type": "Leaving", "done": True})
    print("done", flush=True)


if __name__ == "__main__":
    main()
