"""`ones bench convergence`: batch size and convergence, the paper's figures with real training.

Each case trains a network on MNIST-5k by `examples/batch_growth.py`, in its own process, because
only `train` may import torch. Two questions, as in the paper:

* workers: with a fixed local batch, more workers mean a larger global batch. How many epochs
  does it take to the target accuracy, with the learning rate unchanged and scaled?
* jump: batch and learning rate grow 16-fold, at once or step by step.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ones.errors import WorldError
from ones.extras import require
from ones.lab.installation import CHECKOUT

SCRIPT = CHECKOUT / "examples" / "batch_growth.py"
LOCAL_BATCH = 32
RATE = 0.02  # right for one worker; with momentum 0.9
TARGET, LIMIT = 0.94, 60  # accuracy to reach, and epochs after which a run gives up
CHANGE, EPOCHS = 8, 32  # epoch of the first change of the batch, and number of epochs
RAMP = 20  # steps in which the rate follows the batch: the library's default
SEEDS, QUICK_SEEDS = tuple(range(1000, 1005)), (1000, 1001)

Curve = list[dict[str, Any]]  # a line of the script for each epoch


@dataclass(frozen=True, slots=True)
class ConvergenceCase:
    """One curve of a figure."""

    figure: str  # `workers` or `jump`
    name: str
    batches: str  # as the script takes them: epoch:batch,...
    workers: int = 1
    rule: str = "linear"
    ramp: int = 0
    quick: bool = True  # part of a quick run

    def arguments(self, seeds: Sequence[int]) -> list[str]:
        ends = ["--epochs", str(EPOCHS)]
        if self.figure == "workers":
            ends = ["--epochs", str(LIMIT), "--target", str(TARGET)]
        return [
            *("--batches", self.batches, "--base-batch", str(LOCAL_BATCH), "--rate", str(RATE)),
            *("--rule", self.rule, "--ramp", str(self.ramp), *ends),
            *("--seeds", ",".join(str(seed) for seed in seeds)),
        ]


def _workers(count: int, rule: str) -> ConvergenceCase:
    rate = "rate unchanged" if rule == "none" else "rate follows"
    name = f"{count} x {LOCAL_BATCH}, {rate}"
    batches = f"0:{count * LOCAL_BATCH}"
    return ConvergenceCase("workers", name, batches, count, rule, quick=count in (1, 4, 16))


def _growth(*changes: tuple[int, int]) -> str:
    """Factors on the batch, by epochs after the first change."""
    later = [f"{CHANGE + epoch}:{LOCAL_BATCH * factor}" for epoch, factor in changes]
    return ",".join([f"0:{LOCAL_BATCH}", *later])


ONE_WORKER, STEADY = _workers(1, "none"), ConvergenceCase("jump", "batch stays", _growth())
CASES = (
    ONE_WORKER,
    *(_workers(count, rule) for rule in ("none", "linear") for count in (2, 4, 8, 16)),
    # as the scheduler does: starts with one worker, at most doubles after an epoch
    ConvergenceCase(
        "workers",
        f"1 to 16 x {LOCAL_BATCH}, doubled each epoch, rate follows",
        ",".join(f"{epoch}:{LOCAL_BATCH * 2**epoch}" for epoch in range(5)),
        16,
        ramp=RAMP,
    ),
    STEADY,
    ConvergenceCase("jump", "x16 at once", _growth((0, 16))),
    ConvergenceCase("jump", "x16 at once, rate ramped", _growth((0, 16)), ramp=RAMP, quick=False),
    ConvergenceCase(
        "jump", "x16 at once, rate unchanged", _growth((0, 16)), rule="none", quick=False
    ),
    ConvergenceCase("jump", "x4 twice, 8 epochs apart", _growth((0, 4), (8, 16))),
    ConvergenceCase(
        "jump",
        "x2 four times, 1 epoch apart, rate ramped",
        _growth((0, 2), (1, 4), (2, 8), (3, 16)),
        ramp=RAMP,
    ),
)


def bench_convergence(
    *,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[list[dict[str, Any]], dict[str, list[Curve]]]:
    """A row for each case, and its curves: by name of the case, one for each seed."""
    require("ones bench convergence", "torch", "mlxtend")
    cases = [case for case in CASES if case.quick or not quick]
    chosen = tuple(seeds or (QUICK_SEEDS if quick else SEEDS))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # processes of one thread each
        waiting = [pool.submit(_curves, case, chosen) for case in cases]
        curves = {}
        for case, found in zip(cases, waiting, strict=True):
            curves[case.name] = found.result()
            progress(f"{case.figure}: {case.name}")
    return rows_of(cases, curves), curves


def rows_of(
    cases: Sequence[ConvergenceCase], curves: dict[str, list[Curve]]
) -> list[dict[str, Any]]:
    return [
        _workers_row(case, curves[case.name], curves[ONE_WORKER.name])
        if case.figure == "workers"
        else _jump_row(case, curves[case.name], curves[STEADY.name])
        for case in cases
    ]


def save_curves(file: Path, curves: dict[str, list[Curve]]) -> None:
    """Writes the epochs of each seed by case. A loss that is not finite becomes null."""
    lines = {
        name: [
            [
                line | {"loss": line["loss"] if math.isfinite(line["loss"]) else None}
                for line in curve
            ]
            for curve in group
        ]
        for name, group in curves.items()
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(lines, allow_nan=False))
    except OSError as error:
        raise WorldError(f"{file}: {error.strerror}") from None


def _curves(case: ConvergenceCase, seeds: Sequence[int]) -> list[Curve]:
    if not SCRIPT.is_file():
        raise WorldError(f"{SCRIPT}: not there; run this from a checkout of the sources")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *case.arguments(seeds)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise WorldError(f"{SCRIPT.name} ended with {done.returncode}: {last}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [[line for line in lines if line["seed"] == seed] for seed in seeds]


def _row(case: ConvergenceCase, curves: list[Curve]) -> dict[str, Any]:
    last = [curve[-1] for curve in curves]
    return {
        "case": case.name,
        "figure": case.figure,
        "workers": case.workers,
        "batches": case.batches,
        "rule": case.rule,
        "ramp_steps": case.ramp,
        "n": len(curves),
        "diverged": sum(not all(math.isfinite(line["loss"]) for line in c) for c in curves),
        **spread("final_accuracy", [line["accuracy"] for line in last]),
    }


def _workers_row(case: ConvergenceCase, curves: list[Curve], rival: list[Curve]) -> dict[str, Any]:
    epochs = [float(len(curve)) for curve in curves]
    one_worker = fmean(len(curve) for curve in rival)
    return {
        **_row(case, curves),
        "target_accuracy": TARGET,
        "reached": sum(curve[-1]["accuracy"] >= TARGET for curve in curves),
        **spread("epochs_to_target", epochs),
        "rival": ONE_WORKER.name,
        "rival_epochs_to_target": round(one_worker, 2),
        "ratio": round(fmean(epochs) / one_worker, 2),
    }


def _jump_row(case: ConvergenceCase, curves: list[Curve], rival: list[Curve]) -> dict[str, Any]:
    peaks, steady = ([peak_loss(curve) for curve in group] for group in (curves, rival))
    steady_peak = fmean(steady)
    return {
        **_row(case, curves),
        **spread("loss_before", [curve[CHANGE - 1]["loss"] for curve in curves]),
        **spread("peak_loss", peaks),
        **spread("epochs_to_recover", [epochs_to_recover(curve) for curve in curves]),
        "rival": STEADY.name,
        "rival_peak_loss": round(steady_peak, 4),
        "ratio": round(fmean(peaks) / steady_peak, 2) if math.isfinite(fmean(peaks)) else None,
        "losses": [_median([curve[e]["loss"] for curve in curves]) for e in range(EPOCHS)],
    }


def _median(values: Sequence[float]) -> float | None:
    """The median: a single run that never recovers would dominate the mean."""
    middle = median(value if math.isfinite(value) else math.inf for value in values)
    return round(middle, 4) if math.isfinite(middle) else None


def peak_loss(curve: Curve) -> float:
    """The highest training loss of an epoch after the first change; infinite if it diverged."""
    losses = [line["loss"] for line in curve[CHANGE:]]
    return max(losses) if all(math.isfinite(loss) for loss in losses) else math.inf


def epochs_to_recover(curve: Curve) -> float:
    """Epochs until the loss is back at its value before the change; all epochs if it never is."""
    before = curve[CHANGE - 1]["loss"]
    after = curve[CHANGE:]
    return float(
        next((place for place, line in enumerate(after) if line["loss"] <= before), len(after))
    )


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean, lowest and highest; null for numbers that are not finite, which JSON cannot hold."""
    found = {name: fmean(values), f"{name}_low": min(values), f"{name}_high": max(values)}
    return {key: round(v, 4) if math.isfinite(v) else None for key, v in found.items()}
