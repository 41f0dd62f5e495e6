"""Steps that the scripts of `ones bench rescale` recorded, and the pauses between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class StepRecord:
    workers: int
    step: int  # number of steps after it
    begin: float
    end: float
    rank: int


@dataclass(slots=True)
class ProcessTrace:
    """The steps of one process."""

    steps: list[StepRecord] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """The seconds between the last step with the old workers and the first with the new ones."""

    before: int
    after: int
    seconds: float  # until the staying workers may begin their first step; the longest
    until_stepped: float  # until that step is complete everywhere
    at: float  # when the last old step ended
    main: float  # `seconds` of the first worker alone
    lost: int = 0  # steps that have to be repeated
    slowed: float = 0.0  # extra time of the steps before, in which the change was prepared
    first_step_extra: float = 0.0  # time of the first step beyond that of a plain step


def read_traces(directory: Path) -> list[ProcessTrace]:
    return [read_trace(path) for path in sorted(directory.glob("*.jsonl"))]


def read_trace(path: Path) -> ProcessTrace:
    trace = ProcessTrace()
    for text in path.read_text().splitlines(keepends=True):
        if not text.endswith("\n"):
            break  # the process was killed while it wrote
        line = json.loads(text)
        trace.rank = line["rank"]
        if "moments" in line:
            trace.moments |= line["moments"]
        else:
            trace.steps.append(StepRecord(**line))
    return trace


def pauses_in_place(traces: list[ProcessTrace]) -> list[Pause]:
    """Pauses of processes that continue, in the order of their steps."""
    changes: dict[tuple[int, int, int], list[tuple[StepRecord, StepRecord]]] = {}
    for trace in traces:
        for old, new in pairwise(trace.steps):
            if old.workers != new.workers:
                key = (old.step, old.workers, new.workers)
                changes.setdefault(key, []).append((old, new))
    found = []
    for (step, before, after), pairs in sorted(changes.items()):
        if len(pairs) < min(before, after):
            continue  # not all processes have written their steps yet
        firsts = [s for t in traces for s in t.steps if s.step == step + 1 and s.workers == after]
        at = max(old.end for old, _ in pairs)
        main = min(pairs, key=lambda pair: pair[1].rank)
        found.append(
            Pause(
                before,
                after,
                seconds=max(new.begin - old.end for old, new in pairs),
                until_stepped=max(first.end for first in firsts) - at,
                at=at,
                main=main[1].begin - main[0].end,
                slowed=_slowed(next(t for t in traces if main[0] in t.steps), main[0]),
                first_step_extra=_first_step_extra(
                    next(t for t in traces if main[1] in t.steps), main[1]
                ),
            )
        )
    return found


def _slowed(trace: ProcessTrace, last: StepRecord) -> float:
    """Time beyond the usual step length, over the second half of the steps with these workers.

    The usual length is the median of the first half. Small values are noise and may be negative.
    """
    place = trace.steps.index(last)
    first = place
    while first > 0 and trace.steps[first - 1].workers == last.workers:
        first -= 1
    lengths = [b.end - a.end for a, b in pairwise(trace.steps[first : place + 1])]
    half = len(lengths) // 2
    if half == 0:
        return 0.0
    usual = median(lengths[:half])
    return sum(length - usual for length in lengths[half:])


def _first_step_extra(trace: ProcessTrace, first: StepRecord) -> float:
    """Time of this step beyond a plain one: the median of the next steps with these workers.

    Without any, that of the steps before.
    """
    place = trace.steps.index(first)
    later = [s for s in trace.steps[place + 1 :] if s.workers == first.workers]
    lengths = [s.end - s.begin for s in later or trace.steps[:place]]
    return max(0.0, first.end - first.begin - median(lengths)) if lengths else 0.0


def pause_of_restart(old: list[ProcessTrace], new: list[ProcessTrace]) -> Pause:
    """The pause between processes that ended and those that replaced them."""
    before, after = old[0].steps[-1].workers, new[0].steps[0].workers
    last = max(trace.steps[-1].step for trace in old)
    at = max(s.end for trace in old for s in trace.steps if s.step == last)
    stay = [trace.steps[0] for trace in new if trace.rank < min(before, after)]
    return Pause(
        before,
        after,
        seconds=max(step.begin for step in stay) - at,
        until_stepped=max(trace.steps[0].end for trace in new) - at,
        at=at,
        main=min(stay, key=lambda step: step.rank).begin - at,
        lost=last - (new[0].steps[0].step - 1),
        first_step_extra=max(_first_step_extra(trace, trace.steps[0]) for trace in new),
    )
