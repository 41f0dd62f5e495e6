"""The jobs of the last hours of a run log as a workload, beside what happened to them.

Unlike `read_recording` this also takes jobs that have not ended, jobs that began before the window
(with the work that they had left), and jobs that reported nothing.

| job | length in the simulation |
| --- | --- |
| ended | as recorded; without reports: its time on the mean number of its GPUs |
| not ended, declared its epochs | up to them, at its mean progress of an epoch |
| not ended, else | twice the work that it has done |
| not ended, without a finished epoch | that of the last ended job of its kind, if there is one |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from ones.core.cluster import Cluster, Node, NodeState
from ones.core.job import Configuration, EndReason, Job, JobId
from ones.core.record import JobRecord
from ones.errors import UserError
from ones.runlog.encoding import Entry, Header
from ones.stopping import StopRule
from ones.workload.recorded import Recording, fill_missing
from ones.workload.trace import Milestone, RecordedTraining, Trace, TraceJob

#: steps of a job that reported none, which are assumed to be equal
PLAIN_STEPS = 100
#: a job that has not ended and declared no epochs needs this multiple of the work done
GROWTH = 2.0

NO_END = "twice the work done so far"
DECLARED = "the epochs that it declared"
BY_KIND = "that of the last ended job of its kind"


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a job had done when the window began."""

    progress: float = 0.0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecentJob:
    """A job, and what happened to it since the window began."""

    entry: TraceJob  # its times are seconds since the window began
    submitted_at: float  # since 1970
    began_before: bool  # before the window
    completion_seconds: float | None  # None: it has not ended
    waiting_seconds: float
    assumed: str  # what its length is assumed to be; empty: as recorded
    fixed: bool = False  # it reported nothing, so it keeps its GPUs

    @property
    def end(self) -> EndReason:
        """How the job ends when it has done its work."""
        assert isinstance(self.entry.training, RecordedTraining)
        return self.entry.training.end


@dataclass(frozen=True, slots=True)
class RecentJobs:
    since: float
    until: float
    jobs: tuple[RecentJob, ...]  # in order of submission
    cluster: Cluster
    left_out: Mapping[str, int]  # number of jobs, by reason

    @property
    def trace(self) -> Trace:
        return Trace.of("recent jobs", [job.entry for job in self.jobs])


def recent_jobs(
    header: Header, entries: Iterable[Entry], *, since: float, until: float
) -> RecentJobs:
    """The jobs that were submitted from `since` on or had not ended then. `until`: the present."""
    recording = Recording(header)
    marks: dict[JobId, _Mark] | None = None
    for entry in entries:
        if marks is None and entry.at >= since:
            marks = _marks(recording, since)
        recording.take(entry)
    if marks is None:
        marks = _marks(recording, since)
    return _Reader(recording, marks, since, until).read()


def _marks(recording: Recording, since: float) -> dict[JobId, _Mark]:
    found = {}
    for job, record in recording.state.records.items():
        record.settle_account(max(since, record.since))
        milestones = recording.jobs[job].milestones
        found[job] = _Mark(
            milestones[-1].progress if milestones else 0.0,
            record.queue_seconds,
            record.run_seconds,
            record.gpu_seconds,
        )
    return found


