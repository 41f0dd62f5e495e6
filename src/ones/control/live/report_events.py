"""Worker reports, converted to scheduler events."""

from __future__ import annotations

from typing import Any, assert_never

from ones.control.live.jobs import NOW, gpu_of
from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import Configuration, EndReason, Generation, JobId
from ones.core.record import InFlight
from ones.wire import messages as wire
from ones.wire.bounds import shared

#: measurements of an epoch that may be NaN or infinite: training may diverge
MEASURES = ("loss", "accuracy", "first_loss", "step_seconds", "gradient_noise")


def event_of(
    report: wire.Report, job: JobId, gpu: Gpu, generation: Generation, order: InFlight | None
) -> ev.Event | None:
    """The event of a report by the worker on `gpu`; None if it concerns the live engine only.

    `order`: the one that is being carried out for the job.
    """
    at = NOW
    match report:
        case wire.Joined():
            described = shared(report, ev.JobDescribed)
            return ev.JobDescribed(at=at, job=job, generation=generation, **described)
        case wire.Ready():
            return ev.WorkerReady(at, job, generation, gpu)
        case wire.Steps():
            steps, _ = _only_finite(shared(report, ev.StepsDone))
            return ev.StepsDone(at=at, job=job, generation=generation, **steps)
        case wire.Epoch():
            epoch, missing = _only_finite(shared(report, ev.EpochFinished))
            return ev.EpochFinished(
                at=at, job=job, generation=generation, not_finite=missing, **epoch
            )
        case wire.Speed():
            return ev.ThroughputMeasured(
                at=at,
                job=job,
                generation=generation,
                configuration=Configuration(
                    report.gpus, report.nodes, report.batch, report.micro_steps
                ),
                step_seconds=report.step_seconds,
                steps=report.steps,
                first_step_extra_seconds=report.first_step_extra_seconds,
            )
        case wire.MemoryLimit() | wire.Memory():
            return _memory_limit(report, job, generation)
        case wire.Switched():
            left = tuple(map(gpu_of, report.members)) if generation.incarnation else ()
            return ev.Rescaled(at, job, generation, report.pause_seconds, left)
        case wire.SwitchFailed():
            plan = report.plan or (order.plan if order else 0)
            return ev.RescaleFailed(at, job, Generation(plan), report.reason)
        case wire.Leaving():
            # all workers have reported it, so the event needs no generation
            return ev.JobEnded(at, job, EndReason.FINISHED) if report.done else None
        case wire.TrackerLink():
            return ev.TrackerLinked(at, job, generation, report.url)
        case wire.StoreStarted() | wire.Hung():
            return None
        case _:
            assert_never(report)


def _memory_limit(
    report: wire.MemoryLimit | wire.Memory, job: JobId, generation: Generation
) -> ev.Event | None:
    limit = report.max_local_batch
    if limit is None:  # memory is not low
        return None
    return ev.MemoryLimitLearned(at=NOW, job=job, generation=generation, max_local_batch=limit)


def _only_finite(fields: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields with None for measures that are not finite, and the names of these."""
    missing = tuple(name for name in MEASURES if isinstance(fields.get(name), str))
    return fields | dict.fromkeys(missing), missing
