"""`ones bench rescale`: the pause of a job when its workers change, in place and by restarts.

The pause is the time from the end of the last step with the old workers to the moment at which
the staying workers may begin the first step with the new ones; the longest counts. All mechanisms
go through the same sizes, 1 -> 2 -> 4 -> 2 -> 4 -> 1, in turns, in the same run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ones.errors import WorldError
from ones.extras import require
from ones.lab.bench.elastic.as_user import UserJobs
from ones.lab.bench.elastic.restarts import fresh, restarts, torchrun, zygote
from ones.lab.bench.elastic.step_traces import Pause, pauses_in_place, read_traces
from ones.lab.bench.elastic.watched_run import run_until
from ones.lab.elastic_run import RunOutcome
from ones.lab.scripted_policy import SchedulePhase
from ones.workload import paper_numbers

SIZES, QUICK_SIZES = (1.0, 50.0, 400.0), (1.0, 50.0)
CHAIN, GROWTH = (1, 2, 4, 2, 4, 1), (1, 2, 4)
COMPILED_CHAIN = (1, 2, 1)  # once: in each restart every worker compiles for tens of seconds
REPEATS = 3
BATCH = 16
CHECKPOINT, ZYGOTE, TORCHRUN = "checkpoint", "zygote", "torchrun"


@dataclass(frozen=True, slots=True)
class RescaleModel:
    """A multi-layer perceptron of a given size."""

    width: int
    depth: int
    compiled: bool = False  # by torch.compile

    @classmethod
    def of(cls, megabytes: float) -> RescaleModel:
        """The model of about this size: 8, 156 and 200 tensors at 1, 50 and 400 MB of parameters.

        >>> [(model.width, model.depth) for model in map(RescaleModel.of, (1, 50, 400))]
        [(256, 4), (400, 78), (1000, 100)]
        """
        width = 256 if megabytes < 10 else 400 if megabytes < 100 else 1000
        return cls(width, max(1, round(megabytes * 1e6 / (4 * width * (width + 1)))))

    @property
    def megabytes(self) -> float:
        return 4 * self.depth * self.width * (self.width + 1) / 1e6

    @property
    def arguments(self) -> list[str]:
        size = ["--width", str(self.width), "--depth", str(self.depth), "--batch", str(BATCH)]
        return [*size, "--compile"] if self.compiled else size


@dataclass(slots=True)
class MeasuredPauses:
    """Pauses of one kind of change, over all repeats."""

    pauses: list[Pause] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)

    def add(self, pause: Pause, parts: dict[str, float]) -> None:
        self.pauses.append(pause)
        self.parts.append(parts)

    def ms(self, value: Callable[[Pause], float] = lambda pause: pause.seconds) -> float:
        return 1000 * median(value(pause) for pause in self.pauses)

    def parts_ms(self, prefix: str) -> dict[str, float]:
        names = self.parts[0]
        return {
            f"{prefix}{name}_ms": round(1000 * median(parts[name] for parts in self.parts), 2)
            for name in names
        }


Table = dict[tuple[str, int, int], MeasuredPauses]  # mechanism ("": in place), before, after


def paper_sizes() -> tuple[float, ...]:
    """Sizes of the models of the paper's workload, in megabytes of 32-bit parameters."""
    kinds = paper_numbers().kinds.values()
    return tuple(sorted({round(4 * kind.parameters / 1e6, 0) for kind in kinds}))


