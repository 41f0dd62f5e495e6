"""The scheduler: state and policy. An event goes in, a plan comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TypeVar

from ones.core.actions import adopt, due_actions, first_actions
from ones.core.cluster import Cluster
from ones.core.events import (
    UNOBSERVED_EVENTS,
    Event,
    JobChanged,
    JobEnded,
    JobReleased,
    JobSubmitted,
    PolicyReplaced,
    Woke,
)
from ones.core.job import EndReason, JobId, SwitchCost
from ones.core.lifecycle import Phase
from ones.core.plan import Action, Change, Finish, Plan, PlanAdopted, diff
from ones.core.policy import Decision, Policy, check
from ones.core.state import State
from ones.core.transitions import apply
from ones.errors import BrokenPolicyError, OnesError, described


class Scheduler:
    """Applies events to the state, asks the policy and returns plans.

    It has no thread, clock, input or output. So the simulator and the live controller run the same
    object, and a recorded run can be replayed.

    >>> from ones.core.job import Job, JobId
    >>> from ones.policies import create
    >>> scheduler = Scheduler(Cluster.of(4), create("fifo"))
    >>> job = Job(id=JobId("a"), submitted_at=0.0, requested_gpus=2, requested_batch=64)
    >>> [type(a).__name__ for a in scheduler.handle(JobSubmitted(0.0, job)).actions]
    ['Start']
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        switch_cost: SwitchCost = SwitchCost(),
        state: State | None = None,
        in_place: bool = True,
    ) -> None:
        self.state = State(cluster, switch_cost) if state is None else state
        self.state.in_place = in_place  # False: every change of GPUs is a stop and a start
        self.policy = policy
        #: called with the exception of a failed decision; returns when to ask the policy again. The
        #: schedule stays as it is. None: the exception propagates
        self.tolerate: Callable[[Exception], float] | None = None
        #: makes the policy that a `PolicyReplaced` names; None: the policy stays
        self.make_policy: Callable[[str], Policy] | None = None
        # the engine returns an event by then; a restored scheduler asks its policy at once
        self.wake_at = inf if state is None else state.now
        self.decisions = 0  # number of adopted decisions of the policy

    def handle(self, event: Event, *, decide: bool = True) -> Plan:
        """Apply an event and return the plan that follows from it, mostly an empty one.

        With `decide=False` the policy is not asked, and the plan has due actions only. A caller
        with many events passes it for each, and then one `Woke` for a single decision.
        """
        state = self.state
        if not apply(state, event):
            return NOTHING
        if isinstance(event, PolicyReplaced) and self.make_policy is not None:
            self.policy = self.make_policy(event.policy)
            self.wake_at = event.at  # the new policy is asked at once
        self._observe(event)
        actions = due_actions(state) if state.due else []
        plan, decided = None, 0
        if decide and self._is_asked(event):
            try:
                plan, decided = self._decided(actions), 1
            except Exception as problem:
                if self.tolerate is None:
                    raise
                self.wake_at = self.tolerate(problem)
        if plan is None and actions:
            plan = self._plan(actions, None)
        if plan is not None and not plan.says_nothing:
            self._adopt(plan)
        else:
            plan = NOTHING
        self.decisions += decided
        return plan

    def _is_asked(self, event: Event) -> bool:
        decides_on = self.policy.decides_on
        return (
            type(event) in decides_on
            or type(event) is Woke
            or (self.state.requeued and JobSubmitted in decides_on)
        )

    def _decided(self, due: list[Action]) -> Plan:
        """The plan of the policy's decision, with the actions that are due anyway."""
        decision = self._ask()
        actions = [*due, *self._refusals(decision)]
        actions += first_actions(self.state, self._changes(decision))
        plan = self._plan(actions, decision)
        self.wake_at = decision.wake_at
        return plan

    def recall(self, entry: Event | Plan, *, observed: bool = True) -> None:
        """Apply an entry of a log without a decision; a restarted scheduler catches up this way.

        `observed`: False if the entry is quarantined for the policy, which does not see it.
        """
        if isinstance(entry, Plan):
            self._adopt(entry, observed=observed)
        elif apply(self.state, entry) and observed:
            self._observe(entry)
        self.wake_at = self.state.now  # the log does not have `wake_at`: ask the policy again

    def resume(self) -> Plan:
        """The plan that follows the last event of a recalled log, if a crash came before it was
        written."""
        plan = self._plan(due_actions(self.state), None)
        if plan.says_nothing:
            return NOTHING
        self._adopt(plan)
        return plan

    def take_over(self, other: Scheduler) -> None:
        """Continue with the state and the policy of a scheduler that was made from the same log."""
        self.state, self.policy, self.wake_at = other.state, other.policy, other.wake_at

    def _observe(self, event: Event | PlanAdopted) -> None:
        # jobs that this event unblocked or reordered: policies keep indexes of what may start
        released = self.state.released if type(event) is JobEnded else ()
        reordered = self.state.reordered if type(event) is not PlanAdopted else ()
        try:
            if type(event) not in UNOBSERVED_EVENTS:
                self.policy.observe(event, self.state.view())
            for job in released:
                self.policy.observe(JobReleased(event.at, job), self.state.view())
            for job in reordered:
                self.policy.observe(JobChanged(at=event.at, job=job), self.state.view())
        except BrokenPolicyError:
            raise
        except Exception as problem:
            raise BrokenPolicyError(f"`observe` raised {described(problem)}") from problem

    def _ask(self) -> Decision:
        try:
            decision = self.policy.decide(self.state.view())
        except OnesError:
            raise
        except Exception as problem:
            raise BrokenPolicyError(f"`decide` raised {described(problem)}") from problem
        if decision.wake_at <= self.state.now:
            raise BrokenPolicyError(
                f"wake_at {decision.wake_at} s is not after the time of the decision,"
                f" {self.state.now} s"
            )
        return decision

    def _changes(self, decision: Decision) -> tuple[Change, ...]:
        changes = diff(self.state.schedule, decision.schedule)
        check(self.state, changes)
        return changes

    def _refusals(self, decision: Decision) -> list[Action]:
        """The ends of the jobs that the policy does not admit; only a job that waits has one."""
        for job in decision.refused:
            record = self.state.records.get(job)
            if record is None or record.phase is not Phase.WAITING or job in decision.schedule:
                raise BrokenPolicyError(f"job {job} was refused and does not wait for admission")
        return [
            Finish(job, EndReason.REFUSED, message) for job, message in decision.refused.items()
        ]

    def _plan(self, actions: list[Action], decision: Decision | None) -> Plan:
        state = self.state
        return Plan(
            number=state.plan_number + bool(actions),
            at=state.now,
            actions=tuple(actions),
            notes=(
                _changed(decision.notes, state.records, lambda job: state.records[job].note)
                if decision
                else {}
            ),
            forecasts=(
                _changed(decision.forecasts, state.records, lambda job: state.records[job].forecast)
                if decision
                else {}
            ),
        )

    def _adopt(self, plan: Plan, *, observed: bool = True) -> None:
        adopt(self.state, plan)
        if plan.actions and observed:
            self._observe(PlanAdopted(plan.at, plan))


NOTHING = Plan(number=0, at=0.0)

_T = TypeVar("_T")


def _changed(
    values: Mapping[JobId, _T],
    unfinished: Mapping[JobId, object],
    known: Callable[[JobId], _T | None],
) -> dict[JobId, _T]:
    """The notes or forecasts that differ from those of the last decision."""
    for job in values:
        if job not in unfinished:
            raise BrokenPolicyError(
                f"the decision has a note or forecast for {job}, which is not an unfinished job"
            )
    return {job: value for job, value in values.items() if value != known(job)}
