"""Times that a live service takes and the paper's cluster does not count: told, they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from ones.core import Cluster, Event, JobId, Plan, State
from ones.core import events as ev
from ones.core.plan import Rescale, Start, Stop
from ones.sim import KindPhysics, Simulator
from ones.sim.lengths import Truth
from ones.sim.physics import Noise, SwitchTimes
from ones.testing.invariants import check_invariants
from ones.workload import Training
from tests.sim.test_engine import Diary, first, trace

A = JobId("a")
TIMES = SwitchTimes(
    first_start=2.0, join=1.0, regroup=0.1, rescale=0.2, restart=3.0, notice=0.4, leave=0.3,
    stop=0.6, finish=0.05, clear=0.25, epoch=0.15, recover=0.8, warms_early=False,
)  # fmt: skip


@dataclass
class Slow(KindPhysics):
    """A kind with the delays of a live service."""

    def __init__(self, training: Truth) -> None:
        assert isinstance(training, Training)
        super().__init__(training)
        self.switch = TIMES
        self.report_noise = Noise(0.0, 0.0)


def play(
    sizes: dict[float, int],
    *,
    epochs: int = 40,
    in_place: bool = True,
    kills: tuple[float, ...] = (),
) -> tuple[State, list[Event | Plan]]:
    log: list[Event | Plan] = []
    simulator = Simulator(
        trace(epochs), Cluster.of(8, 8), Diary(sizes), mechanism="elastic", physics=Slow,
        in_place=in_place, kills=[(at, A) for at in kills],
    )  # fmt: skip
    state = simulator.run(log.append).state
    check_invariants(state)
    assert not state.occupants
    return state, log


def order(log: list[Event | Plan], kind: type[object], after: float = 0.0) -> Plan:
    plans = (e for e in log if isinstance(e, Plan) and e.at >= after)
    return next(plan for plan in plans if any(isinstance(a, kind) for a in plan.actions))


def test_processes_take_time_to_go() -> None:
    _, log = play({0.0: 4, 20.0: 2})
    changed = first(log, ev.Rescaled, 20.0)
    assert changed.at - order(log, Rescale, 20.0).at >= TIMES.notice + TIMES.regroup
    gone = first(log, ev.WorkerLeft)
    assert gone.at - (changed.at - TIMES.regroup) == pytest.approx(TIMES.leave)
    ended = first(log, ev.JobEnded)
    last = [e for e in log if isinstance(e, ev.EpochFinished)][-1]
    assert ended.at - last.at == pytest.approx(TIMES.finish)
    assert first(log, ev.WorkerLeft, ended.at).at - ended.at == pytest.approx(TIMES.clear)


def test_epochs_have_time_between_them() -> None:
    _, log = play({0.0: 1}, epochs=4)
    ends = [e for e in log if isinstance(e, ev.EpochFinished)]
    for one, two in pairwise(ends):
        assert two.at - one.at == pytest.approx(two.steps * (two.step_seconds or 0) + TIMES.epoch)


def test_without_elasticity_a_change_is_a_stop_and_a_start() -> None:
    state, log = play({0.0: 2, 10.0: 4, 20.0: 3}, in_place=False)
    orders = [a for e in log if isinstance(e, Plan) for a in e.actions]
    sizes = [a.allocation.n_gpus for a in orders if isinstance(a, Rescale)]
    assert set(sizes) <= {2}  # with the first size, to its own batch
    assert [a.allocation.n_gpus for a in orders if isinstance(a, Start)] == [2, 4, 3]
    assert state.ended[A].preemptions == 0  # it was moved, and no other job took its GPUs
    stopped = order(log, Stop)
    assert order(log, Start, stopped.at).at - stopped.at >= TIMES.stop


def test_a_killed_worker_is_lost_and_the_others_re_form() -> None:
    state, log = play({0.0: 3}, kills=(10.0,))
    lost = first(log, ev.WorkerLost)
    assert lost.at == 10.0
    again = first(log, ev.Rescaled, lost.at)
    assert again.at - lost.at == pytest.approx(TIMES.recover or 0.0)
    assert state.ended[A].losses == 1
    assert state.ended[A].epochs == 40


def test_an_order_for_a_finished_job_leaves_no_worker_on_a_gpu() -> None:
    _, log = play({0.0: 1}, epochs=3)
    end = first(log, ev.JobEnded).at
    for moment in (end - 0.04, end - 0.01):  # its epochs are done, and not reported yet
        state, _ = play({0.0: 1, moment: 4}, epochs=3)
        assert state.ended[A].epochs == 3
        state, _ = play({0.0: 1, moment: 0}, epochs=3)
        assert state.ended[A].epochs == 3
