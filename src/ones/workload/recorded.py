"""Our own run logs as workloads: the jobs of last week, to be run again under another policy.

What each job turned out to be is read from its reports: step times in the configurations
it ran in, accuracy and loss against effective progress, how far it got and how it ended,
and how long its starts and changes took. A log of the live service counts its time from
1970; the trace counts from where the log begins.
Jobs that never finished an epoch, or were still going when the log ended, have no known
length and are left out, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ones.core.actions import adopt
from ones.core.events import EpochFinished, JobEnded, JobSubmitted
from ones.core.job import Configuration, Job, JobId
from ones.core.plan import Plan
from ones.core.record import JobRecord
from ones.core.state import State
from ones.core.transitions import apply
from ones.errors import UserError
from ones.models.goodput import efficiency, noise_scale
from ones.runlog.files import RunLog
from ones.stopping import StopRule
from ones.workload.delays import Delays, habits_of, mean
from ones.workload.trace import Milestone, RecordedTraining, Trace, TraceJob


@dataclass(slots=True)
class _Gathered:
    job: Job
    delays: Delays = field(default_factory=Delays)
    #: step times by whole epochs: for a job that has reported no others
    speeds: dict[Configuration, float] = field(default_factory=dict)
    milestones: list[Milestone] = field(default_factory=list)


def read_recording(log: RunLog) -> tuple[Trace, int]:
    """The trace, and how many jobs of the log were left out."""
    state = State(log.header.cluster, log.header.switch_cost)
    gathered: dict[JobId, _Gathered] = {}
    done: dict[JobId, TraceJob] = {}
    begin = _begin(log)
    for entry in log:
        if isinstance(entry, Plan):
            _take_orders(gathered, entry, state)
            adopt(state, entry)
            continue
        record = state.records.get(entry.job) if isinstance(entry, JobEnded) else None
        if not apply(state, entry):
            continue
        if isinstance(entry, JobSubmitted):
            at = max(0.0, entry.job.submitted_at - begin)
            gathered[entry.job.id] = _Gathered(structs.replace(entry.job, submitted_at=at))
            continue
        name = getattr(entry, "job", None)
        if isinstance(name, str) and name in gathered:
            job = gathered[JobId(name)]
            job.delays.heard(entry, state.records.get(job.job.id))
        if isinstance(entry, EpochFinished):
            _take_epoch(gathered[entry.job], state.records[entry.job], entry)
        elif isinstance(entry, JobEnded) and record is not None:
            training = _training(gathered[entry.job], record, state, log.header.mechanism)
            if training is not None:
                done[entry.job] = TraceJob(_asked(gathered[entry.job].job), training)
    if not done:
        raise UserError(f"{log.path}: no job of this log has ended: there is nothing to run again")
    # by submission, and not as they ended: that would tell a policy who is short
    jobs = [done[job] for job in gathered if job in done]
    jobs = _filled(jobs, [job.delays for job in gathered.values()], live=not log.header.nodes)
    return Trace.of(log.path.name, jobs), len(gathered) - len(done)


def _filled(jobs: list[TraceJob], delays: list[Delays], *, live: bool) -> list[TraceJob]:
    """What a job did not show is taken from those that did: they ran on the same machines."""
    habits = habits_of(delays)
    trainings = [e.training for e in jobs if isinstance(e.training, RecordedTraining)]
    usual = {
        name: mean(s for t in trainings if (s := getattr(t, name)) is not None)
        for name in ("rescale_seconds", "restart_seconds", "start_seconds", "join_seconds")
    }
    if usual["restart_seconds"] is None and live:
        # nobody was restarted; a process that comes again takes no longer than the first time
        usual["restart_seconds"] = usual["start_seconds"]
    filled = []
    for entry in jobs:
        assert isinstance(entry.training, RecordedTraining)
        missing: dict[str, Any] = {
            n: s for n, s in usual.items() if getattr(entry.training, n) is None
        }
        filled.append(replace(entry, training=replace(entry.training, habits=habits, **missing)))
    return filled


def _begin(log: RunLog) -> float:
    """Where time is counted from: the live service has no nodes but those that come up."""
    return 0.0 if log.header.nodes else next((entry.at for entry in log), 0.0)


def _take_orders(gathered: dict[JobId, _Gathered], plan: Plan, state: State) -> None:
    for action in plan.actions:
        record = state.records.get(action.job)
        if record is not None:
            gathered[action.job].delays.ordered(action, plan.at, record)


def _take_epoch(job: _Gathered, record: JobRecord, event: EpochFinished) -> None:
    assert record.description is not None
    efficiencies = 1.0
    held = record.held
    if held is not None and held.batch and event.step_seconds:
        now = Configuration(held.n_gpus, held.n_nodes, held.batch, held.micro_steps)
        job.speeds[now] = event.step_seconds
    if record.held is not None and event.gradient_noise is not None:
        base = record.description.base_batch
        efficiencies = efficiency(record.held.batch, base, noise_scale(event.gradient_noise, base))
    before = job.milestones[-1].progress if job.milestones else 0.0
    progress = before + event.samples / record.description.dataset_size * efficiencies
    job.milestones.append(Milestone(progress, event.accuracy, event.loss, event.gradient_noise))


def _training(
    job: _Gathered, record: JobRecord, state: State, mechanism: str
) -> RecordedTraining | None:
    description = record.description
    measured = {c: t.seconds for c, t in record.profile.items()} or job.speeds
    if description is None or not job.milestones or not measured:
        return None
    outcome = state.ended[record.id]
    delays = job.delays
    pause = mean(delays.pauses)
    by_checkpoint = mechanism == "checkpoint"
    return RecordedTraining(
        dataset_size=description.dataset_size,
        base_batch=description.base_batch,
        optimizer=description.optimizer,
        parameter_bytes=description.parameter_bytes,
        max_local_batch=record.max_local_batch,
        step_seconds=tuple(sorted(measured.items())),
        milestones=tuple(job.milestones),
        first_loss=record.first_loss,
        end=outcome.reason,
        end_message=outcome.message,
        rescale_seconds=None if by_checkpoint else pause,
        restart_seconds=pause if by_checkpoint else mean(delays.starts[1:]),
        start_seconds=mean(delays.starts[:1]),
        join_seconds=mean(delays.joins),
    )


def _asked(job: Job) -> Job:
    """What the user asked for; when it ends is in the recording, not in a rule."""
    return structs.replace(job, stop=StopRule(), epochs=None)
