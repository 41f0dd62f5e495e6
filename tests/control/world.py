"""The service as its users have it: another process, reached over HTTP, killed at will."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from ones.client.snapshot import Step, Uploaded, finished, upload
from ones.config import ServiceSettings
from ones.control.launching import stop_jobs
from ones.control.statedir import StateDir
from tests.processes import PATIENCE, Gate, alive_below, wait_for

PACED = str(Path(__file__).with_name("paced.py"))
ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


#: a request without a token
anyone = partial(httpx.request, timeout=PATIENCE)


def ends_told(story: Callable[[], list[str]]) -> list[str]:
    """The lines that tell of a job's end, which its card shows a moment before they are stored."""

    def ends() -> list[str]:
        return [line for line in story() if line.startswith("Ended")]

    return wait_for(ends, "its end is not told")


class World:
    """A state directory and, most of the time, a controller on it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.dir = StateDir(root / "state")
        self.settings: dict[str, Any] = {
            "state": str(self.dir.path),
            "port": 0,
            "slots": 4,
            "policy": "fifo",
            "grace_seconds": 1.0,
            "trusting": True,
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.env, self.python = dict(os.environ), sys.executable
        self.trust = ""  # a certificate's file
        self._gates = count(1)

    # the service

    def up(self) -> None:
        self.dir.make()
        with self.dir.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "ones.control.server"],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.env,
            )  # fmt: skip
        assert self.process.stdin is not None
        options = {"service": asdict(ServiceSettings(**self.settings)), "policy": {}}
        self.process.stdin.write(json.dumps(options).encode())
        self.process.stdin.close()
        pid = self.process.pid
        wait_for(
            lambda: ((a := self.dir.address()) is not None and a.pid == pid) or self.has_died(),
            f"it does not start: {self.dir.log}",
        )
        assert not self.has_died(), self.log()
        address = self.dir.address()
        assert address is not None
        token = self.dir.read_token()
        self.http = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
            verify=self.context(),
        )

    def context(self) -> ssl.SSLContext:
        """Trusts its certificate, if it has one."""
        own = self.dir.authority
        trusted = self.trust or (str(own) if own.exists() else None)
        return ssl.create_default_context(cafile=trusted)

    def has_died(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def log(self) -> str:
        return self.dir.log.read_text() if self.dir.log.exists() else ""

    def kill(self) -> None:
        """As a power cut would: no word, no clean-up. Workers stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.http.close()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.http.close()

    def restart(self) -> None:
        self.kill()
        self.up()

    def down(self) -> None:
        """All of it; nothing may be left."""
        if self.process is not None and not self.has_died():
            self.post("/api/shutdown", status=202)
            self.process.wait(PATIENCE)
            self.http.close()
        stop_jobs(self.dir)
        wait_for(lambda: not alive_below(self.root), f"left behind: {alive_below(self.root)}")

    # its users

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:  # noqa: ANN401
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def submit(self, *words: object, **more: Any) -> str:
        """A paced job: epochs, seconds of each, wishes."""
        command = [sys.executable, PACED, *map(str, words)]
        return self.run(command, **more)  # not declared elastic, so it needs no zygote

    def gate(self) -> Gate:
        """A new one, closed."""
        return Gate(self.root / f"gate{next(self._gates)}")

    def run(self, command: list[str], **more: Any) -> str:
        body = {"command": command, "cwd": str(self.root), "env": ENV, **more}
        body.setdefault("name", "job")
        return str(self.post("/api/jobs", body, 201)["id"])

    def upload(self, command: list[str], tree: Path, **env: str) -> Uploaded:
        """A snapshot of a working tree, for `run`."""

        def send(step: Step) -> Any:  # noqa: ANN401
            answer = self.http.request(
                step.method, step.path, params=dict(step.query), content=step.content
            )
            return answer.raise_for_status().json()

        return finished(upload(command, tree, {**ENV, **env}), send)

    def job(self, job: str) -> Any:  # noqa: ANN401
        return self.get(f"/api/jobs/{job}")

    def wait_state(self, job: str, *states: str, seconds: float = PATIENCE) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + seconds
        while True:
            card = self.job(job)
            if card["state"] in states:
                return card
            assert time.monotonic() < deadline, self.evidence(job)
            time.sleep(0.05)

    def wait_epochs(self, job: str, epochs: int) -> None:
        """Wait until the job has finished this many epochs. Fails at once if it ends before."""
        deadline = time.monotonic() + PATIENCE
        while (card := self.job(job))["epochs"] < epochs:
            assert card["ended_at"] is None, self.evidence(job)
            assert time.monotonic() < deadline, self.evidence(job)
            time.sleep(0.01)

    def evidence(self, job: str) -> str:
        """Card, processes, history and output of a job and the log of the controller, for the
        message of an assertion."""
        parts = {
            "card": self.job(job),
            "launches": self.launches(job),
            "history": "\n".join(self.story(job)[-50:]),
            "output": self.output(job)[-3000:],
            "log of the controller": self.log()[-10_000:],
        }
        return "\n".join(f"--- {name}\n{part}" for name, part in parts.items())

    def wait_end(self, job: str, seconds: float = PATIENCE) -> Any:  # noqa: ANN401
        ends = ("finished", "converged", "failed", "cancelled")
        return self.wait_state(job, *ends, seconds=seconds)

    def story(self, job: str) -> list[str]:
        return [line["text"] for line in self.get(f"/api/jobs/{job}/story")]

    def launches(self, job: str) -> Any:  # noqa: ANN401
        return self.get(f"/api/jobs/{job}/launches")

    def output(self, job: str) -> str:
        return "".join(
            self.http.get(f"/api/jobs/{job}/launches/{launch['id']}/log").text
            for launch in self.launches(job)
        )
