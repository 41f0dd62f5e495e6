"""From what a worker says to what the brain is told."""

from __future__ import annotations

from typing import assert_never

from ones.control.live.jobs import NOW, LiveJob, LiveWorker, gpu_of
from ones.core import events as ev
from ones.core.job import Configuration, EndReason, Generation
from ones.wire import messages as wire

#: what an epoch brings, each perhaps no finite number: training may diverge
MEASURES = ("loss", "accuracy", "first_loss", "step_seconds", "gradient_noise")


def as_event(
    job: LiveJob, worker: LiveWorker, generation: Generation, report: wire.Report
) -> ev.Event | None:
    """The event that a report is; None if it is none of the brain's business."""
    at = NOW
    match report:
        case wire.Joined():
            return ev.JobDescribed(
                at=at,
                job=job.id,
                generation=generation,
                dataset_size=report.dataset_size,
                base_batch=report.base_batch,
                optimizer=report.optimizer,
                parameter_bytes=report.parameter_bytes,
                max_local_batch=report.max_local_batch,
            )
        case wire.Ready():
            return ev.WorkerReady(at, job.id, generation, worker.gpus[0])
        case wire.Steps():
            return ev.StepsDone(
                at=at,
                job=job.id,
                generation=generation,
                epoch=report.epoch,
                steps=report.steps,
                samples=report.samples,
            )
        case wire.Epoch():
            return ev.EpochFinished(
                at=at,
                job=job.id,
                generation=generation,
                epoch=report.epoch,
                samples=report.samples,
                steps=report.steps,
                loss=_finite(report.loss),
                accuracy=_finite(report.accuracy),
                first_loss=_finite(report.first_loss),
                step_seconds=_finite(report.step_seconds),
                gradient_noise=_finite(report.gradient_noise),
                planned_epochs=report.planned_epochs,
                not_finite=tuple(n for n in MEASURES if isinstance(getattr(report, n), str)),
            )
        case wire.Speed():
            return ev.ThroughputMeasured(
                at=at,
                job=job.id,
                generation=generation,
                configuration=Configuration(
                    report.gpus, report.nodes, report.batch, report.micro_steps
                ),
                step_seconds=report.step_seconds,
                steps=report.steps,
            )
        case wire.MemoryLimit():
            return ev.MemoryLimitLearned(
                at=at, job=job.id, generation=generation, max_local_batch=report.max_local_batch
            )
        case wire.Switched():
            left = tuple(map(gpu_of, report.members)) if generation.incarnation else ()
            return ev.Rescaled(at, job.id, generation, report.pause_seconds, left)
        case wire.SwitchFailed():
            plan = report.plan or (job.pending.plan if job.pending else 0)
            return ev.RescaleFailed(at, job.id, Generation(plan), report.reason)
        case wire.Leaving():
            if not report.done:
                return None
            return ev.JobEnded(at, job.id, EndReason.FINISHED, generation=generation)
        case wire.Memory() | wire.StoreStarted() | wire.Hung():
            return None
        case _:
            assert_never(report)


def _finite(measure: float | str | None) -> float | None:
    return None if isinstance(measure, str) else measure
