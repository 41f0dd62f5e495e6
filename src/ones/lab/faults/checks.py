"""Invariants of the service, checked during a run, at each crash and at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ones.control.controller import Controller
from ones.control.recorder import recover
from ones.control.store import Entry, Store
from ones.core.job import EndReason, JobId
from ones.core.policy import Policy
from ones.core.scheduler import Scheduler
from ones.lab.faults.context import FaultContext
from ones.lab.faults.disk import SimulatedDisk, SimulatedWriter
from ones.lab.faults.job import SimulatedJob
from ones.lab.faults.launcher import SimulatedLauncher
from ones.lab.faults.users import SimulatedUsers
from ones.runlog import Header, decode
from ones.runlog.encoding import encode_saved


def values_of(scheduler: Scheduler) -> tuple[str, str]:
    """State and policy as text."""
    state = json.dumps(encode_saved(scheduler.state.snapshot()), sort_keys=True)
    return state, json.dumps(scheduler.policy.save(), sort_keys=True, default=str)


def check_recovery(
    context: FaultContext,
    disk: SimulatedDisk,
    scheduler: Scheduler,
    writer: SimulatedWriter,
    header: Header,
    policy: Callable[[], Policy],
) -> None:
    """A scheduler recovered from disk and unwritten entries must equal the one that ran."""
    store = Store(disk.engine, writer=lambda commit: writer)
    twin, _ = recover(store, header, policy())
    unwritten = writer.unwritten()
    # a plan is adopted before it is recorded, an event is applied after
    refused: Entry | None = writer.refused
    if refused is not None and refused.kind == "Plan":
        unwritten.append(refused)
    for entry in unwritten:
        known = decode(entry.text)
        assert not isinstance(known, Header)
        twin.recall(known)
    ours, theirs = values_of(scheduler), values_of(twin)
    for name, one, other in zip(("state", "policy"), ours, theirs, strict=True):
        if one != other:
            context.violation(f"recovered {name} differs: {_difference(one, other)}")


def _difference(one: str, other: str) -> str:
    """The first difference of two JSON texts."""
    return _first("", json.loads(one), json.loads(other)) or "in the order of fields"


def _first(path: str, one: Any, other: Any) -> str:  # noqa: ANN401
    if type(one) is not type(other) or not isinstance(one, dict | list):
        return "" if one == other else f"{path}: ran {str(one)[:60]}, recovered {str(other)[:60]}"
    keys = sorted({*one, *other}) if isinstance(one, dict) else range(max(len(one), len(other)))
    for key in keys:
        try:
            found = _first(f"{path}.{key}", one[key], other[key])
        except (KeyError, IndexError):
            found = f"{path}.{key}: in one only"
        if found:
            return found
    return ""


def check_counts(
    context: FaultContext, controller: Controller, jobs: Mapping[str, SimulatedJob]
) -> None:
    """No report counts twice, and none counts that was not made."""
    state = controller.scheduler.state
    for record in state.records.values():
        job = jobs.get(record.id)
        if job is None or job.spec.is_hostile:
            continue
        _at_most(context, record.id, "epochs", record.epochs, job.last_epoch)
        samples = record.epochs * job.spec.dataset_size
        _at_most(context, record.id, "samples", record.samples, samples)
        steps = sum(known.steps for known in record.profile.values())
        _at_most(context, record.id, "steps of speeds", steps, job.speed_steps)


def _at_most(context: FaultContext, id: str, what: str, value: float, limit: float) -> None:
    if value > limit:
        context.violation(f"{id}: {what} {value} in the state, {limit} reported by workers")


def check_end(
    context: FaultContext,
    disk: SimulatedDisk,
    controller: Controller,
    users: SimulatedUsers,
    jobs: Mapping[str, SimulatedJob],
    launcher: SimulatedLauncher,
) -> None:
    """Checks of the final state: jobs, processes, GPUs, read models, log."""
    state = controller.scheduler.state
    for id in users.acknowledged:
        if id not in state.ended and id not in state.records:
            context.violation(f"{id} was acknowledged and is lost")
    for id in state.records:
        context.violation(f"{id} has not ended: {state.records[id].phase}")
    for launch in launcher.living():
        context.violation(f"process {launch} outlives its job")
    for gpu, occupant in state.occupants.items():
        context.violation(f"{gpu} is still held by {occupant.job}")
    shown = {row[0]: json.loads(row[1]) for row in disk.query("SELECT job, body FROM ended_cards")}
    for id, outcome in state.ended.items():
        card = controller.board.cards.get(id)
        if card is None or not card.over or id not in shown:
            context.violation(f"{id} has ended, but its card does not show that")
        if id not in users.submitted:
            context.violation(f"{id} was never submitted")
        job = jobs.get(id)
        if job is not None and not job.spec.is_hostile:
            _check_outcome(context, id, outcome.reason, users, job)
            _check_progress(context, id, outcome.epochs, outcome.samples, outcome.reason, job)
    _check_log(context, disk, jobs)


def _check_outcome(
    context: FaultContext, id: JobId, reason: EndReason, users: SimulatedUsers, job: SimulatedJob
) -> None:
    if reason is EndReason.FINISHED and not job.completed:
        context.violation(f"{id} counts as finished and its script has not ended")
    if reason is EndReason.CANCELLED and id not in users.cancelled:
        context.violation(f"{id} counts as cancelled and was not")


def _check_progress(
    context: FaultContext, id: str, epochs: int, samples: int, reason: EndReason, job: SimulatedJob
) -> None:
    spec = job.spec
    _at_most(context, id, "epochs", epochs, job.last_epoch)
    _at_most(context, id, "samples", samples, epochs * spec.dataset_size)
    if reason is EndReason.FINISHED and spec.joins and not job.unreported_epochs:
        if epochs != spec.epochs:
            context.violation(f"{id} finished with {epochs} epochs of {spec.epochs}")
        elif samples != epochs * spec.dataset_size:
            context.violation(f"{id} has {samples} samples, not {epochs * spec.dataset_size}")


def _check_log(
    context: FaultContext, disk: SimulatedDisk, jobs: Mapping[str, SimulatedJob]
) -> None:
    """The log has at most one entry for each report."""
    kinds = {
        "EpochFinished": "Epoch",
        "ThroughputMeasured": "Speed",
        "MemoryLimitLearned": "MemoryLimit",
    }
    rows = disk.query(
        "SELECT m.job, l.kind, count(*) FROM log l JOIN mentions m ON m.number = l.number"
        " GROUP BY m.job, l.kind"
    )
    for id, kind, count in rows:
        job = jobs.get(id)
        if kind in kinds and job is not None and not job.spec.is_hostile:
            _at_most(context, id, f"entries {kind}", count, job.report_counts[kinds[kind]])