def bench_rescale(
    sizes: Sequence[float] = SIZES,
    *,
    repeats: int = REPEATS,
    chain: Sequence[int] = CHAIN,
    with_torchrun: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for each size, change and rival; for the smallest size also with torch.compile."""
    require("ones bench rescale", "torch")
    rows = []
    for megabytes, compiled in [*((size, False) for size in sizes), (min(sizes), True)]:
        model, table, loads = RescaleModel.of(megabytes), Table(), [os.getloadavg()[0]]
        model = replace(model, compiled=compiled)
        sizes_of_group = COMPILED_CHAIN if compiled else chain
        count = 1 if compiled else repeats
        for repeat in range(count):
            _measure(model, sizes_of_group, table, with_torchrun=with_torchrun and not compiled)
            loads.append(os.getloadavg()[0])
            name = f"{megabytes:g} MB{', compiled' if compiled else ''}"
            progress(f"{name}: {repeat + 1} of {count}")
        rows += rows_of(megabytes, model, table, fmean(loads))
    return rows


def steps_between(model: RescaleModel) -> int:
    """Steps between two changes."""
    return 4 if model.megabytes > 100 else 8


def _measure(
    model: RescaleModel, chain: Sequence[int], table: Table, *, with_torchrun: bool
) -> None:
    steps = steps_between(model)

    def note(mechanism: str, pause: Pause, parts: dict[str, float]) -> None:
        table.setdefault((mechanism, pause.before, pause.after), MeasuredPauses()).add(pause, parts)

    with tempfile.TemporaryDirectory(prefix="ones-bench-") as temporary:
        home = Path(temporary)
        for pause, parts in in_place(model, chain, steps, home / "in-place"):
            note("", pause, parts)
        for pause, parts in restarts(fresh, chain, model.arguments, steps, home / CHECKPOINT):
            note(CHECKPOINT, pause, parts)
        (home / "fork").mkdir()
        with zygote(home / "fork") as start:
            for pause, parts in restarts(start, chain, model.arguments, steps, home / ZYGOTE):
                note(ZYGOTE, pause, parts)
        if with_torchrun:
            for pause in torchrun(GROWTH, model.arguments, home / TORCHRUN):
                note(TORCHRUN, pause, {})


def in_place(
    model: RescaleModel,
    chain: Sequence[int],
    steps: int,
    directory: Path,
    user: UserJobs | None = None,
) -> list[tuple[Pause, dict[str, float]]]:
    """The pauses and their parts of one elastic job that goes through the sizes of the chain.

    `user`: the job runs as this Unix user.
    """
    out = directory / "out"
    out.mkdir(parents=True)
    if user is not None:
        os.chown(out, user.user.pw_uid, user.user.pw_gid)

    def is_done(outcome: RunOutcome) -> bool:
        """Every switch was reported, and its first step was recorded."""
        switched = len(outcome.switches) >= len(chain)
        return switched and len(pauses_in_place(read_traces(out))) >= len(chain) - 1

    outcome = run_until(
        is_done,
        "ones.train.bench.rescale_elastic",
        [*model.arguments, "--out", str(out)],
        [SchedulePhase(steps * number, workers) for number, workers in enumerate(chain)],
        directory,
        directory,
        user,
    )
    pauses = pauses_in_place(read_traces(out))
    if len(pauses) != len(chain) - 1:
        ends = [exit.describe() for exit in outcome.exits.values() if not exit.clean]
        raise WorldError(f"{len(pauses)} of {len(chain) - 1} rescales completed: {ends}")
    return [(pause, _parts(pause, outcome, number)) for number, pause in enumerate(pauses, 1)]


def _parts(pause: Pause, outcome: RunOutcome, number: int) -> dict[str, float]:
    """Parts of the first worker's pause, and of the work in the background before it."""
    parts = outcome.switches[number][1].parts
    left = max(0.0, pause.main - parts["state"])
    agree = min(parts["wait"] + parts["agree"], left)  # begins before the step has returned
    return {
        "agree": agree,
        "connect": 0.0,  # the next group exists before all agree
        "state": parts["state"],
        "resume": left - agree,
        "background_connect": parts["connect_in_background"],
        # state that was sent to joining workers while training
        "background_feed": parts.get("fed_in_background", 0.0),
        # time that the optimizer waited for this transfer, which makes these steps longer
        "optimizer_held": parts.get("optimizer_held", 0.0),
    }


def rows_of(
    megabytes: float, model: RescaleModel, table: Table, load: float
) -> list[dict[str, Any]]:
    rows = []
    for (mechanism, before, after), rival in sorted(table.items()):
        if not mechanism:
            continue
        ours = table["", before, after]
        seconds = [1000 * pause.seconds for pause in ours.pauses]
        theirs = [1000 * pause.seconds for pause in rival.pauses]
        rows.append(
            {
                "case": f"{megabytes:g} MB{' compiled' if model.compiled else ''}"
                f" {before}->{after}",
                "compiled": model.compiled,
                "parameter_mb": round(model.megabytes, 1),
                "change": f"{before}->{after}",
                "n": len(ours.pauses),
                "pause_ms": round(ours.ms(), 2),
                "pause_ms_low": round(min(seconds), 2),
                "pause_ms_high": round(max(seconds), 2),
                **ours.parts_ms(""),
                "slowed_ms": round(ours.ms(lambda pause: pause.slowed), 1),
                "until_stepped_ms": round(ours.ms(lambda pause: pause.until_stepped), 1),
                "first_step_extra_ms": round(ours.ms(lambda pause: pause.first_step_extra), 1),
                "rival": mechanism,
                "rival_n": len(rival.pauses),
                "rival_pause_ms": round(rival.ms(), 1),
                "rival_pause_ms_low": round(min(theirs), 2),
                "rival_pause_ms_high": round(max(theirs), 2),
                **rival.parts_ms("rival_"),
                "rival_until_stepped_ms": round(rival.ms(lambda p: p.until_stepped), 1),
                "rival_first_step_extra_ms": round(rival.ms(lambda p: p.first_step_extra), 1),
                "rival_steps_lost": round(median(pause.lost for pause in rival.pauses), 1),
                "ratio": round(rival.ms() / ours.ms(), 1),
                "load_average": round(load, 1),
            }
        )
    return rows
