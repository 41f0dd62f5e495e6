"""Generated traces: the paper's kinds of job, arriving at random."""

from __future__ import annotations

from math import inf

import numpy as np

from ones.core.job import Job, JobId
from ones.errors import InvalidSettingError, UnknownNameError
from ones.stopping import StopRule
from ones.workload.kinds import Kind, Numbers, numbers_of, paper_numbers
from ones.workload.trace import Trace, TraceJob, Training

MOST_EPOCHS = 2000  # a limit: no job of the data file needs a tenth of it


def mean_one_gpu_seconds(numbers: Numbers | None = None) -> float:
    """Mean length of a job, over all kinds and sizes of the paper."""
    kinds = (numbers or paper_numbers()).kinds.values()
    return sum(k.one_gpu_seconds * len(k.sizes) for k in kinds) / sum(len(k.sizes) for k in kinds)


def gap_for_load(load: float, gpus: int, numbers: str = "paper") -> float:
    """Mean seconds between arrivals for a load, in single-GPU seconds per GPU-second."""
    if not 0 < load < inf:
        raise InvalidSettingError(f"load: {load} is not a number above 0")
    if gpus < 1:
        raise InvalidSettingError(f"gpus: {gpus} is not at least 1")
    return mean_one_gpu_seconds(numbers_of(numbers)) / (load * gpus)


def generate(
    *,
    jobs: int,
    seed: int,
    gap: float,
    scatter: float = 0.3,
    requests: str | None = None,
    numbers: str = "paper",
) -> Trace:
    """Jobs with Poisson arrivals (mean `gap` seconds), of the paper's 50 sizes of 10 kinds.

    Each size comes once before any comes again. `scatter` is the sigma of a lognormal factor on
    lengths within a kind; `requests` replaces the mix of requested GPUs of each kind; `numbers`
    names the set of numbers of the kinds.
    """
    if jobs < 1:
        raise InvalidSettingError(f"jobs: {jobs} is not at least 1")
    if seed < 0:
        raise InvalidSettingError(f"seed: {seed} is negative")
    if not 0 <= gap < inf:
        raise InvalidSettingError(f"gap: {gap} is not a number of seconds")
    if not 0 <= scatter <= 2:
        raise InvalidSettingError(f"scatter: {scatter} is not in 0..2")
    known = numbers_of(numbers)
    if requests is not None and requests not in known.requests:
        raise UnknownNameError("mix of requested GPUs", requests, known.requests)
    rng = np.random.default_rng([seed, 0x0E5])
    choices = [(kind, i) for kind in known.kinds.values() for i in range(len(kind.sizes))]
    rounds = -(-jobs // len(choices))
    order = np.concatenate([rng.permutation(len(choices)) for _ in range(rounds)])[:jobs]
    arrivals = np.cumsum(rng.exponential(gap, jobs)) if gap else np.zeros(jobs)
    lengths = np.exp(rng.normal(0.0, scatter, jobs))
    draws = rng.random(jobs)
    width = len(str(jobs - 1))
    entries = []
    for number in range(jobs):
        kind, size = choices[order[number]]
        mix = known.requests[requests or kind.requests]
        gpus = _draw_gpus(mix, float(draws[number]))
        entries.append(
            _entry(
                f"j{number:0{width}d}",
                round(float(arrivals[number]), 3),
                kind,
                size,
                gpus,
                round(float(lengths[number]), 4),
                numbers,
            )
        )
    name = "paper" if numbers == "paper" else f"paper-{numbers}"
    return Trace.of(f"{name} seed {seed}", entries)


def stop_rule(kind: Kind) -> StopRule:
    """The stop rule of the evaluation: the target, confirmed over some epochs."""
    return StopRule(
        target_accuracy=kind.target_accuracy,
        target_epochs=int(kind.stop_epochs),
        max_epochs=MOST_EPOCHS,
    )


def _entry(
    name: str, at: float, kind: Kind, size: int, gpus: int, length: float, numbers: str
) -> TraceJob:
    base = int(kind.base_batch)
    return TraceJob(
        Job(
            id=JobId(name),
            submitted_at=at,
            kind=kind.name,
            requested_gpus=gpus,
            requested_batch=base * gpus,
            stop=stop_rule(kind),
        ),
        Training(
            kind=kind.name,
            dataset_size=kind.sizes[size],
            classes=kind.classes[size],
            base_batch=base,
            length=length,
            numbers=numbers,
        ),
    )


def _draw_gpus(mix: dict[int, float], draw: float) -> int:
    total = 0.0
    for gpus, share in mix.items():
        total += share
        if draw < total:
            return gpus
    return max(mix)
