"""Our own run logs as workloads: the jobs of last week, to be run again under another policy.

What each job turned out to be is read from its reports: step times in the configurations
it ran in, accuracy and loss against effective progress, how far it got and how it ended.
Jobs that never finished an epoch, or were still going when the log ended, have no known
length and are left out, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ones.core.events import EpochFinished, JobEnded, JobSubmitted, Rescaled
from ones.core.job import Job, JobId
from ones.core.plan import Plan
from ones.core.record import JobRecord
from ones.core.state import State
from ones.errors import UserError
from ones.models.goodput import efficiency
from ones.runlog.files import RunLog
from ones.stopping import StopRule
from ones.workload.trace import Milestone, RecordedTraining, Trace, TraceJob


@dataclass(slots=True)
class _Gathered:
    job: Job
    pauses: list[float] = field(default_factory=list)  # of changes that took any time
    milestones: list[Milestone] = field(default_factory=list)


def read_recording(log: RunLog) -> tuple[Trace, int]:
    """The trace, and how many jobs of the log were left out."""
    state = State(log.header.cluster, log.header.switch_cost)
    gathered: dict[JobId, _Gathered] = {}
    done: dict[JobId, TraceJob] = {}
    for entry in log:
        if isinstance(entry, Plan):
            state.adopt(entry)
            continue
        record = state.records.get(entry.job) if isinstance(entry, JobEnded) else None
        if not state.apply(entry):
            continue
        if isinstance(entry, JobSubmitted):
            gathered[entry.job.id] = _Gathered(entry.job)
        elif isinstance(entry, EpochFinished):
            _take_epoch(gathered[entry.job], state.records[entry.job], entry)
        elif isinstance(entry, Rescaled) and entry.pause_seconds > 0:
            gathered[entry.job].pauses.append(entry.pause_seconds)
        elif isinstance(entry, JobEnded) and record is not None:
            training = _training(gathered[entry.job], record, state, log.header.mechanism)
            if training is not None:
                done[entry.job] = TraceJob(_asked(gathered[entry.job].job), training)
    if not done:
        raise UserError(f"{log.path}: no job of this log has ended: there is nothing to run again")
    # by submission, and not as they ended: that would tell a policy who is short
    jobs = [done[job] for job in gathered if job in done]
    return Trace.of(log.path.name, jobs), len(gathered) - len(done)


def _take_epoch(job: _Gathered, record: JobRecord, event: EpochFinished) -> None:
    assert record.description is not None
    worth = 1.0
    if record.held is not None and event.gradient_noise is not None:
        base = record.description.base_batch
        worth = efficiency(record.held.batch, base, event.gradient_noise)
    before = job.milestones[-1].progress if job.milestones else 0.0
    progress = before + event.samples / record.description.dataset_size * worth
    job.milestones.append(Milestone(progress, event.accuracy, event.loss, event.gradient_noise))


def _training(
    job: _Gathered, record: JobRecord, state: State, mechanism: str
) -> RecordedTraining | None:
    description = record.description
    if description is None or not job.milestones or not record.profile:
        return None
    outcome = state.ended[record.id]
    pause = sum(job.pauses) / len(job.pauses) if job.pauses else None
    by_checkpoint = mechanism == "checkpoint"
    return RecordedTraining(
        dataset_size=description.dataset_size,
        base_batch=description.base_batch,
        optimizer=description.optimizer,
        parameter_bytes=description.parameter_bytes,
        max_local_batch=record.max_local_batch,
        step_seconds=tuple((c, t.seconds) for c, t in sorted(record.profile.items())),
        milestones=tuple(job.milestones),
        first_loss=record.first_loss,
        end=outcome.reason,
        end_message=outcome.message,
        rescale_seconds=None if by_checkpoint else pause,
        restart_seconds=pause if by_checkpoint else None,
    )


def _asked(job: Job) -> Job:
    """What the user asked for; when it ends is in the recording, not in a rule."""
    return replace(job, stop=StopRule(), epochs=None)
