"""The checks that train: equal results, random switches, drills, costs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from ones.apps.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding
from ones.apps.doctor.gpu.jobs import (
    JobPlan,
    JobReport,
    Machine,
    Note,
    groups_of_states,
    run_job,
)
from ones.train.acceptance.case import (
    DEVICE_ASSERT,
    KILL,
    OUT_OF_MEMORY,
    STOP,
    Case,
    Drill,
)

_ROUNDED = {"dtype": "float32", "tolerance": 0.1}  # in half precision
EQUAL = {
    "sgd": Case(),
    "sgd, foreach": Case(variant="foreach"),
    "sgd, fused": Case(variant="fused"),
    "adamw": Case(optimizer="adamw"),
    "adamw, foreach": Case(optimizer="adamw", variant="foreach"),
    "adamw, fused": Case(optimizer="adamw", variant="fused"),
    "adamw, capturable": Case(optimizer="adamw", variant="capturable"),
    "bf16 autocast": Case(autocast="bfloat16", **_ROUNDED),  # type: ignore[arg-type]
    "fp16 and gradient scaler": Case(autocast="float16", **_ROUNDED),  # type: ignore[arg-type]
    "channels_last": Case(layers="conv", channels_last=True),
    "SyncBatchNorm": Case(layers="conv", sync_norm=True, tolerance=1e-6),
    "torch.compile": Case(dtype="float32", compiled="inductor", tolerance=0.01),
}
DRILLS = {
    "kill": KILL,
    "stop": STOP,
    "out of memory": OUT_OF_MEMORY,
    "device assert": DEVICE_ASSERT,
}
_EQUAL_SCHEDULE = "0:1x16,10:2x16,25:1x16"
_EQUAL_STEPS = 40
_DRILL_SCHEDULE = "0:2x16,14:1x16,16:2x16"
_HANG_SECONDS = {True: "4", False: "15"}  # by: is it emulated
_SEED = 24
_SPACING = 30  # steps between random switches
_LEAK_BYTES = 64 << 10  # per switch
_SLOWER = 1.05  # than DDP: a warning


class Training:
    """Runs the jobs; keeps what several checks read."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self._machine, self._directory = machine, directory
        self._count = 0
        self.pids: set[int] = set()
        self.details: dict[str, list[str]] = {}  # check -> output of its job, if it failed
        self._switching: JobReport | None = None

    def equal(self, name: str) -> Finding:
        """1 -> 2 -> 1 workers give the result of one process."""
        case = replace(EQUAL[name], nap_seconds=0.0)
        is_eager = case.compiled and self._machine.is_emulated
        if is_eager:
            case = replace(case, compiled="eager")
        report = self._run(JobPlan(
            case=case, schedule=_EQUAL_SCHEDULE, exact=True,
            until=lambda notes: _newest_step(notes) >= _EQUAL_STEPS and _groups(notes) >= 3,
        ))  # fmt: skip
        what = " (backend eager: no code is generated for an emulated GPU)" if is_eager else ""
        return self._judge(f"equal: {name}", report, case, "1 -> 2 -> 1 workers" + what)

    def random_switches(self) -> Finding:
        count, most = (8, 2) if self._machine.is_emulated else (120, len(self._machine.slots))
        nap = 0.01 if self._machine.is_emulated else 0.02
        case = Case(optimizer="adamw", nap_seconds=nap, most_steps=1_000_000, tolerance=1e-6)
        schedule = random_schedule(count, most)
        report = self._run(JobPlan(
            case=case, schedule=schedule, until=lambda notes: _groups(notes) > count,
            patience=420.0,
        ))  # fmt: skip
        if not report.problem:
            self._switching = report
        what = f"{count} switches among 1 to {most} workers, seed {_SEED}"
        return self._judge("random switches", report, case, what)

    def drill(self, name: str) -> Finding:
        """A worker fails in a step of two; the job goes on, and grows again."""
        case = Case(optimizer="adamw", drill=Drill(fault=DRILLS[name]), nap_seconds=0.02)
        hang = {"ONES_HANG_SECONDS": _HANG_SECONDS[self._machine.is_emulated]}
        report = self._run(JobPlan(
            case=case, schedule=_DRILL_SCHEDULE, until=lambda notes: _groups(notes, 2) >= 2,
            environment=hang if name == "stop" else {},
        ))  # fmt: skip
        lost = [s for message, s in report.outcome.switches if message.incarnation]
        if not report.problem and not lost:
            report.problem = "the fault did not end the worker"
        seconds = f"{lost[0].pause_seconds:.1f} s" if lost else "never"
        what = f"1 of 2 workers lost, the other went on after {seconds}, then 2 again"
        return self._judge(f"drill: {name}", report, case, what)

    def pause(self) -> Finding:
        report = self._switching
        if report is None:
            return _missing("pause")
        sizes = [len(s.members) for _, s in report.outcome.switches]
        pauses = [1000 * s.pause_seconds for _, s in report.outcome.switches]
        changes = list(zip(sizes, sizes[1:], pauses[1:], strict=False))
        grow = [pause for a, b, pause in changes if b > a]
        shrink = [pause for a, b, pause in changes if b < a]
        text = f"growing {_spread(grow)}, shrinking {_spread(shrink)}"
        return Finding("pause", OK, text)

    def first_step(self) -> Finding:
        report = self._switching
        if report is None:
            return _missing("first step")
        steps = report.of("step")
        plain = [1000 * n["seconds"] for n in steps if not n["first"]]
        first = [1000 * n["seconds"] for n in steps if n["first"] and n["step"] > 0]
        more = median(first) - median(plain)
        text = (
            f"the first step after a switch takes {_spread(first)}, others {_spread(plain)}:"
            f" {more:+.1f} ms"
        )
        return Finding("first step", OK, text)

    def leaks(self) -> Finding:
        """Memory of the worker that stays, when it is alone: late switches against early ones."""
        name, report = "memory per switch", self._switching
        if report is None:
            return _missing(name)
        states = [n for n in report.of("state") if n["worker"] == "local/0" and n["workers"] == 1]
        used = [n["memory"] for n in states][1:]  # the optimizer has no state at the first
        half = len(used) // 2
        if not half:
            return Finding(name, NOTE, "too few switches to tell")
        early, late = used[:half], used[half:]
        # the least: a gradient that is kept for a measurement is no leak
        per = {
            kind: (min(u[kind] for u in late) - min(u[kind] for u in early)) / len(late)
            for kind in ("tensors", "device")
        }
        text = f"{per['tensors']:,.0f} bytes of tensors and {per['device']:,.0f} in all per switch"
        is_leak = per["tensors"] > _LEAK_BYTES or per["device"] > 16 * _LEAK_BYTES
        return Finding(name, PROBLEM if is_leak else OK, text)

    def overhead(self) -> Finding:
        name = "overhead"
        case = Case(compare_with_ddp=True, nap_seconds=0.0, dtype="float32", tolerance=0.01)
        if not self._machine.is_emulated:
            case = replace(case, width=4096, batch=512, samples=5120)
        report = self._run(JobPlan(
            case=case, schedule=f"0:2x{case.batch}",
            until=lambda notes: _count(notes, "overhead") >= 6,
        ))  # fmt: skip
        if report.problem:
            return self._failed(name, report)
        elastic = median(1000 * n["elastic"] for n in report.of("overhead"))
        ddp = median(1000 * n["ddp"] for n in report.of("overhead"))
        text = f"a step of 2 workers takes {elastic:.2f} ms, with DDP {ddp:.2f} ms"
        if self._machine.is_emulated:
            return Finding(name, NOTE, f"{text} (DDP on the CPU: not to be compared)")
        status = WARNING if elastic > _SLOWER * ddp else OK
        return Finding(name, status, f"{text}: {100 * (elastic / ddp - 1):+.1f} %")

    def synchronisations(self) -> Finding:
        name = "synchronisations"
        report = self._run(JobPlan(
            case=Case(optimizer="adamw", count_waits=True), schedule="0:2x16",
            until=lambda notes: _count(notes, "waits") >= 2,
        ))  # fmt: skip
        if report.problem or report.result is None:
            return self._failed(name, report)
        waits = [count for note in report.of("waits") for count in note["of_steps"]]
        parameters, usual, most = report.result["parameters"], median(waits), max(waits)
        text = (
            f"the host waits for the device {usual:g} times in a step (at most {most}, in steps"
            f" that measure the gradient noise; {parameters} parameters)"
        )
        return Finding(name, OK if usual <= 1 and most <= 2 else WARNING, text)

    # jobs and their judgement

    def _run(self, plan: JobPlan) -> JobReport:
        self._count += 1
        report = run_job(self._machine, self._directory / f"job-{self._count}", plan)
        self.pids |= {note["pid"] for note in report.notes}
        return report

    def _judge(self, name: str, report: JobReport, case: Case, what: str) -> Finding:
        if report.problem or report.result is None:
            return self._failed(name, report)
        apart, groups = report.result["difference"], len(report.states)
        text = f"{what}; {apart:.1e} from one process in {report.result['steps']} steps"
        if not report.has_equal_states:
            text = f"{what}; states of workers differ after a switch"
        elif apart <= case.tolerance and report.largest_group > 1:
            return Finding(name, OK, f"{text}; equal digests in {groups} groups")
        self.details[name] = [str(note) for note in report.of("state")]
        advice = "training would go wrong: do not use several GPUs per job, and report this"
        return Finding(name, PROBLEM, f"{text} (allowed: {case.tolerance:g})", advice)

    def _failed(self, name: str, report: JobReport) -> Finding:
        self.details[name] = report.output
        advice = "the report has the output of its workers: send it to the project"
        return Finding(name, PROBLEM, report.problem or "no result", advice)


def random_schedule(count: int, most: int) -> str:
    """A start and `count` switches, each to another number of workers."""
    chance = random.Random(_SEED)
    sizes = [1]
    while len(sizes) <= count:
        sizes.append(chance.choice([n for n in range(1, most + 1) if n != sizes[-1]]))
    return ",".join(f"{_SPACING * phase}:{size}x16" for phase, size in enumerate(sizes))


def _groups(notes: Sequence[Note], workers: int | None = None) -> int:
    return sum(workers in (None, len(group)) for group in groups_of_states(notes))


def _count(notes: Iterable[Note], kind: str) -> int:
    return sum(note["kind"] == kind for note in notes)


def _newest_step(notes: Iterable[Note]) -> int:
    return max((note["step"] for note in notes if note["kind"] == "step"), default=0)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "never"
    return f"{median(values):.1f} ms (at most {max(values):.1f}, n {len(values)})"


def _missing(name: str) -> Finding:
    return Finding(name, PROBLEM, "not measured: the random switches failed")