class _Reader:
    def __init__(
        self, recording: Recording, marks: Mapping[JobId, _Mark], since: float, until: float
    ) -> None:
        self._recording, self._marks = recording, marks
        self._since, self._until = since, max(until, since)
        self._cluster = _present_cluster(recording.state.cluster)
        self._by_kind: dict[str, RecordedTraining] = {}  # of the last ended job
        self._left_out: Counter[str] = Counter()

    def read(self) -> RecentJobs:
        recording = self._recording
        for job in recording.ended:
            training = recording.training(job)
            if training is not None:
                self._by_kind[recording.jobs[job].job.kind] = training
        found = [made for job in recording.jobs if (made := self._job(job)) is not None]
        if not found:
            reasons = "; ".join(f"{n}: {why}" for why, n in self._left_out.items())
            raise UserError(f"no job of this time can be replayed{f' ({reasons})' * bool(reasons)}")
        there = {each.entry.job.id for each in found}
        return RecentJobs(
            since=self._since,
            until=self._until,
            jobs=tuple(self._with_delays([_without_others(each, there) for each in found])),
            cluster=self._cluster,
            left_out=dict(self._left_out),
        )

    def _job(self, job: JobId) -> RecentJob | None:
        """The job as it is simulated; None: it is of earlier times, or left out."""
        recording = self._recording
        record, outcome = recording.record(job), recording.state.ended.get(job)
        if record is None or (outcome is not None and outcome.ended_at < self._since):
            return None
        if outcome is None:
            record.settle_account(max(self._until, record.since))
        if record.job.min_gpus > self._cluster.n_gpus:
            self._omit("more GPUs than the cluster has now")
            return None
        mark = self._marks.get(job, _Mark())
        training, assumed = self._remaining(job, record, mark, has_ended=outcome is not None)
        if training is None:
            return None
        is_plain = assumed != BY_KIND and recording.training(job) is None
        began = max(record.job.submitted_at, self._since)
        return RecentJob(
            entry=TraceJob(self._request(record, began, training, fixed=is_plain), training),
            fixed=is_plain,
            submitted_at=record.job.submitted_at,
            began_before=job in self._marks,
            completion_seconds=None if outcome is None else outcome.ended_at - began,
            waiting_seconds=record.queue_seconds - mark.queue_seconds,
            assumed=assumed,
        )

    def _omit(self, reason: str) -> None:
        self._left_out[reason] += 1

    def _remaining(
        self, job: JobId, record: JobRecord, mark: _Mark, *, has_ended: bool
    ) -> tuple[RecordedTraining | None, str]:
        """The training since the window began, and what is assumed about its length."""
        assumed = ""
        training = self._recording.training(job)
        if training is not None:
            if not has_ended:
                training, assumed = _extended(training, record.job)
            left = _after(training, mark.progress)
            if left is None:
                self._omit("ended within the epoch that it was in when the window began")
            return left, assumed
        like = None if has_ended else self._by_kind.get(record.job.kind)
        if like is not None and (record.description is not None or not record.run_seconds):
            return replace(like, end=EndReason.FINISHED, end_message=""), BY_KIND
        if record.run_seconds > 0:
            assumed = "" if has_ended else NO_END
            return _plain(record, mark, has_ended=has_ended), assumed
        self._omit(
            "ended without running"
            if has_ended
            else "never started, and no job of its kind has ended"
        )
        return None, ""

    def _request(
        self, record: JobRecord, began: float, training: RecordedTraining, *, fixed: bool
    ) -> Job:
        """The job without its end, which is in the recording."""
        job, most = record.job, self._cluster.n_gpus
        changed: dict[str, Any] = {}
        if fixed:
            gpus = min(training.base_batch, most)
            changed = {"elastic": False, "min_gpus": gpus, "max_gpus": gpus,
                       "requested_gpus": gpus, "requested_batch": training.base_batch,
                       "min_batch": None, "max_batch": None}  # fmt: skip
        else:
            changed = {"requested_gpus": min(job.requested_gpus, most)}
        return structs.replace(
            job,
            submitted_at=began - self._since,
            priority=record.priority,
            stop=StopRule(),
            epochs=None,
            deadline=None,
            retries=0,
            **changed,
        )

    def _with_delays(self, jobs: list[RecentJob]) -> list[RecentJob]:
        delays = [each.delays for each in self._recording.jobs.values()]
        measured = [job.entry for job in jobs if not job.fixed]
        filled = iter(fill_missing(measured, delays, live=self._recording.is_live))
        return [job if job.fixed else replace(job, entry=next(filled)) for job in jobs]


def _extended(training: RecordedTraining, job: Job) -> tuple[RecordedTraining, str]:
    """The training with the work that an unfinished job is assumed to have left."""
    done, last = len(training.milestones), training.milestones[-1]
    declared = job.epochs is not None and job.epochs > done
    factor = job.epochs / done if declared and job.epochs is not None else GROWTH
    end = replace(last, progress=last.progress * factor)
    extended = replace(training, milestones=(*training.milestones, end))
    return extended, DECLARED if declared else NO_END


def _after(training: RecordedTraining, progress: float) -> RecordedTraining | None:
    """The training from a progress on; None if nothing of it is left."""
    left = tuple(
        replace(m, progress=m.progress - progress)
        for m in training.milestones
        if m.progress > progress
    )
    return replace(training, milestones=left) if left else None


def _plain(record: JobRecord, mark: _Mark, *, has_ended: bool) -> RecordedTraining:
    """A job without reports: equal steps on the mean number of its GPUs."""
    gpus = max(1, round(record.gpu_seconds / record.run_seconds))
    total = record.run_seconds * (1.0 if has_ended else GROWTH)
    seconds = max(total - mark.run_seconds, 0.01)
    now = Configuration(gpus, 1, gpus, 1)
    return RecordedTraining(
        dataset_size=gpus * PLAIN_STEPS,
        base_batch=gpus,
        optimizer="",
        parameter_bytes=0,
        max_local_batch=None,
        step_seconds=((now, seconds / PLAIN_STEPS),),
        milestones=(Milestone(1.0, None, None, None),),
        first_loss=None,
        end=EndReason.FINISHED,
        end_message="",
        rescale_seconds=None,
        restart_seconds=None,
        start_seconds=0.0,  # its time on GPUs has it
        join_seconds=None,
    )


def _without_others(job: RecentJob, there: set[JobId]) -> RecentJob:
    """The job without dependencies on jobs that are not simulated."""
    known = tuple(each for each in job.entry.job.after if each.job in there)
    return replace(job, entry=replace(job.entry, job=structs.replace(job.entry.job, after=known)))


def _present_cluster(cluster: Cluster) -> Cluster:
    nodes = [
        Node(node.id, node.gpus, groups=node.groups, rack=node.rack)
        for node in cluster.nodes.values()
        if node.state is not NodeState.DOWN
    ]
    if not nodes:
        raise UserError("the cluster has no node now: nothing can be simulated")
    return Cluster(nodes)
