"""Jobs of the embedding simulator: generated, or from a workload of Pollux's artifact."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
from msgspec import structs

from ones.core import Job, JobId
from ones.errors import InvalidFileError, UnknownNameError
from ones.lab.bench.embed.kinds import KINDS
from ones.lab.bench.embed.simulator import TickJob

#: shares of the kinds and of the hours of a working day, about as in Pollux's workloads
MIX = {
    "cifar10": 0.41, "ncf": 0.40, "deepspeech2": 0.09, "bert": 0.05, "yolov3": 0.03,
    "imagenet": 0.02,
}  # fmt: skip
HOURS = (0.12, 0.10, 0.05, 0.12, 0.18, 0.23, 0.11, 0.09)
SCATTER = 0.3


def generated(
    seed: int, jobs: int, *, hours: float = 8.0, scatter: float = SCATTER
) -> list[TickJob]:
    """A day of submissions, most in the afternoon; lengths scatter within a kind."""
    rng = np.random.default_rng([seed, 0x7A5C])
    kinds = rng.choice(list(MIX), size=jobs, p=list(MIX.values()))
    hour = rng.choice(len(HOURS), size=jobs, p=HOURS)
    times = np.sort((hour + rng.uniform(size=jobs)) * hours / len(HOURS) * 3600.0)
    lengths = np.exp(scatter * rng.standard_normal(jobs))
    return [
        _tick_job(f"{kind}-{i}", str(kind), float(at), float(length))
        for i, (kind, at, length) in enumerate(zip(kinds, times, lengths, strict=True))
    ]


def read(path: Path, seed: int, *, scatter: float = SCATTER) -> list[TickJob]:
    """Reads the columns `name`, `time` and `application` of a workload of Pollux."""
    rng = np.random.default_rng([seed, 0x7A5D])
    found = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            missing = {"name", "time", "application"} - set(rows.fieldnames or ())
            if missing:
                raise InvalidFileError(path, f"has no column {min(missing)}", line=1)
            for line, row in enumerate(rows, start=2):
                if row["application"] not in KINDS:
                    raise InvalidFileError(
                        path, str(UnknownNameError("application", row["application"], KINDS)),
                        line=line,
                    )  # fmt: skip
                length = exp(scatter * float(rng.standard_normal()))
                at = _seconds(path, line, row["time"])
                found.append(_tick_job(row["name"], row["application"], at, length))
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"cannot be read: {problem}") from problem
    if not found:
        raise InvalidFileError(path, "holds no job")
    return found


def without_kinds(jobs: list[TickJob]) -> list[TickJob]:
    return [replace(t, job=structs.replace(t.job, kind="")) for t in jobs]


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        at = float(text)
    except ValueError:
        at = -1.0
    if not at >= 0.0:
        raise InvalidFileError(path, f"{text!r} is not at least 0", line=line, field="time")
    return at


def _tick_job(name: str, kind: str, at: float, length: float) -> TickJob:
    return TickJob(Job(id=JobId(name), submitted_at=at, kind=kind), KINDS[kind], length)
