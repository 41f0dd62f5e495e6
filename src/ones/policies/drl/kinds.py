"""What jobs of a kind have taught: how they scale at a fixed batch, how long they train.

The policy is trained offline, so it starts with a book of the kinds it met there, and
goes on writing in it. All of it was observed: step times, memory limits, and the samples
that jobs had seen when they were done.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ones.core.job import Configuration, Job, StepTime
from ones.core.view import JobView
from ones.models.latest import MOST_KINDS, write
from ones.models.speed import fit_speed
from ones.policies.drl.network import SIZES

#: finished jobs that are remembered of a kind
REMEMBERED = 100
#: steps that an earlier measurement counts for at most, so that newer ones are heard
MOST_STEPS = 1000
#: configurations that are remembered of a kind
CONFIGURATIONS = 200
#: one-GPU seconds of a job of which nothing is known
UNKNOWN_SECONDS = 300.0
#: with so many finished jobs of the very same batch, those of others do not count
ENOUGH = 3
_NAMELESS = "job "


def kind_of(job: Job) -> str:
    """A job without a kind is one of its own."""
    return job.kind or f"{_NAMELESS}{job.id}"


def is_nameless(kind: str) -> bool:
    return kind.startswith(_NAMELESS)


class _Page:
    __slots__ = ("limit", "profile", "speeds", "totals")

    def __init__(self) -> None:
        self.limit: int | None = None  # samples that fit one GPU
        self.totals: list[tuple[int, int]] = []  # (batch, samples at the end)
        self.profile: dict[Configuration, StepTime] = {}
        self.speeds: dict[tuple[int, int, int], tuple[float, ...]] = {}  # only a cache


class KindBook:
    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        self._pages: dict[str, _Page] = {}
        for kind, told in (saved or {}).items():
            page = self._pages[kind] = _Page()
            page.limit = told["limit"]
            page.totals = [(int(batch), int(samples)) for batch, samples in told["totals"]]
            page.profile = {
                Configuration(*map(int, row[:4])): StepTime(float(row[4]), int(row[5]))
                for row in told["profile"]
            }

    def save(self) -> dict[str, Any]:
        return {
            kind: {
                "limit": page.limit,
                "totals": [list(total) for total in page.totals],
                "profile": [[*c, t.seconds, t.steps] for c, t in page.profile.items()],
            }
            for kind, page in self._pages.items()
        }

    # writing

    def learn_limit(self, kind: str, samples: int | None) -> None:
        if samples is not None:
            page = self._write(kind)
            page.limit = samples
            page.speeds = {}

    def learn_speed(self, kind: str, configuration: Configuration, seconds: float, n: int) -> None:
        page = self._write(kind)
        old = page.profile.get(configuration, StepTime(0.0, 0))
        before = min(old.steps, MOST_STEPS)
        mean = (old.seconds * before + seconds * n) / (before + n)
        write(page.profile, configuration, StepTime(mean, before + n), CONFIGURATIONS)
        page.speeds = {}

    def learn_length(self, kind: str, batch: int, samples: int) -> None:
        totals = self._write(kind).totals
        totals.append((batch, samples))
        del totals[:-REMEMBERED]

    def forget(self, kind: str) -> None:
        self._pages.pop(kind, None)

    def _write(self, kind: str) -> _Page:
        page = self._pages.get(kind) or _Page()
        write(self._pages, kind, page, MOST_KINDS)
        return page

    # reading

    def limit(self, job: JobView) -> int | None:
        """Samples that may be put into one GPU at once, as far as anybody knows."""
        page = self._pages.get(kind_of(job.job))
        known = [n for n in (job.local_limit, page.limit if page else None) if n is not None]
        return min(known, default=None)

    def step_seconds(self, job: JobView, batch: int, gpus_per_node: int) -> tuple[float, ...]:
        """One optimizer step of this batch on 1, 2, 4, ... packed GPUs; () if nobody knows."""
        page = self._pages.get(kind_of(job.job))
        if page is None or not page.profile:
            return ()
        limit = self.limit(job) or batch
        key = (batch, gpus_per_node, limit)
        if key not in page.speeds:
            model = fit_speed(page.profile)
            assert model is not None
            seconds = []
            # a fit to few points may see no cost at all where it has none
            least = 0.1 * min(step.seconds for step in page.profile.values())
            for size in SIZES:
                way = Configuration(
                    size, ceil(size / gpus_per_node), batch, ceil(ceil(batch / size) / limit)
                )
                measured = page.profile.get(way)  # better than any fit, where there is one
                fitted = model.step_seconds(
                    gpus=size, nodes=way.nodes, batch=max(batch, size), micro_steps=way.micro_steps
                )
                seconds.append(max(least, fitted) if measured is None else measured.seconds)
            page.speeds[key] = tuple(seconds)
        return page.speeds[key]

    def samples_left(self, job: JobView, batch: int) -> float | None:
        """Those of declared epochs, or the mean of finished jobs of its kind that went further."""
        done = job.progress.samples
        if job.job.epochs is not None and job.description is not None:
            return max(0.0, job.job.epochs * job.description.dataset_size - done)
        page = self._pages.get(kind_of(job.job))
        if page is None or not page.totals:
            return None
        alike = [samples for b, samples in page.totals if b == batch]
        if len(alike) < ENOUGH:
            alike = [samples for _, samples in page.totals]
        longer = [samples for samples in alike if samples > done]
        return sum(longer) / len(longer) - done if longer else 0.1 * done
