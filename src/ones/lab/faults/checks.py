"""What must hold whatever happened: looked at during a run, at each crash and at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ones.control.controller import Controller
from ones.control.recorder import recover
from ones.control.store import Entry, Store
from ones.core.brain import Brain
from ones.core.job import EndReason, JobId
from ones.core.policy import Policy
from ones.lab.faults.disk import SimulatedDisk, SimulatedWriter
from ones.lab.faults.launcher import SimulatedLauncher
from ones.lab.faults.training import Training
from ones.lab.faults.users import Users
from ones.lab.faults.world import World
from ones.runlog import Header, decode
from ones.runlog.encoding import encode_saved


def values_of(brain: Brain) -> tuple[str, str]:
    """State and policy as text."""
    state = json.dumps(encode_saved(brain.state.snapshot()), sort_keys=True)
    return state, json.dumps(brain.policy.save(), sort_keys=True, default=str)


def check_recovery(
    world: World,
    disk: SimulatedDisk,
    brain: Brain,
    writer: SimulatedWriter,
    header: Header,
    policy: Callable[[], Policy],
) -> None:
    """A brain recovered from the disk, with what was not yet written, equals the one that ran."""
    store = Store(disk.engine, writer=lambda commit: writer)
    twin, _ = recover(store, header, policy())
    unwritten = writer.unwritten()
    # a plan is adopted before it is recorded, an event applied after
    refused: Entry | None = writer.refused
    if refused is not None and refused.kind == "Plan":
        unwritten.append(refused)
    for entry in unwritten:
        known = decode(entry.text)
        assert not isinstance(known, Header)
        twin.recall(known)
    ours, theirs = values_of(brain), values_of(twin)
    for name, one, other in zip(("state", "policy"), ours, theirs, strict=True):
        if one != other:
            world.violation(f"recovered {name} differs: {_difference(one, other)}")


def _difference(one: str, other: str) -> str:
    """Where two JSON texts differ first."""
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


def check_counts(world: World, controller: Controller, trainings: Mapping[str, Training]) -> None:
    """No report counts twice, and none that was not made."""
    state = controller.brain.state
    for record in state.records.values():
        training = trainings.get(record.id)
        if training is None or training.spec.is_hostile:
            continue
        _at_most(world, record.id, "epochs", record.epochs, training.farthest)
        samples = record.epochs * training.spec.dataset_size
        _at_most(world, record.id, "samples", record.samples, samples)
        steps = sum(known.steps for known in record.profile.values())
        _at_most(world, record.id, "steps of speeds", steps, training.speed_steps)


def _at_most(world: World, job: str, what: str, value: float, limit: float) -> None:
    if value > limit:
        world.violation(f"{job}: {what} {value} in the state, {limit} in truth")


def check_end(
    world: World,
    disk: SimulatedDisk,
    controller: Controller,
    users: Users,
    trainings: Mapping[str, Training],
    launcher: SimulatedLauncher,
) -> None:
    """All is over, and as it should be."""
    state = controller.brain.state
    for job in users.acknowledged:
        if job not in state.ended and job not in state.records:
            world.violation(f"{job} was acknowledged and is lost")
    for job in state.records:
        world.violation(f"{job} has not ended: {state.records[job].phase}")
    for launch in launcher.living():
        world.violation(f"process {launch} outlives its job")
    for gpu, occupant in state.occupants.items():
        world.violation(f"{gpu} is still held by {occupant.job}")
    shown = {row[0]: json.loads(row[1]) for row in disk.query("SELECT job, body FROM ended_cards")}
    for job, outcome in state.ended.items():
        card = controller.board.cards.get(job)
        if card is None or not card.over or job not in shown:
            world.violation(f"{job} has ended and its card does not say so")
        if job not in users.asked:
            world.violation(f"{job} was never submitted")
        training = trainings.get(job)
        if training is not None and not training.spec.is_hostile:
            _check_outcome(world, job, outcome.reason, users, training)
            _check_progress(world, job, outcome.epochs, outcome.samples, outcome.reason, training)
    _check_log(world, disk, trainings)


def _check_outcome(
    world: World, job: JobId, reason: EndReason, users: Users, training: Training
) -> None:
    if reason is EndReason.FINISHED and not training.completed:
        world.violation(f"{job} counts as finished and its script has not ended")
    if reason is EndReason.CANCELLED and job not in users.cancelled:
        world.violation(f"{job} counts as cancelled and was not")


def _check_progress(
    world: World, job: str, epochs: int, samples: int, reason: EndReason, training: Training
) -> None:
    spec = training.spec
    _at_most(world, job, "epochs", epochs, training.farthest)
    _at_most(world, job, "samples", samples, epochs * spec.dataset_size)
    if reason is EndReason.FINISHED and spec.joins and not training.unsaid:
        if epochs != spec.epochs:
            world.violation(f"{job} finished with {epochs} epochs of {spec.epochs}")
        elif samples != epochs * spec.dataset_size:
            world.violation(f"{job} has {samples} samples, not {epochs * spec.dataset_size}")


def _check_log(world: World, disk: SimulatedDisk, trainings: Mapping[str, Training]) -> None:
    """Each report is one entry at most."""
    kinds = {
        "EpochFinished": "Epoch",
        "ThroughputMeasured": "Speed",
        "MemoryLimitLearned": "MemoryLimit",
    }
    rows = disk.query(
        "SELECT m.job, l.kind, count(*) FROM log l JOIN mentions m ON m.number = l.number"
        " GROUP BY m.job, l.kind"
    )
    for job, kind, count in rows:
        training = trainings.get(job)
        if kind in kinds and training is not None and not training.spec.is_hostile:
            said = training.spoken[kinds[kind]]
            _at_most(world, job, f"entries {kind}", count, said)
