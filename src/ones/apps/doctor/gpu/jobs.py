"""Runs the jobs of the acceptance run, each under a watchdog, and reads their workers' notes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.lab.elastic_run import ElasticRun, RunOutcome
from ones.lab.fork_launcher import ForkLauncher
from ones.lab.scripted_policy import parse_schedule
from ones.launchers import Launcher, Slot
from ones.launchers.local import LocalLauncher
from ones.train.acceptance.case import OUT, VARIABLE, Case

_POLL_SECONDS = 0.05
_STACKS_SECONDS = 1.0  # for the workers of a job that hangs to write their stacks
_LINES = 40  # of the output of a job that failed
SCRIPT = ("-m", "ones.train.acceptance.script")

Note = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the jobs run. `zygote`: forks all workers, on the emulated GPU only."""

    slots: tuple[Slot, ...]
    is_emulated: bool
    environment: Mapping[str, str]
    zygote: str | None = None

    def launcher(self, directory: Path) -> Launcher:
        if self.zygote is not None:
            return ForkLauncher(self.zygote, directory, list(self.slots))
        return LocalLauncher(directory, self.slots)


@dataclass(slots=True)
class JobReport:
    """What a job left behind."""

    outcome: RunOutcome
    notes: list[Note]
    result: Note | None = None
    problem: str = ""
    output: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def states(self) -> list[list[Note]]:
        return groups_of_states(self.notes)

    @property
    def has_equal_states(self) -> bool:
        return all(len({note["digest"] for note in group}) == 1 for group in self.states)

    @property
    def largest_group(self) -> int:
        return max((len(group) for group in self.states), default=0)

    def of(self, kind: str) -> list[Note]:
        return [note for note in self.notes if note["kind"] == kind]


def groups_of_states(notes: Sequence[Note]) -> list[list[Note]]:
    """The notes on state of each complete group, by step: all its members have written one."""
    found: dict[tuple[int, int], dict[int, Note]] = defaultdict(dict)
    for note in notes:
        if note["kind"] == "state":
            found[note["step"], note["workers"]][note["pid"]] = note
    full = [(key, group) for key, group in sorted(found.items()) if len(group) >= key[1]]
    return [list(group.values()) for _, group in full]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job, and when it has done its work. It hangs if it takes more than `patience` seconds."""

    case: Case
    schedule: str
    until: Callable[[Sequence[Note]], bool]
    patience: float = 120.0
    exact: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    script: Sequence[str] = SCRIPT


def run_job(machine: Machine, directory: Path, plan: JobPlan) -> JobReport:
    """Trains until `plan.until` holds for the notes of the workers."""
    out = directory / "notes"
    out.mkdir(parents=True)
    given = {**os.environ, **machine.environment, **plan.environment}
    run = ElasticRun(
        [sys.executable, *plan.script],
        parse_schedule(plan.schedule, len(machine.slots)),
        slots=len(machine.slots),
        directory=directory,
        exact=plan.exact,
        env={**given, VARIABLE: plan.case.to_text(), OUT: str(out)},
        cwd=directory,
        launcher=machine.launcher(directory / "launcher"),
        shows_output=False,
    )
    over = threading.Event()
    watchdog = _Watchdog(run, out, plan, over)
    thread = threading.Thread(target=watchdog.watch, name="ones-watchdog", daemon=True)
    began = time.monotonic()
    thread.start()
    problem = ""
    try:
        run.run()
    except WorldError as error:
        problem = str(error)
    finally:
        over.set()
        thread.join()
    report = JobReport(run.outcome, read_notes(out), seconds=time.monotonic() - began)
    with suppress(OSError):
        report.result = json.loads((out / "result.json").read_text())
    report.problem = problem or watchdog.problem
    if not report.problem and not run.outcome.done:
        ends = [exit.describe() for exit in run.outcome.exits.values() if not exit.clean]
        report.problem = f"the job did not finish: {ends[-1] if ends else 'no worker ended'}"
    elif not report.problem and report.result is None:
        report.problem = "the job left no result"
    if report.problem:
        report.output = last_lines(directory)
    return report


class _Watchdog:
    """Ends the job when it has done its work, and interrupts it when it hangs."""

    def __init__(
        self,
        run: ElasticRun,
        out: Path,
        plan: JobPlan,
        over: threading.Event,
    ) -> None:
        self._run, self._out, self._over = run, out, over
        self._until, self._patience = plan.until, plan.patience
        self.problem = ""

    def watch(self) -> None:
        deadline, is_ending = time.monotonic() + self._patience, False
        while not self._over.wait(_POLL_SECONDS):
            if not is_ending and self._until(read_notes(self._out)):
                is_ending = True
                self._run.finish()
            if time.monotonic() > deadline:
                self.problem = f"the job hung: it did not end within {self._patience:.0f} s"
                self._write_stacks()
                self._run.interrupt()
                return

    def _write_stacks(self) -> None:
        for pid in {note["pid"] for note in read_notes(self._out)}:
            with suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(_STACKS_SECONDS)


def read_notes(out: Path) -> list[Note]:
    found: list[Note] = []
    for path in sorted(out.glob("notes-*.jsonl")):
        text = path.read_text()
        found += [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]
    return found


def last_lines(directory: Path) -> list[str]:
    """The last lines of output of each worker, for the report."""
    found: list[str] = []
    for path in sorted(directory.glob("launcher/**/output*")):
        with suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()[-_LINES:]
            found += [f"{path.parent.name}: {line}" for line in lines]
    return found
