"""The policy of `ones run`, on the real scheduler."""

from __future__ import annotations

from ones.core import events as ev
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.job import Generation, Job
from ones.core.plan import Action, Plan, Rescale, Start
from ones.core.scheduler import Scheduler
from ones.lab.scripted_policy import JOB, RETRIES, ScriptedPolicy, parse_schedule


class Run:
    """Answers orders as an engine does."""

    def __init__(self, schedule: str) -> None:
        self.policy = ScriptedPolicy(parse_schedule(schedule, 4))
        self.scheduler = Scheduler(Cluster.of(4), self.policy)
        self.orders: list[tuple[int, int, int]] = []  # plan, workers, batch
        self._last: tuple[int, Action] | None = None
        job = Job(id=JOB, submitted_at=0.0, requested_batch=16, retries=RETRIES)
        self.tell(ev.JobSubmitted(0.0, job))

    def tell(self, event: ev.Event) -> None:
        self._take(self.scheduler.handle(event))

    def _take(self, plan: Plan) -> None:
        for action in plan.actions:
            if isinstance(action, Start | Rescale):
                self._last = plan.number, action
                self.orders.append((plan.number, action.allocation.n_gpus, action.allocation.batch))

    def settle(self) -> None:
        """The last order has come together."""
        assert self._last is not None
        plan, action = self._last
        generation = Generation(plan)
        if isinstance(action, Start):
            self.tell(ev.JobDescribed(at=0.0, job=JOB, generation=generation, dataset_size=99,
                                      base_batch=16))  # fmt: skip
            for gpu in action.allocation.gpus:
                self.tell(ev.WorkerReady(0.0, JOB, generation, gpu))
        else:
            self.tell(ev.Rescaled(0.0, JOB, generation, 0.01))

    def fail(self) -> None:
        assert self._last is not None
        plan = self._last[0]
        self.tell(ev.RescaleFailed(0.0, JOB, Generation(plan), "a worker died"))
        for gpu in set(self.scheduler.state.occupants) - set(self.held):
            self.tell(ev.WorkerLeft(0.0, JOB, Generation(plan), gpu))

    def lose(self, index: int) -> None:
        generation = Generation(self.scheduler.state.plan_number)
        self.tell(ev.WorkerLost(0.0, JOB, generation, Gpu(NodeId("n0"), index), "killed"))

    @property
    def held(self) -> tuple[Gpu, ...]:
        held = self.scheduler.state.records[JOB].held
        return held.gpus if held else ()


def test_each_phase_is_ordered_when_the_one_before_is_in_force() -> None:
    run = Run("0:1,50:2,120:4x20,200:1")
    assert run.orders == [(1, 1, 16)]
    run.settle()
    assert run.orders[1:] == [(2, 2, 16)]
    run.settle()
    run.settle()
    run.settle()
    assert run.orders[2:] == [(3, 4, 20), (4, 1, 16)]


def test_its_switch_waits_for_its_step_and_a_start_does_not() -> None:
    run = Run("0:1,50:2")
    assert run.policy.may_switch(1, 0)
    run.settle()
    assert not run.policy.may_switch(2, 49)
    assert run.policy.may_switch(2, 50)


def test_growth_waits_until_leaving_workers_are_gone() -> None:
    """Else the core would need a plan to prepare it, and plan n would not be phase n."""
    run = Run("0:2,10:1,20:2")
    run.settle()
    run.settle()
    assert run.orders[1:] == [(2, 1, 16)]
    run.tell(ev.WorkerLeft(0.0, JOB, Generation(2), Gpu(NodeId("n0"), 1)))
    assert run.orders[2:] == [(3, 2, 16)]


def test_a_phase_that_fails_is_tried_again_and_given_up_after_some_tries() -> None:
    run = Run("0:1,50:2,60:3")
    run.settle()
    for _ in range(RETRIES + 1):
        run.fail()
    assert [order[1] for order in run.orders] == [1, *[2] * (RETRIES + 1)]
    assert len(run.held) == 1


def test_a_lost_worker_is_not_replaced_and_the_next_phase_comes() -> None:
    run = Run("0:3")
    run.settle()
    run.lose(1)
    run.tell(ev.Rescaled(0.0, JOB, Generation(1, 1), 0.01))
    assert run.orders == [(1, 3, 16)]
    assert len(run.held) == 2


def test_after_the_last_worker_the_phase_in_force_is_started_again() -> None:
    run = Run("0:2,50:3,90:4")
    run.settle()
    run.settle()
    assert run.orders[-1] == (3, 4, 16)  # ordered, and its step has not come
    for index in range(4):
        run.lose(index)
    assert run.orders[-1] == (5, 3, 16)  # plan 4 stopped the joining worker


def test_phases_that_change_nothing_are_left_out() -> None:
    run = Run("0:2,10:2,20:2x16,30:3")
    run.settle()
    assert run.orders == [(1, 2, 16), (2, 3, 16)]
    assert not run.policy.may_switch(2, 20)
    assert run.policy.may_switch(2, 30)


def test_what_is_saved_is_taken_up() -> None:
    run, other = Run("0:1,50:2"), ScriptedPolicy(parse_schedule("0:1,50:2", 4))
    run.settle()
    other.load(run.policy.save())
    assert other.save() == run.policy.save()
    assert not other.may_switch(2, 49)
