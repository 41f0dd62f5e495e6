"""`ones bench overhead`: step time of an elastic job compared with DistributedDataParallel.

Blocks of steps of both alternate in the same processes (`ones.train.bench.step_overhead`). The
measure is CPU time summed over all workers, which hardly depends on the load of the machine; wall
time is reported too. The processes are started several times, because their memory layout changes
the step time of either side by some percent.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.errors import WorldError
from ones.extras import require
from ones.lab.bench.elastic.watched_run import run_until
from ones.lab.scripted_policy import SchedulePhase

STARTS, PAIRS = 3, 20  # starts of the processes, pairs of blocks per start
STEPS = {"cnn": 40, "transformer": 4, "mlp": 4}  # steps of a block: some tenths of a second
MODELS, QUICK_MODELS = tuple(STEPS), ("cnn",)
WORKERS, QUICK_WORKERS = (1, 2, 4), (1, 2)
RIVAL = "DistributedDataParallel(gradient_as_bucket_view=True)"


def bench_overhead(
    models: Sequence[str] = MODELS,
    workers: Sequence[int] = WORKERS,
    *,
    starts: int = STARTS,
    pairs: int = PAIRS,
    steps: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    require("ones bench overhead", "torch")
    rows = []
    for model in models:
        for count in workers:
            size = steps or STEPS[model]
            found = [_measure(model, count, pairs, size) for _ in range(starts)]
            table = {
                name: np.concatenate([part[name] for part, _ in found]) for name in found[0][0]
            }
            rows.append(_row(model, count, table, fmean(cost for _, cost in found)))
            progress(f"{model}: {count} workers")
    return rows


Pairs = dict[str, NDArray[np.float64]]


def _measure(model: str, workers: int, pairs: int, steps: int) -> tuple[Pairs, float]:
    """CPU time summed over the workers, wall time of the slowest, and the cost of elasticity."""
    with tempfile.TemporaryDirectory(prefix="ones-bench-") as temporary:
        out = Path(temporary) / "out"
        out.mkdir()

        def is_done() -> bool:
            return len(list(out.glob("*.done"))) == workers

        outcome = run_until(
            lambda outcome: is_done(),
            "ones.train.bench.step_overhead",
            [
                *("--model", model, "--workers", str(workers), "--pairs", str(pairs)),
                *("--steps", str(steps), "--out", str(out)),
            ],
            [SchedulePhase(0, workers)],
            Path(temporary),
            out,
        )
        if not is_done():
            ends = [exit.describe() for exit in outcome.exits.values()]
            raise WorldError(f"{model} with {workers} workers did not finish: {ends}")
        files = [path.read_text().splitlines() for path in sorted(out.glob("*.jsonl"))]
    lines = [[json.loads(text) for text in file] for file in files]
    blocks = [[line for line in file if "elastic" not in line] for file in lines]
    cost = fmean(line["elastic"] for file in lines for line in file if "elastic" in line)
    table: Pairs = {}
    for name in ("ours_cpu", "rival_cpu", "ours_wall", "rival_wall"):
        values = np.array([[block[name] for block in file] for file in blocks])
        table[name] = values.sum(axis=0) if name.endswith("cpu") else values.max(axis=0)
    return table, cost


def _row(model: str, workers: int, table: Pairs, cost: float) -> dict[str, Any]:
    cpu, cpu_low, cpu_high = more_percent(table["ours_cpu"], table["rival_cpu"])
    wall, wall_low, wall_high = more_percent(table["ours_wall"], table["rival_wall"])
    return {
        "case": f"{model}, {workers} workers",
        "model": model,
        "workers": workers,
        "n": len(table["ours_cpu"]),
        "step_ms": _ms(table["ours_cpu"] / workers),
        "wall_step_ms": _ms(table["ours_wall"]),
        "rival": RIVAL,
        "rival_step_ms": _ms(table["rival_cpu"] / workers),
        "rival_wall_step_ms": _ms(table["rival_wall"]),
        "ratio": round(1 + cpu / 100, 4),
        "overhead_percent": round(cpu, 2),
        "overhead_percent_low": round(cpu_low, 2),
        "overhead_percent_high": round(cpu_high, 2),
        "wall_overhead_percent": round(wall, 2),
        "wall_overhead_percent_low": round(wall_low, 2),
        "wall_overhead_percent_high": round(wall_high, 2),
        "elastic_us_per_step": round(1e6 * cost, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _ms(seconds: NDArray[np.float64]) -> float:
    return round(1000 * float(np.median(seconds)), 3)


def more_percent(
    ours: NDArray[np.float64], rival: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Median of the paired ratios minus one, in percent, with its 95 % bootstrap interval.

    >>> more_percent(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    (100.0, 100.0, 100.0)
    """
    ratios = ours / rival
    draws = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    middle, low, high = (100 * (float(x) - 1) for x in (np.median(ratios), low, high))
    return middle, low, high
