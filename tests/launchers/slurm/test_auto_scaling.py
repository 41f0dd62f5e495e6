"""When allocations are asked for and ended, in virtual time: a Slurm that starts them late, refuses
them and loses them, and controllers that are restarted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ones.launchers.slurm.auto_scaling import (
    LONGEST_PAUSE_SECONDS,
    PENDING,
    RUNNING,
    SETTLE_SECONDS,
    Allocation,
    AutoLimits,
    Memory,
    Steps,
    decide,
    failed,
    submitted,
)

TURN = 2.0


@dataclass
class FakeSlurm:
    limits: AutoLimits
    wanted: int = 0  # slots
    now: float = 0.0
    refuses: bool = False
    starts: bool = True  # pending allocations start at the next turn
    memory: Memory = field(default_factory=Memory)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    submitted: int = 0
    ended: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> int:
        return sum(each.nodes for each in self.allocations.values())

    @property
    def missing(self) -> int:
        """Slots that waiting jobs lack: jobs run as soon as their slots serve."""
        return max(0, self.wanted - self.serving)

    @property
    def serving(self) -> int:
        return self.limits.slots_per_node * sum(
            a.nodes for a in self.allocations.values() if a.serves
        )

    def turn(self) -> Steps:
        self.now += TURN
        steps, self.memory = decide(
            self.limits, self.memory, self.allocations, self.now,
            wanted_slots=self.missing, free_slots=0,
        )  # fmt: skip
        for id in (*steps.cancel, *steps.end):
            del self.allocations[id]
            self.ended.append(id)
        for id, found in self.allocations.items():
            if found.state == PENDING and self.starts:
                self.allocations[id] = replace(found, state=RUNNING)
            elif found.state == RUNNING:
                self.allocations[id] = replace(found, serves=True, busy=self.wanted > 0)
        for _ in range(steps.submit):
            self.submitted += 1
            if self.refuses:
                self.memory = failed(self.memory, self.now)
                break
            self.allocations[str(self.submitted)] = Allocation(PENDING, self.limits.nodes)
            self.memory = submitted(self.memory, str(self.submitted))
        return steps

    def turns(self, seconds: float) -> None:
        for _ in range(ceil(seconds / TURN)):
            self.turn()


LIMITS = AutoLimits(max_nodes=4, slots_per_node=2, idle_seconds=60.0)


def test_nodes_come_when_jobs_wait_and_go_when_they_are_idle() -> None:
    slurm = FakeSlurm(LIMITS)
    slurm.turns(60.0)
    assert slurm.submitted == 0
    slurm.wanted = 3
    slurm.turns(60.0)
    assert (slurm.submitted, slurm.serving) == (2, 4)
    slurm.wanted = 100
    slurm.turns(3600.0)
    assert (slurm.submitted, slurm.nodes) == (4, 4), "the maximum"
    slurm.wanted = 0
    slurm.turns(50.0)
    assert slurm.nodes == 4
    slurm.turns(20.0)
    assert slurm.allocations == {}


def test_a_job_that_waits_for_a_moment_gets_no_node() -> None:
    slurm = FakeSlurm(LIMITS)
    for _ in range(50):
        slurm.wanted = 1
        slurm.turns(SETTLE_SECONDS - TURN)
        slurm.wanted = 0
        slurm.turn()
    assert slurm.submitted == 0


def test_pending_allocations_are_cancelled_when_no_job_waits() -> None:
    slurm = FakeSlurm(LIMITS, wanted=5, starts=False)
    slurm.turns(60.0)
    assert (slurm.submitted, slurm.nodes) == (3, 3)
    slurm.wanted = 0
    slurm.turns(SETTLE_SECONDS + TURN)
    assert slurm.allocations == {}
    assert slurm.memory.failures == 0, "we cancelled them"


def test_pauses_double_while_slurm_refuses() -> None:
    slurm = FakeSlurm(LIMITS, wanted=1, refuses=True)
    at, last = [], 0
    while slurm.now < 5 * LONGEST_PAUSE_SECONDS:
        slurm.turn()
        if slurm.submitted > last:
            last = slurm.submitted
            at.append(slurm.now)
    pauses = [b - a for a, b in pairwise(at)]
    assert pauses[:4] == [30.0, 60.0, 120.0, 240.0]
    assert max(pauses) == LONGEST_PAUSE_SECONDS
    slurm.refuses = False
    slurm.turns(LONGEST_PAUSE_SECONDS + 60.0)
    assert (slurm.nodes, slurm.memory.failures) == (1, 0)


def test_allocations_that_end_without_serving_are_not_asked_for_at_once_again() -> None:
    slurm = FakeSlurm(LIMITS, wanted=1, starts=False)
    while slurm.now < 600.0:
        slurm.turn()
        slurm.allocations.clear()  # its script fails
    assert slurm.submitted <= 6


@given(
    st.builds(
        AutoLimits,
        max_nodes=st.integers(1, 8),
        nodes=st.integers(1, 3),
        slots_per_node=st.integers(1, 4),
        idle_seconds=st.sampled_from([4.0, 60.0]),
    ),
    st.lists(
        st.one_of(
            st.integers(0, 20),  # slots that jobs want now
            st.sampled_from(["restart", "refuse", "accept", "hold", "start", "lose", "wait"]),
        ),
        max_size=40,
    ),
)
def test_there_are_never_more_nodes_than_allowed_or_wanted(
    limits: AutoLimits, happenings: list[int | str]
) -> None:
    slurm = FakeSlurm(limits)
    for what in happenings:
        match what:
            case int():
                slurm.wanted = what
            case "restart":
                slurm.memory = Memory()
            case "refuse" | "accept":
                slurm.refuses = what == "refuse"
            case "hold" | "start":
                slurm.starts = what == "start"
            case "lose" if slurm.allocations:
                del slurm.allocations[min(slurm.allocations)]
            case _:
                slurm.turns(30.0)
        before, pause, lacking = slurm.nodes, slurm.memory.retry_at, slurm.missing
        steps = slurm.turn()
        assert slurm.nodes <= limits.max_nodes
        if steps.submit:
            assert slurm.now >= pause
            assert lacking > 0
            per = limits.nodes * limits.slots_per_node
            coming = before * limits.slots_per_node - slurm.serving
            assert steps.submit <= ceil(lacking / per), (before, coming)
        assert not (steps.submit and (steps.cancel or steps.end))
    slurm.refuses, slurm.starts, slurm.wanted = False, True, 0
    slurm.turns(limits.idle_seconds + 30.0)
    assert slurm.allocations == {}, "nothing is left when nothing is wanted"
    slurm.wanted = 10**6
    slurm.turns(2 * LONGEST_PAUSE_SECONDS)
    assert slurm.nodes == limits.max_nodes // limits.nodes * limits.nodes, "all that is allowed"


@given(st.integers(1, 20), st.lists(st.integers(0, 20), max_size=8))
def test_a_restarted_controller_asks_for_nothing_twice(wanted: int, restarts: list[int]) -> None:
    slurm = FakeSlurm(AutoLimits(max_nodes=100, slots_per_node=2), wanted=wanted, starts=False)
    for turns in restarts:
        slurm.turns(turns * TURN)
        slurm.memory = Memory()
    slurm.turns(30.0)
    assert slurm.submitted == ceil(wanted / 2)
