"""The policy of `ones run`: the workers and the batch of one job, by a schedule of steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ones.core.cluster import Gpu
from ones.core.events import PROGRESS_EVENTS, Event, Rescaled, RescaleFailed, WorkerLeft
from ones.core.job import JobId
from ones.core.plan import PlanAdopted, Rescale
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.errors import InvalidSettingError

JOB = JobId("run")
RETRIES = 3


@dataclass(frozen=True, slots=True)
class SchedulePhase:
    step: int  # from here on
    workers: int
    batch: int | None = None  # global; None: the script's own


def parse_schedule(text: str, slots: int) -> tuple[SchedulePhase, ...]:
    """`0:1,50:2,120:4x256`: from step 50 on 2 workers; from 120 on 4, with a batch of 256."""
    phases = []
    for part in text.split(","):
        try:
            step, _, rest = part.strip().partition(":")
            workers, _, batch = rest.partition("x")
            phase = SchedulePhase(int(step), int(workers), int(batch) if batch else None)
        except ValueError:
            raise InvalidSettingError(
                f"schedule {text!r}: {part!r} is not STEP:WORKERS or STEP:WORKERSxBATCH"
            ) from None
        if not 1 <= phase.workers <= slots:
            raise InvalidSettingError(f"schedule {text!r}: {phase.workers} workers, {slots} slots")
        if phase.batch is not None and phase.batch < phase.workers:
            raise InvalidSettingError(f"schedule {text!r}: {part!r} leaves a worker no sample")
        phases.append(phase)
    if phases[0].step != 0:
        raise InvalidSettingError(f"schedule {text!r} does not begin at step 0")
    if any(a.step >= b.step for a, b in itertools.pairwise(phases)):
        raise InvalidSettingError(f"schedule {text!r}: steps do not increase")
    return tuple(phases)


class ScriptedPolicy:
    """Orders each phase as soon as the phase before is in force, so that its workers have joined
    when its step comes; `ElasticRun` holds the switch back until then.

    Each phase is asked for once: workers that are lost in it are not replaced, unless all are.
    Phase n is plan n, as long as no order fails.
    """

    decides_on: ClassVar[frozenset[type[Event]]] = PROGRESS_EVENTS | {WorkerLeft}
    native_mechanism: ClassVar[str] = "elastic"

    def __init__(self, phases: Sequence[SchedulePhase]) -> None:
        by_size = itertools.groupby(phases, key=lambda phase: (phase.workers, phase.batch))
        self.phases = tuple(next(same) for _, same in by_size)  # those that change something
        self._phase = 0  # index of the phase in force
        self._ordered = (0, 0)  # the plan that was ordered last, and the index of its phase
        self._failures = 0

    def may_switch(self, plan: int, steps: int) -> bool:
        """Whether the step of the phase that this plan leads to has come. A start need not wait."""
        ordered, phase = self._ordered
        return plan != ordered or steps >= self.phases[phase].step

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        plan, phase = self._ordered
        match event:
            case PlanAdopted():
                for action in event.plan.actions:
                    if isinstance(action, Rescale):
                        self._ordered = event.plan.number, self._phase_of(action, view.job(JOB))
            case Rescaled() if event.generation.plan == plan:
                self._phase = phase
            case RescaleFailed() if event.generation.plan == plan:
                self._failures += 1

    def _phase_of(self, action: Rescale, job: JobView) -> int:
        wanted = action.allocation
        later = range(self._phase + 1, len(self.phases))
        sizes = ((i, self.phases[i].workers, _batch(self.phases[i], job)) for i in later)
        ours = (i for i, *size in sizes if size == [wanted.n_gpus, wanted.batch])
        return next(ours, self._phase)

    def decide(self, view: View) -> Decision:
        edit = view.schedule.edit()
        if JOB in view.jobs and not view.job(JOB).pinned:
            edit.set(JOB, self._allocation(view.job(JOB), view))
        return Decision(schedule=edit.done())

    def _allocation(self, job: JobView, view: View) -> Allocation | None:
        """The one of the next phase that changes something, or of the present phase after a
        restart; else as it is."""
        if job.wanted is None:
            return _allocate(self.phases[self._phase], job, view)
        if self._failures <= RETRIES:
            for phase in self.phases[self._phase + 1 :]:
                allocation = _allocate(phase, job, view)
                if allocation != job.wanted:
                    return allocation or job.wanted
        return job.wanted

    def save(self) -> dict[str, Any]:
        return {"phase": self._phase, "ordered": self._ordered, "failures": self._failures}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._phase, self._failures = saved["phase"], saved["failures"]
        plan, phase = saved["ordered"]
        self._ordered = plan, phase


def _batch(phase: SchedulePhase, job: JobView) -> int:
    """The global batch; 0: the script's own, which is not known yet."""
    batch = phase.batch or job.base_batch or 0
    return max(batch, phase.workers) if batch else 0


def _allocate(phase: SchedulePhase, job: JobView, view: View) -> Allocation | None:
    gpus, batch = _gpus(phase.workers, job, view), _batch(phase, job)
    if gpus is None or not batch:
        return Allocation.as_scripted(gpus) if gpus else None
    return Allocation.even(gpus, batch, job.local_limit)


def _gpus(workers: int, job: JobView, view: View) -> list[Gpu] | None:
    """The first workers stay. None: there are too few GPUs until all leaving workers are gone; a
    rescale that has to wait for them would take another plan."""
    held = list(job.wanted.gpus) if job.wanted is not None else []
    if workers <= len(held):
        return held[:workers]
    nodes = view.cluster.nodes.values()
    others = [g for node in nodes for i in range(node.gpus) if (g := Gpu(node.id, i)) not in held]
    if job.occupied > len(held) or len(held) + len(others) < workers:
        return None
    return held + others[: workers - len(held)]
