"""State changes by reports of a training script. See `transitions`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, nan

from msgspec.structs import replace

from ones.core import events as ev
from ones.core import failures
from ones.core.job import Description, EndReason, JobId, StepTime
from ones.core.lifecycle import Phase
from ones.core.record import JobRecord
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.stopping import StopReason, Track, after_epoch, after_work
from ones.wire.bounds import shared
from ones.wire.work import Unit

#: maximum number of configurations with kept step times, per job
MOST_CONFIGURATIONS = 64


def unfinished_job(state: State, job: JobId) -> JobRecord | None:
    """The record of an unfinished job, to be changed; None (and counted) for any other job."""
    if job in state.records:
        return state.touch(job)
    state.drop("ended" if job in state.ended else "unknown")
    return None


def reporting_job(state: State, event: ev.JobReport) -> JobRecord | None:
    """The job of a report; None if the report's generation is an old or a future one."""
    record = unfinished_job(state, event.job)
    if record is None:
        return None
    newest = max(record.generation.plan, record.in_flight.plan if record.in_flight else 0)
    if event.generation < record.generation or event.generation.plan > newest:
        state.drop("stale")
        return None
    return record


def described(state: State, event: ev.JobDescribed) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    if event.min_batch or event.max_batch:
        least, most = (
            event.min_batch or record.job.min_batch,
            event.max_batch or record.job.max_batch,
        )
        # refuses bounds that contradict each other
        record.job = replace(record.job, min_batch=least, max_batch=most)
    known, limit = record.description, event.max_local_batch
    if limit is not None:
        is_new = known is not None and known.max_local_batch not in (None, limit)
        if record.max_local_batch is None or is_new:
            _limit_memory(record, limit)
    record.description = Description(**shared(event, Description))
    if record.found_fixed:  # the script joined later than expected
        record.found_fixed = False
        record.job = replace(record.job, elastic=True)

    def resolved(allocation: Allocation | None) -> Allocation | None:
        if allocation is None:
            return None
        first = record.job.bounded_batch(event.base_batch)
        return allocation.resolved(first, record.max_local_batch)

    record.held = resolved(record.held)
    if record.in_flight is not None:
        record.in_flight = replace(
            record.in_flight, allocation=resolved(record.in_flight.allocation)
        )
    state.set_goal(record, resolved(record.goal))
    state.conform(record)  # a job that was taken for a fixed-size job may be on hold
    return True


def found_fixed(state: State, event: ev.JobFoundFixed) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    if not record.job.elastic:
        return state.drop("duplicate")
    record.found_fixed = True
    record.job = replace(record.job, elastic=False)
    return True


def steps_done(state: State, event: ev.StepsDone) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    if event.epoch <= record.epochs or event.samples < record.epoch_samples:
        return state.drop("duplicate")
    record.epoch_steps, record.epoch_samples = event.steps, event.samples
    if event.gradient_noise is not None:
        record.gradient_noise = event.gradient_noise
    record.effective_samples = event.effective_samples
    record.work = event.work or record.work
    _plan(record, event.planned_epochs)
    _prove(record)
    _end_if(state, record, after_work(record.job.stop, record.work_done()))
    return True


def epoch_finished(state: State, event: ev.EpochFinished) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    if event.epoch <= record.epochs:
        return state.drop("duplicate")
    record.epochs = event.epoch
    record.samples += event.samples
    record.steps += event.steps
    record.epoch_samples = record.epoch_steps = 0
    if record.first_loss is None:
        record.first_loss = event.loss if event.first_loss is None else event.first_loss
    if "loss" in event.not_finite:
        record.loss, record.diverged_epoch = None, record.diverged_epoch or event.epoch
    elif event.loss is not None:
        record.loss, record.diverged_epoch = event.loss, 0
    if event.accuracy is not None:
        record.accuracy = event.accuracy
    if event.step_seconds is not None:
        record.step_seconds = event.step_seconds
    if event.gradient_noise is not None:
        record.gradient_noise = event.gradient_noise
    record.effective_samples = event.effective_samples
    record.work = event.work or record.work
    _plan(record, event.planned_epochs)
    _prove(record)
    record.track, reason = after_epoch(
        record.job.stop,
        record.track,
        loss=nan if "loss" in event.not_finite else event.loss,
        accuracy=nan if "accuracy" in event.not_finite else event.accuracy,
    )
    _end_if(state, record, reason or after_work(record.job.stop, record.work_done()))
    return True


def _end_if(state: State, record: JobRecord, reason: StopReason | None) -> None:
    if reason is not None and record.phase is not Phase.ENDING:
        done = EndReason.FINISHED if reason.is_extent else EndReason.CONVERGED
        failures.end_soon(state, record, done, reason.value)


def training_restarted(state: State, event: ev.TrainingRestarted) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    record.epochs = record.samples = record.steps = 0
    record.epoch_steps = record.epoch_samples = record.diverged_epoch = 0
    record.first_loss = record.loss = record.accuracy = None
    record.gradient_noise = record.effective_samples = record.work = None
    record.track, record.forecast = Track(), None
    return True


def tracker_linked(state: State, event: ev.TrackerLinked) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    record.tracker = event.url
    return True


def _plan(record: JobRecord, epochs: int | None) -> None:
    if epochs is None:
        return
    epochs = min([epochs, *_epochs_of_rule(record, epochs)])
    if epochs != record.job.epochs:
        record.job = replace(record.job, epochs=epochs)


def _epochs_of_rule(record: JobRecord, epochs: int) -> Iterator[int]:
    """After how many epochs a stop rule by steps, samples or tokens ends the job."""
    rule, work, about = record.job.stop, record.work, record.description
    for unit in (Unit.STEPS, Unit.SAMPLES, Unit.TOKENS):
        limit = rule.limit(unit)
        if limit is None:
            continue
        if work is not None and work.unit is unit and work.total is not None:
            yield max(1, ceil(epochs * limit / work.total))
        elif about is not None and unit is not Unit.TOKENS:
            samples = limit if unit is Unit.SAMPLES else limit * about.base_batch
            yield max(1, ceil(samples / about.dataset_size))


def throughput_measured(state: State, event: ev.ThroughputMeasured) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    old = record.profile.get(event.configuration)
    steps = event.steps + (old.steps if old else 0)
    known = old.seconds * old.steps if old else 0.0
    mean = (known + event.step_seconds * event.steps) / steps
    profile = dict(record.profile)  # a copy: a policy may hold a view of the old one
    if len(profile) >= MOST_CONFIGURATIONS:  # drop the one measured longest ago
        profile.pop(event.configuration if old else next(iter(profile)))
    profile[event.configuration] = StepTime(mean, steps)
    record.profile = profile
    if event.first_step_extra_seconds is not None and record.moves:
        record.moved_seconds += event.first_step_extra_seconds
    _prove(record)
    return True


def memory_limit_learned(state: State, event: ev.MemoryLimitLearned) -> bool:
    record = reporting_job(state, event)
    if record is None:
        return False
    _limit_memory(record, event.max_local_batch)
    return True


def _limit_memory(record: JobRecord, limit: int) -> None:
    record.max_local_batch = limit
    record.proven_part = min(record.proven_part, limit)


def _prove(record: JobRecord) -> None:
    """Note that the local batch of the job's allocation fits into memory."""
    if record.held is not None:
        record.proven_part = max(record.proven_part, record.held.largest_part)
