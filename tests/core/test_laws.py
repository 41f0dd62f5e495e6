"""Laws of the core, against a world in which anything may happen at any time."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from ones.core import (
    Allocation,
    Cluster,
    Event,
    Gpu,
    JobId,
    NodeId,
    NodeState,
    Plan,
    Scheduler,
    drive,
)
from ones.core import events as ev
from ones.core.plan import Rescale, Start
from ones.testing.chaos import ChaosEngine
from ones.testing.invariants import check_invariants
from tests.random_policy import RandomPolicy

seeds = st.integers(0, 2**32)


def run_chaos(
    seed: int,
    *,
    trouble: float,
    look: Callable[[Scheduler, Event | Plan], None] = lambda b, e: None,
) -> tuple[Scheduler, ChaosEngine, list[Event | Plan]]:
    cluster = Cluster.of(10, 4)
    scheduler = Scheduler(cluster, RandomPolicy(seed))
    engine = ChaosEngine(cluster, 6, seed, trouble=trouble)
    log: list[Event | Plan] = []

    def record(entry: Event | Plan) -> None:
        check_invariants(scheduler.state)
        look(scheduler, entry)
        log.append(entry)
        assert len(log) < 20_000, "it does not come to an end"

    drive(scheduler, engine, record)
    check_invariants(scheduler.state)
    return scheduler, engine, log


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_whatever_happens_the_tables_agree_and_every_job_ends(seed: int) -> None:
    """The engine also asserts that no job is placed on a GPU with another process."""
    scheduler, _, log = run_chaos(seed, trouble=0.15)
    submitted = [e.job.id for e in log if isinstance(e, ev.JobSubmitted)]
    assert sorted(scheduler.state.ended) == sorted(submitted)
    assert not scheduler.state.records


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_jobs_that_trade_gpus_never_deadlock_and_never_share_one(seed: int) -> None:
    scheduler, _, _ = run_chaos(seed, trouble=0.0)
    assert not scheduler.state.records
    assert not scheduler.state.occupants


class Holding:
    """Execution time, computed again from the log alone: seconds with at least one GPU."""

    def __init__(self) -> None:
        self.seconds: dict[JobId, float] = {}
        self._since: dict[JobId, float] = {}
        self._on: dict[Gpu, JobId] = {}
        self._ended: set[JobId] = set()

    def take(self, entry: Event | Plan) -> None:
        match entry:
            case Plan():
                for action in entry.actions:
                    if isinstance(action, Start | Rescale):
                        self._on.update(dict.fromkeys(action.allocation.gpus, action.job))
                        self._settle(action.job, entry.at)
            case ev.WorkerLeft() | ev.WorkerLost():
                if self._on.get(entry.gpu) == entry.job:
                    self._leave(entry.gpu, entry.at)
            case ev.NodeDown():
                for gpu in [g for g in self._on if g.node == entry.node]:
                    self._leave(gpu, entry.at)
            case ev.JobEnded():
                self._settle(entry.job, entry.at)
                self._since.pop(entry.job, None)
                self._ended.add(entry.job)

    def _leave(self, gpu: Gpu, at: float) -> None:
        self._settle(self._on.pop(gpu), at)

    def _settle(self, job: JobId, now: float) -> None:
        if job in self._ended:
            return
        if job in self._since:
            self.seconds[job] = self.seconds.get(job, 0.0) + now - self._since.pop(job)
        if job in self._on.values():
            self._since[job] = now


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_completion_is_queueing_plus_execution(seed: int) -> None:
    scheduler, _, log = run_chaos(seed, trouble=0.15)
    holding = Holding()
    for entry in log:
        holding.take(entry)
    for outcome in scheduler.state.ended.values():
        total = outcome.queue_seconds + outcome.run_seconds
        assert abs(outcome.completion_seconds - total) < 1e-6
        assert abs(outcome.run_seconds - holding.seconds.get(outcome.id, 0.0)) < 1e-6


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_node_that_dies_takes_no_other_job_with_it(seed: int) -> None:
    def look(scheduler: Scheduler, entry: Event | Plan) -> None:
        if pending:
            node, before = pending.pop()
            state = scheduler.state
            if state.cluster.nodes[node].state is NodeState.DOWN:
                for job, held in before.items():
                    if job in state.records:
                        assert state.records[job].held == held
        if isinstance(entry, ev.NodeDown):
            untouched = {
                record.id: record.held
                for record in scheduler.state.records.values()
                if not any(g.node == entry.node for g in record.occupied)
                and (record.goal is None or not any(g.node == entry.node for g in record.goal.gpus))
            }
            pending.append((entry.node, untouched))

    pending: list[tuple[NodeId, dict[JobId, Allocation | None]]] = []
    run_chaos(seed, trouble=0.3, look=look)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_stranger_s_replay_of_events_and_plans_gives_the_same_state(seed: int) -> None:
    """Recovery takes recorded plans for true: no decision is needed to reach the state."""
    scheduler, _, log = run_chaos(seed, trouble=0.15)
    again = Scheduler(Cluster.of(10, 4), RandomPolicy(seed))
    for entry in log:
        again.recall(entry)
    assert again.state.snapshot() == scheduler.state.snapshot()
    assert again.policy.save() == scheduler.policy.save()
