"""A whole simulated run: takes a trace and a policy, gives the run log and the final state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ones.core.cluster import Cluster
from ones.core.engine import drive
from ones.core.events import Event, FairShareSet, NodeUp
from ones.core.job import JobId, SwitchCost
from ones.core.plan import Plan, PlanAdopted
from ones.core.policy import Decision, Policy
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.core.view import View
from ones.errors import UnknownNameError
from ones.sim.engine import MECHANISMS, SimEngine
from ones.sim.lengths import Truth, physics_of
from ones.sim.physics import JobPhysics
from ones.sim.stragglers import NO_STRAGGLERS, Stragglers
from ones.workload.trace import Trace, check_fits

Entry = Event | Plan

#: assumed cost of a change of a job before one was measured
PRIORS = {
    "elastic": SwitchCost(1.0, 25.0),
    "checkpoint": SwitchCost(25.0, 25.0),
    "suspend": SwitchCost(5.0, 0.5),
}


def slots_of(policy: Policy) -> int:
    """Jobs that may share a GPU under this policy: 1, unless it declares more for simulations."""
    return int(getattr(policy, "slots_per_gpu", 1))


def _with_slots(trace: Trace, slots: int) -> Trace:
    """The trace with GPUs of joining nodes counted in slots."""
    incidents = [
        replace(incident, gpus=incident.gpus * slots, slots=slots)
        if isinstance(incident, NodeUp)
        else incident
        for incident in trace.incidents
    ]
    return Trace.of(trace.name, trace.jobs, incidents)


def mechanism_of(name: str, policy: Policy) -> str:
    """The mechanism to use: `native` is the one that the policy declares."""
    if name == "native":
        return policy.native_mechanism
    if name not in MECHANISMS:
        raise UnknownNameError("mechanism", name, ("native", *MECHANISMS))
    return name


@dataclass(frozen=True, slots=True)
class Simulation:
    """Result of a run: its final state, and the cost of computing it."""

    state: State
    events: int
    wall_seconds: float
    policy_cpu_seconds: float


class Simulator:
    """Runs a simulation once. It is created before the run so that a log can be opened with its
    scheduler."""

    def __init__(  # noqa: PLR0913
        self,
        trace: Trace,
        cluster: Cluster,
        policy: Policy,
        *,
        mechanism: str = "native",
        seed: int = 0,
        physics: Callable[[Truth], JobPhysics] = physics_of,
        in_place: bool = True,
        kills: Sequence[tuple[float, JobId]] = (),
        stragglers: Stragglers = NO_STRAGGLERS,
        half_life: float = 0.0,
    ) -> None:
        """`in_place` False: jobs change GPUs by a stop and a start, as in a live service with the
        mechanism `restart`. `kills`: (time, job) at which jobs lose a worker. `stragglers`: nodes
        that are slow for some time. `half_life`: of past use in the order of jobs, in seconds;
        0: it does not count."""
        check_fits(trace, cluster)
        slots = slots_of(policy)
        if slots > 1:
            cluster, trace = cluster.shared(slots), _with_slots(trace, slots)
        self.cluster = cluster
        self.mechanism = mechanism_of(mechanism, policy)
        self._timed = _TimedPolicy(policy)
        self.scheduler = Scheduler(
            cluster, self._timed, switch_cost=PRIORS[self.mechanism], in_place=in_place
        )
        self._engine = SimEngine(
            trace,
            cluster,
            physics,
            mechanism=self.mechanism,
            seed=seed,
            kills=kills,
            stragglers=stragglers,
            first=[FairShareSet(0.0, half_life)] if half_life else [],
        )

    def run(
        self,
        record: Callable[[Entry], None] = lambda entry: None,
        progress: Callable[[State], None] | None = None,
    ) -> Simulation:
        """Runs until no event is left. `progress` is called every 256 log entries."""
        began = time.perf_counter()
        state = self.scheduler.state
        if progress is None:
            drive(self.scheduler, self._engine, record)
        else:
            drive(self.scheduler, self._engine, _with_progress(record, state, progress))
        return Simulation(
            state,
            self._engine.events,
            time.perf_counter() - began,
            self._timed.cpu_seconds,
        )


def _with_progress(
    record: Callable[[Entry], None], state: State, progress: Callable[[State], None]
) -> Callable[[Entry], None]:
    seen = 0

    def recording(entry: Entry) -> None:
        nonlocal seen
        seen += 1
        if seen % 256 == 0:
            progress(state)
        record(entry)

    return recording


class _TimedPolicy:
    """A policy with a counter of its CPU time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.decides_on = policy.decides_on
        self.native_mechanism = policy.native_mechanism
        self.save = policy.save
        self.load = policy.load
        self.cpu_seconds = 0.0

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        began = time.thread_time()
        self._policy.observe(event, view)
        self.cpu_seconds += time.thread_time() - began

    def decide(self, view: View) -> Decision:
        began = time.thread_time()
        decision = self._policy.decide(view)
        self.cpu_seconds += time.thread_time() - began
        return decision
