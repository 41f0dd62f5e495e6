"""Run logs as workloads, to run recorded jobs again under another policy.

The training of each job is read from its reports: step times by configuration, accuracy and loss by
effective progress, how it ended, and how long its starts and rescales took. A log of the live
service has times since 1970; the trace starts at 0. Jobs without a finished epoch, or unfinished at
the end of the log, have no known length: they are omitted and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ones.core.actions import adopt
from ones.core.events import EpochFinished, JobEnded, JobSubmitted
from ones.core.job import Configuration, EndReason, Job, JobId
from ones.core.plan import Plan
from ones.core.record import JobRecord
from ones.core.state import State
from ones.core.transitions import apply
from ones.errors import UserError
from ones.models.goodput import efficiency, noise_scale
from ones.runlog.encoding import Entry, Header
from ones.runlog.files import RunLog
from ones.stopping import StopRule
from ones.workload.delays import Delays, mean, service_delays
from ones.workload.trace import Milestone, RecordedTraining, Trace, TraceJob


@dataclass(slots=True)
class RecordedJob:
    job: Job
    delays: Delays = field(default_factory=Delays)
    #: step times of whole epochs, for a job without other measurements
    speeds: dict[Configuration, float] = field(default_factory=dict)
    milestones: list[Milestone] = field(default_factory=list)


class Recording:
    """What the entries of a run log tell of its jobs; `take` reads them in order."""

    def __init__(self, header: Header) -> None:
        self.state = (
            State(header.cluster, header.switch_cost)
            if header.state is None
            else State.restored(header.state)
        )
        self.is_live = not header.nodes  # there, nodes come up by events
        self.by_checkpoint = header.mechanism == "checkpoint"
        #: jobs in order of submission; those of a snapshot are known from there on
        self.jobs = {job: RecordedJob(record.job) for job, record in self.state.records.items()}
        self.ended: dict[JobId, JobRecord] = {}  # their last records, in order of the ends

    def take(self, entry: Entry) -> None:
        state = self.state
        if isinstance(entry, Plan):
            _record_actions(self.jobs, entry, state)
            adopt(state, entry)
            return
        record = state.records.get(entry.job) if isinstance(entry, JobEnded) else None
        if not apply(state, entry):
            return
        if isinstance(entry, JobSubmitted):
            self.jobs[entry.job.id] = RecordedJob(entry.job)
            return
        name = getattr(entry, "job", None)
        if isinstance(name, str) and name in self.jobs:
            job = self.jobs[JobId(name)]
            job.delays.record_event(entry, state.records.get(job.job.id))
        if isinstance(entry, EpochFinished):
            _record_epoch(self.jobs[entry.job], state.records[entry.job], entry)
        elif isinstance(entry, JobEnded) and record is not None:
            self.ended[entry.job] = record

    def record(self, job: JobId) -> JobRecord | None:
        """The present or last record of a job."""
        return self.state.records.get(job) or self.ended.get(job)

    def training(self, job: JobId) -> RecordedTraining | None:
        """How the job trained so far; None: it has not reported enough. An unfinished job ends
        there."""
        record = self.record(job)
        return None if record is None else _training(self.jobs[job], record, self)


def read_recording(log: RunLog) -> tuple[Trace, int]:
    """The trace, and the number of jobs omitted."""
    recording = Recording(log.header)
    begin = _begin(log)
    for entry in log:
        recording.take(entry)
    done = {}
    for job in recording.ended:
        training = recording.training(job)
        if training is not None:
            done[job] = TraceJob(_without_end(recording.jobs[job].job, begin), training)
    if not done:
        raise UserError(f"{log.path}: no job of this log has ended: there is nothing to run again")
    # by submission: the order of ends would reveal to a policy which jobs are short
    jobs = [done[job] for job in recording.jobs if job in done]
    delays = [job.delays for job in recording.jobs.values()]
    jobs = fill_missing(jobs, delays, live=recording.is_live)
    return Trace.of(log.path.name, jobs), len(recording.jobs) - len(done)


def fill_missing(jobs: list[TraceJob], delays: list[Delays], *, live: bool) -> list[TraceJob]:
    """Fills durations that a job has not shown with the mean of the others."""
    service = service_delays(delays)
    trainings = [e.training for e in jobs if isinstance(e.training, RecordedTraining)]
    means = {
        name: mean(s for t in trainings if (s := getattr(t, name)) is not None)
        for name in ("rescale_seconds", "restart_seconds", "start_seconds", "join_seconds")
    }
    if means["restart_seconds"] is None and live:
        # no restarts: assume the duration of a first start
        means["restart_seconds"] = means["start_seconds"]
    filled = []
    for entry in jobs:
        assert isinstance(entry.training, RecordedTraining)
        missing: dict[str, Any] = {
            n: s for n, s in means.items() if getattr(entry.training, n) is None
        }
        filled.append(replace(entry, training=replace(entry.training, service=service, **missing)))
    return filled


def _begin(log: RunLog) -> float:
    """The start of the trace. In logs of the live service nodes come up by events."""
    return 0.0 if log.header.nodes else next((entry.at for entry in log), 0.0)


def _record_actions(recorded: dict[JobId, RecordedJob], plan: Plan, state: State) -> None:
    for action in plan.actions:
        record = state.records.get(action.job)
        if record is not None:
            recorded[action.job].delays.record_action(action, plan.at, record)


def _record_epoch(job: RecordedJob, record: JobRecord, event: EpochFinished) -> None:
    assert record.description is not None
    worth = 1.0
    held = record.held
    if held is not None and held.batch and event.step_seconds:
        now = Configuration(held.n_gpus, held.n_nodes, held.batch, held.micro_steps)
        job.speeds[now] = event.step_seconds
    if record.held is not None and event.gradient_noise is not None:
        base = record.description.base_batch
        worth = efficiency(record.held.batch, base, noise_scale(event.gradient_noise, base))
    before = job.milestones[-1].progress if job.milestones else 0.0
    progress = before + event.samples / record.description.dataset_size * worth
    job.milestones.append(Milestone(progress, event.accuracy, event.loss, event.gradient_noise))


def _training(job: RecordedJob, record: JobRecord, recording: Recording) -> RecordedTraining | None:
    description = record.description
    measured = {c: t.seconds for c, t in record.profile.items()} or job.speeds
    if description is None or not job.milestones or not measured:
        return None
    outcome = recording.state.ended.get(record.id)
    delays = job.delays
    pause = mean(delays.pauses)
    return RecordedTraining(
        dataset_size=description.dataset_size,
        base_batch=description.base_batch,
        optimizer=description.optimizer,
        parameter_bytes=description.parameter_bytes,
        max_local_batch=record.max_local_batch,
        step_seconds=tuple(sorted(measured.items())),
        milestones=tuple(job.milestones),
        first_loss=record.first_loss,
        end=EndReason.FINISHED if outcome is None else outcome.reason,
        end_message="" if outcome is None else outcome.message,
        rescale_seconds=None if recording.by_checkpoint else pause,
        restart_seconds=pause if recording.by_checkpoint else mean(delays.starts[1:]),
        start_seconds=mean(delays.starts[:1]),
        join_seconds=mean(delays.joins),
    )


def _without_end(job: Job, begin: float) -> Job:
    """The job without stop rule and epochs: its end is in the recording."""
    at = max(0.0, job.submitted_at - begin)
    return structs.replace(job, submitted_at=at, stop=StopRule(), epochs=None)
