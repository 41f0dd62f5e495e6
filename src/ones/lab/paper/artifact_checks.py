"""Checks of the replication: is the set-up that of the authors, and are their results met?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ones.lab.comparison.summary import Record
from ones.lab.paper.authors_claims import (
    COMPLETION_ORDER,
    FIRST_FIT,
    FIRST_FIT_WITHIN,
    JOBS,
    MEAN_GAP,
    QUEUEING_ORDER,
    RANGES,
    RATIOS,
    REQUESTED_GPU_SECONDS,
    REQUESTED_GPUS,
    TIRESIAS_RANGE,
)
from ones.lab.paper.authors_results import row_of_times
from ones.lab.runs import Run, RunSpec
from ones.sim.lengths import expected_seconds
from ones.workload import Trace, Training, numbers_of

OURS = "ones-artifact"
LARGE, PREDICTOR = f"{OURS}:a64", f"{OURS}:predictor"

Runs = Mapping[str, Sequence[Record]]  # label -> its runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A value and its range. `ok` is None if the value or the range is not known."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def ok(self) -> bool | None:
        if self.value is None or self.low is None or self.high is None:
            return None
        return self.low <= self.value <= self.high

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def _around(name: str, value: float | None, expected: float, within: float) -> Check:
    return Check(name=name, value=value, low=expected - within, high=expected + within)


def setup_checks(trace: Trace, workload: str, *, is_authors: bool) -> list[Check]:
    """Lengths of all types; of the authors' first 50 rows also the work and first-fit FIFO."""
    types = numbers_of("artifact").types
    checks = [_length(entry.kind, entry.dataset_size, entry.run) for entry in types]
    gpus = fmean(entry.job.requested_gpus for entry in trace.jobs)
    if is_authors and len(trace.jobs) == JOBS:
        checks.append(_around("mean requested GPUs", gpus, REQUESTED_GPUS, 0.05 * REQUESTED_GPUS))
        work, expected = _requested_gpu_seconds(trace), REQUESTED_GPU_SECONDS
        checks.append(_around("GPU-seconds at requested sizes", work, expected, 0.05 * expected))
        for start_up in FIRST_FIT:
            checks += _first_fit(start_up, trace, workload)
    elif not is_authors and len(trace.jobs) > 1:
        span = trace.jobs[-1].job.submitted_at / (len(trace.jobs) - 1)
        checks.append(_around("mean gap, s", span, MEAN_GAP, 3 * 17.6 / len(trace.jobs) ** 0.5))
    return checks


def _length(kind: str, size: int, run: int) -> Check:
    numbers = numbers_of("artifact")
    found, recorded = numbers.kind(kind), numbers.recorded(kind, size)[run]
    base, gpus = int(found.base_batch), int(found.request_gpus or 1)
    training = Training(
        kind=kind, dataset_size=size, classes=recorded.classes, base_batch=base,
        numbers="artifact", run=run,
    )  # fmt: skip
    seconds = expected_seconds(training, gpus, base * gpus)
    name = f"length of {kind} {size} on {gpus} GPUs{f', run {run + 1}' if run else ''}, s"
    return _around(name, seconds, recorded.seconds, 0.05 * recorded.seconds)


def _requested_gpu_seconds(trace: Trace) -> float:
    total = 0.0
    for entry in trace.jobs:
        gpus, batch = entry.job.requested_gpus, entry.job.requested_batch
        assert batch is not None
        total += gpus * expected_seconds(entry.training, gpus, batch)
    return total


def least_mean_execution(trace: Trace, gpus: int) -> float:
    """Mean execution time if every job had the whole cluster to itself, at its best size.

    Sizes are powers of two; the batch is that of the authors' rule, base for each GPU up to the
    job's `max_batch`. No start-up. A job that changes its size or cuts its epochs may be faster.
    """
    sizes = [1 << n for n in range(gpus.bit_length())]
    least = []
    for entry in trace.jobs:
        base, cap = entry.training.base_batch, entry.job.max_batch
        batches = {n: base * n if cap is None else min(cap, base * n) for n in sizes if n <= gpus}
        least.append(min(expected_seconds(entry.training, n, b) for n, b in batches.items()))
    return fmean(least)


