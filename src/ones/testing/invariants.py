"""Invariants of the scheduler's state, checked by comparing its indexes with the records."""

from __future__ import annotations

from ones.core import NodeState, State
from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.core.lifecycle import OrderKind
from ones.core.record import phase_of


def check_invariants(state: State) -> None:
    """Raises AssertionError if an invariant does not hold."""
    _check_assignments(state)
    _check_occupants(state)
    _check_queue(state)
    _check_fair_share(state)
    for record in state.records.values():
        assert record.id not in state.ended
        assert record.phase is phase_of(record, record.goal)
        if record.in_flight is not None and record.in_flight.kind is not OrderKind.STOP:
            assert record.in_flight.allocation is not None
            assert record.occupied, "a pending start or rescale without a GPU"
        if record.held is not None and record.in_flight is None and not record.reforming:
            # a job trains where its processes are
            assert set(record.held.gpus) <= record.occupied


def _check_assignments(state: State) -> None:
    """A GPU is assigned to at most one job; all indexes agree with the records."""
    owners: dict[Gpu, str] = {}
    use: dict[str, int] = {}
    for record in state.records.values():
        assert state.schedule.get(record.id) == record.goal
        if record.goal is None:
            continue
        use[record.job.owner] = use.get(record.job.owner, 0) + record.goal.n_gpus
        for gpu in record.goal.gpus:
            assert gpu not in owners, f"{gpu} is assigned to {owners[gpu]} and {record.id}"
            owners[gpu] = record.id
            assert state.cluster.state_of(gpu) not in (None, NodeState.DOWN)
    assert owners == state.assigned
    assert len(state.schedule) == sum(r.goal is not None for r in state.records.values())
    assert {o: n for o, n in state.waiting.use.items() if n} == use
    free = [
        gpu
        for gpu in state.cluster.gpus()
        if state.cluster.state_of(gpu) is NodeState.UP and gpu not in owners
    ]
    assert list(state.free) == free
    assert len(state.free) == len(free)
    for node in state.cluster.nodes.values():
        room = state.free.room(node.id)
        assert node.id in list(state.free.nodes_with(room))
    for owner, limit in state.waiting.limits.items():
        room_left = state.waiting.room(owner)
        assert room_left == limit - use.get(owner, 0)


def _check_occupants(state: State) -> None:
    """A GPU is occupied by at most one job; records and `occupants` agree."""
    for gpu, occupant in state.occupants.items():
        if occupant.job in state.records:
            assert gpu in state.records[occupant.job].occupied
        assert state.cluster.state_of(gpu) is not NodeState.DOWN
    for record in state.records.values():
        for gpu in record.occupied:
            assert state.occupants[gpu].job == record.id


def _check_fair_share(state: State) -> None:
    """Owners are counted with the GPUs that their unfinished jobs occupy."""
    shares = state.fair_share
    gpus: dict[str, int] = {}
    jobs: dict[str, list[JobId]] = {}
    for record in state.records.values():
        gpus[record.job.owner] = gpus.get(record.job.owner, 0) + len(record.occupied)
        jobs.setdefault(record.job.owner, []).append(record.id)
        assert record.penalty == shares.penalty(record.job.owner)
        assert 0 <= record.penalty < 1
    assert {owner: list(mine) for owner, mine in shares.jobs.items()} == jobs
    if shares:
        counted = {owner: use.gpus for owner, use in shares.owners.items() if use.gpus}
        assert counted == {owner: n for owner, n in gpus.items() if n}


def _check_queue(state: State) -> None:
    for record in state.records.values():
        should_wait = record.settled and record.goal is None
        assert (record.id in state.waiting) == (should_wait and not record.blocked)
        assert (record.id in state.blocked) == (should_wait and record.blocked)
        runs = record.settled and record.goal is not None
        assert not (runs and record.blocked and record.job.elastic)
    keys = list(state.waiting.visible())
    assert keys == sorted(keys)
