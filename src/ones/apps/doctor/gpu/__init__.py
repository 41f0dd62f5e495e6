"""`ones doctor --gpu`: the acceptance run of elastic training on GPUs, or on emulated ones."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ones.apps.doctor.findings import PROBLEM, Finding, Findings
from ones.apps.doctor.gpu import machine as machines
from ones.apps.doctor.gpu.jobs import Machine
from ones.apps.doctor.gpu.training import DRILLS, EQUAL, Training


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """A finding with its duration and, if a job failed, the output of its workers."""

    finding: Finding
    seconds: float
    details: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.finding),
            "seconds": round(self.seconds, 1),
            "details": self.details,
        }


@contextlib.contextmanager
def acceptance_machine(*, emulate: bool) -> Iterator[tuple[Machine, Path]]:
    """The machine to check, and a directory for its jobs."""
    with tempfile.TemporaryDirectory(prefix="ones-gpu-") as name:
        directory = Path(name)
        if not emulate:
            yield machines.gpu_machine(), directory
            return
        with machines.emulated_machine(directory) as machine:
            yield machine, directory


def examine_gpus(
    machine: Machine, directory: Path, on_start: Callable[[str, int, int], None]
) -> Iterator[GpuCheck]:
    """The checks, one after the other. `on_start` gets each check's name, number and the total."""
    training = Training(machine, directory)
    before = {} if machine.is_emulated else machines.used_mb(machine)
    torch = machines.facts()
    checks = _checks(training, machine, torch, before)
    for number, (name, check) in enumerate(checks, 1):
        on_start(name, number, len(checks))
        began = time.monotonic()
        try:
            finding = check()
        except Exception as problem:
            finding = Finding(name, PROBLEM, f"{type(problem).__name__}: {problem}")
        seconds = time.monotonic() - began
        yield GpuCheck(finding, seconds, training.details.get(finding.name, []))


def _checks(
    training: Training, machine: Machine, torch: dict[str, Any], before: dict[str, int]
) -> list[tuple[str, Callable[[], Finding]]]:
    def one(check: Callable[[], Findings]) -> Callable[[], Finding]:
        return lambda: next(check())

    return [
        ("versions", one(partial(machines.versions, torch, machine))),
        ("GPUs", one(partial(machines.gpus, torch, machine))),
        ("MIG", one(partial(machines.mig, torch, machine))),
        ("P2P", one(partial(machines.p2p, torch, machine))),
        *[(f"equal: {name}", partial(training.equal, name)) for name in EQUAL],
        ("random switches", training.random_switches),
        *[(f"drill: {name}", partial(training.drill, name)) for name in DRILLS],
        ("pause", training.pause),
        ("first step", training.first_step),
        ("memory per switch", training.leaks),
        ("overhead", training.overhead),
        ("synchronisations", training.synchronisations),
        (
            "memory after leaving",
            one(lambda: machines.memory_after(machine, before, training.pids)),
        ),
    ]


__all__ = ["GpuCheck", "acceptance_machine", "examine_gpus"]