def _first_fit(start_up: float, trace: Trace, workload: str) -> list[Check]:
    spec = RunSpec(
        policy="fifo",
        settings={"backfill": True},
        workload=workload,
        jobs=len(trace.jobs),
        start_up=start_up,
    )
    done = [o for o in Run(spec, trace).simulate().state.ended.values() if o.reason.completed]
    row = row_of_times(
        {
            "completion": [outcome.completion_seconds for outcome in done],
            "execution": [outcome.run_seconds for outcome in done],
            "queueing": [outcome.queue_seconds for outcome in done],
        }
    )
    expected = FIRST_FIT[start_up]
    title = f"first-fit FIFO, start-up {start_up:g} s"
    wanted = (
        ("mean completion, s", "mean_jct", expected.completion),
        ("mean execution, s", "mean_exec", expected.execution),
        ("mean queueing, s", "mean_queue", expected.queueing),
    )
    return [
        *(
            _around(f"{title}: {name}", row[key], value, FIRST_FIT_WITHIN * value)
            for name, key, value in wanted
        ),
        _around(
            f"{title}: share within 200 s", row["within_200s"], expected.within_200s,
            FIRST_FIT_WITHIN,
        ),
    ]  # fmt: skip


def strongest_rivals(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Rival -> label of its variant with the least mean completion time."""
    chosen = {}
    for rival in RATIOS:
        labels = [label for label in rows if label.partition(":")[0] == rival]
        if labels:
            chosen[rival] = min(labels, key=lambda label: float(rows[label]["mean_jct"]))
    return chosen


def target_checks(
    runs: Runs, rows: Mapping[str, Mapping[str, Any]], strongest: Mapping[str, str]
) -> list[Check]:
    """The targets of a replication. `rows`: label -> means over seeds; `strongest`: the variants
    that stand for the rivals."""
    ours = rows.get(OURS, {})
    completion, queueing = (
        [strongest.get(name, name) for name in order]
        for order in (COMPLETION_ORDER, QUEUEING_ORDER)
    )
    checks = [
        Check(name=f"seeds with completion {' < '.join(COMPLETION_ORDER)}",
              value=_ordered(runs, completion, "mean_jct", len(completion)), low=1.0, high=1.0),
        Check(name=f"seeds with the least queueing under {OURS}",
              value=_ordered(runs, queueing, "mean_queue", 1), low=1.0, high=1.0),
    ]  # fmt: skip
    for rival, (low, high) in RATIOS.items():
        ratio = _ratio(rows, OURS, strongest.get(rival, rival))
        checks.append(
            Check(name=f"mean completion, {OURS} / {rival}", value=ratio, low=low, high=high)
        )
    titles = {
        "mean_jct": "mean completion, s", "mean_exec": "mean execution, s",
        "mean_queue": "mean queueing, s", "median_jct": "median completion, s",
        "within_200s": "share within 200 s",
    }  # fmt: skip
    for key, (low, high) in RANGES.items():
        name = f"{OURS}: {titles[key]}"
        checks.append(Check(name=name, value=ours.get(key), low=low, high=high))
    low, high = TIRESIAS_RANGE
    mean = rows.get(strongest.get("tiresias", "tiresias"), {}).get("mean_jct")
    checks.append(Check(name="tiresias: mean completion, s", value=mean, low=low, high=high))
    # not published: only reported
    checks.append(
        Check(name="mean completion, population of 64 / of 16", value=_ratio(rows, LARGE, OURS))
    )
    checks.append(
        Check(name="mean completion, working predictor / constant",
              value=_ratio(rows, PREDICTOR, OURS))
    )  # fmt: skip
    return checks


def _ratio(rows: Mapping[str, Mapping[str, Any]], first: str, second: str) -> float | None:
    ours, theirs = (rows.get(label, {}).get("mean_jct") for label in (first, second))
    return None if ours is None or not theirs else float(ours / theirs)


def _ordered(runs: Runs, order: Sequence[str], key: str, places: int) -> float | None:
    """Share of the seeds in which the first `places` of the order are in their places."""
    if any(label not in runs for label in order):
        return None
    means = [{r.cell.spec.seed: r.row[key] for r in runs[label]} for label in order]
    seeds = set.intersection(*(set(values) for values in means))
    if not seeds:
        return None
    met = 0
    for seed in seeds:
        values = [column[seed] for column in means]
        found = sorted(range(len(order)), key=lambda i: float(values[i]))
        met += found[:places] == list(range(places))
    return met / len(seeds)
