"""When the service asks Slurm for an allocation, and when it ends one: a pure function of time.

The allocations are read from Slurm in every turn. So a restarted controller finds those of the one
before it, and a request that reached Slurm without an answer is not made twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

PENDING, RUNNING, ENDING = "pending", "running", "ending"
#: waiting jobs must be there, or not be there, for this time before Slurm is asked for anything
SETTLE_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 1800.0  # after failures


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoLimits:
    max_nodes: int
    nodes: int = 1  # of each allocation
    slots_per_node: int = 1  # GPUs, or CPU slots
    idle_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation in Slurm. `serves`: one of its nodes has registered; `busy`: workers run."""

    state: str
    nodes: int
    serves: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of an allocation. `left`: it was ended or cancelled by us."""

    served: bool = False
    left: bool = False
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    known: Mapping[str, Known] = field(default_factory=dict)
    failures: int = 0  # in a row
    retry_at: float = 0.0
    wanted_since: float | None = None  # since when jobs wait
    unwanted_since: float | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    submit: int = 0  # number of allocations to ask for
    cancel: tuple[str, ...] = ()  # pending ones
    end: tuple[str, ...] = ()  # idle ones: their nodes drain first


def decide(
    limits: AutoLimits,
    memory: Memory,
    allocations: Mapping[str, Allocation],
    now: float,
    *,
    wanted_slots: int,
    free_slots: int,
) -> tuple[Steps, Memory]:
    """What to do now. `wanted_slots`: minimum sizes of the waiting jobs together."""
    memory = _observed(memory, allocations, now, waits=wanted_slots > 0)
    per_allocation = limits.nodes * limits.slots_per_node
    if memory.unwanted_since is not None:
        settled = now - memory.unwanted_since >= SETTLE_SECONDS
        cancel = [id for id, a in allocations.items() if a.state == PENDING] if settled else []
        end = [id for id, known in memory.known.items() if _is_idle(known, limits, now)]
        end = [id for id in end if allocations[id].state == RUNNING]
        left = {id: replace(memory.known[id], left=True) for id in (*cancel, *end)}
        memory = replace(memory, known={**memory.known, **left})
        return Steps(cancel=tuple(cancel), end=tuple(end)), memory
    assert memory.wanted_since is not None
    if now - memory.wanted_since < SETTLE_SECONDS or now < memory.retry_at:
        return Steps(), memory
    coming = sum(
        found.nodes
        for id, found in allocations.items()
        if found.state == PENDING or (found.state == RUNNING and not memory.known[id].served)
    )
    missing = wanted_slots - free_slots - coming * limits.slots_per_node
    room = limits.max_nodes - sum(a.nodes for a in allocations.values())
    submit = min(ceil(missing / per_allocation), room // limits.nodes)
    return Steps(submit=max(0, submit)), memory


def submitted(memory: Memory, id: str) -> Memory:
    """The memory after sbatch has returned this id: the allocation may end before the next turn."""
    return replace(memory, known={**memory.known, id: Known()})


def failed(memory: Memory, now: float) -> Memory:
    """The memory after sbatch has failed, or after an allocation has ended without serving."""
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(memory.failures, 20), LONGEST_PAUSE_SECONDS)
    return replace(memory, failures=memory.failures + 1, retry_at=now + pause)


def _observed(
    memory: Memory, allocations: Mapping[str, Allocation], now: float, *, waits: bool
) -> Memory:
    """The memory with what the allocations show: which serve, are idle, or have ended in vain."""
    known = {}
    for id, found in allocations.items():
        before = memory.known.get(id, Known())
        idle_since = before.idle_since if before.idle_since is not None else now
        known[id] = replace(
            before,
            served=before.served or found.serves,
            idle_since=idle_since if found.state == RUNNING and not found.busy else None,
        )
    useful = any(found.served for found in known.values())
    gone = [memory.known[id] for id in memory.known if id not in allocations]
    in_vain = any(not each.served and not each.left for each in gone)
    memory = replace(
        memory,
        known=known,
        wanted_since=None if not waits else _first(memory.wanted_since, now),
        unwanted_since=None if waits else _first(memory.unwanted_since, now),
    )
    if in_vain:
        return failed(memory, now)
    return replace(memory, failures=0) if useful and now >= memory.retry_at else memory


def _first(before: float | None, now: float) -> float:
    return now if before is None else before


def _is_idle(known: Known, limits: AutoLimits, now: float) -> bool:
    return known.idle_since is not None and now - known.idle_since >= limits.idle_seconds
