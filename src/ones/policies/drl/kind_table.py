"""Measurements of each kind of job: scaling at a fixed batch, and length.

The policy is trained offline: it starts with the table of the kinds seen there and updates it. All
values were observed: step times, memory limits, and the samples of completed jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ones.core.job import Configuration, StepTime
from ones.core.view import JobView
from ones.models.bounded_table import MAX_KINDS, set_bounded
from ones.models.kinds import kind_of
from ones.models.speed import fit_speed
from ones.policies.drl.network import SIZES

#: finished jobs kept of a kind
MAX_TOTALS = 100
#: maximum weight of earlier measurements, in steps, so that newer ones count
MAX_STEPS = 1000
#: configurations kept of a kind
MAX_CONFIGURATIONS = 200
#: one-GPU seconds of a job without any measurement
UNKNOWN_SECONDS = 300.0
#: number of finished jobs of the same batch from which on other batches do not count
ENOUGH = 3


class _KindEntry:
    __slots__ = ("limit", "profile", "speeds", "totals")

    def __init__(self) -> None:
        self.limit: int | None = None  # samples that fit one GPU
        self.totals: list[tuple[int, int]] = []  # (batch, samples at the end)
        self.profile: dict[Configuration, StepTime] = {}
        self.speeds: dict[tuple[int, int, int], tuple[float, ...]] = {}  # a cache


class KindTable:
    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        self._entries: dict[str, _KindEntry] = {}
        for kind, values in (saved or {}).items():
            entry = self._entries[kind] = _KindEntry()
            entry.limit = values["limit"]
            entry.totals = [(int(batch), int(samples)) for batch, samples in values["totals"]]
            entry.profile = {
                Configuration(*map(int, row[:4])): StepTime(float(row[4]), int(row[5]))
                for row in values["profile"]
            }

    def save(self) -> dict[str, Any]:
        return {
            kind: {
                "limit": entry.limit,
                "totals": [list(total) for total in entry.totals],
                "profile": [[*c, t.seconds, t.steps] for c, t in entry.profile.items()],
            }
            for kind, entry in self._entries.items()
        }

    # updates

    def learn_limit(self, kind: str, samples: int | None) -> None:
        if samples is not None:
            entry = self._entry(kind)
            entry.limit = samples
            entry.speeds = {}

    def learn_speed(self, kind: str, configuration: Configuration, seconds: float, n: int) -> None:
        entry = self._entry(kind)
        old = entry.profile.get(configuration, StepTime(0.0, 0))
        before = min(old.steps, MAX_STEPS)
        mean = (old.seconds * before + seconds * n) / (before + n)
        set_bounded(entry.profile, configuration, StepTime(mean, before + n), MAX_CONFIGURATIONS)
        entry.speeds = {}

    def learn_length(self, kind: str, batch: int, samples: int) -> None:
        totals = self._entry(kind).totals
        totals.append((batch, samples))
        del totals[:-MAX_TOTALS]

    def forget(self, kind: str) -> None:
        self._entries.pop(kind, None)

    def _entry(self, kind: str) -> _KindEntry:
        entry = self._entries.get(kind) or _KindEntry()
        set_bounded(self._entries, kind, entry, MAX_KINDS)
        return entry

    # estimates

    def limit(self, job: JobView) -> int | None:
        """Samples that fit one GPU, as far as known."""
        entry = self._entries.get(kind_of(job.job))
        known = [n for n in (job.local_limit, entry.limit if entry else None) if n is not None]
        return min(known, default=None)

    def step_seconds(self, job: JobView, batch: int, gpus_per_node: int) -> tuple[float, ...]:
        """Seconds of a step of this batch on 1, 2, 4, ... packed GPUs; () if not measured."""
        entry = self._entries.get(kind_of(job.job))
        if entry is None or not entry.profile:
            return ()
        limit = self.limit(job) or batch
        key = (batch, gpus_per_node, limit)
        if key not in entry.speeds:
            model = fit_speed(entry.profile)
            assert model is not None
            seconds = []
            # a fit to few points may predict no cost at all
            least = 0.1 * min(step.seconds for step in entry.profile.values())
            for size in SIZES:
                configuration = Configuration(
                    size, ceil(size / gpus_per_node), batch, ceil(ceil(batch / size) / limit)
                )
                measured = entry.profile.get(configuration)  # better than a fit
                fitted = model.step_seconds(
                    gpus=size,
                    nodes=configuration.nodes,
                    batch=max(batch, size),
                    micro_steps=configuration.micro_steps,
                )
                seconds.append(max(least, fitted) if measured is None else measured.seconds)
            entry.speeds[key] = tuple(seconds)
        return entry.speeds[key]

    def samples_left(self, job: JobView, batch: int) -> float | None:
        """Remaining samples: of the declared epochs, or the mean of longer jobs of its kind."""
        done = job.progress.samples
        if job.job.epochs is not None and job.description is not None:
            return max(0.0, job.job.epochs * job.description.dataset_size - done)
        entry = self._entries.get(kind_of(job.job))
        if entry is None or not entry.totals:
            return None
        alike = [samples for b, samples in entry.totals if b == batch]
        if len(alike) < ENOUGH:
            alike = [samples for _, samples in entry.totals]
        longer = [samples for samples in alike if samples > done]
        return sum(longer) / len(longer) - done if longer else 0.1 * done
