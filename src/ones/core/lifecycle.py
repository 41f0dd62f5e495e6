"""The life cycle of a job as data: its phases, and the only table by which a phase changes.

`transitions` (events) and `actions` (plans) name what happened to the job as a whole, a `Trigger`.
The table gives the next phase, and whether an action is due that needs no decision of the policy.
A pair that the table does not have is an error of the engine. The diagram in docs/reference is made
from this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ones.errors import BrokenEngineError


class Phase(StrEnum):
    WAITING = "waiting"  # holds no GPU: new, or preempted; perhaps with GPUs promised
    STARTING = "starting"  # has GPUs, not all workers are ready
    RUNNING = "running"  # trains as the schedule says
    RESCALING = "changing"  # trains, and its workers or its batch are about to change
    STOPPING = "stopping"  # its workers are to leave; then it waits
    ENDING = "ending"  # its end is decided; users see it as stopping

    @property
    def shown(self) -> str:
        """The name that users see."""
        return Phase.STOPPING.value if self is Phase.ENDING else self.value


class OrderKind(StrEnum):
    """The actions that an engine carries out over time and then answers."""

    START = "start"
    RESCALE = "rescale"
    STOP = "stop"


class Trigger(StrEnum):
    """What happened to a job as a whole."""

    PROMISED = "GPUs promised"  # they are not free yet
    START_ORDERED = "start ordered"
    ALL_READY = "all workers ready"
    RESCALE_ORDERED = "rescale ordered"
    STEP_DONE = "first step done"  # of a change that takes two
    SETTLED = "runs as scheduled"
    WORKERS_LOST = "workers lost, others continue"
    TOO_FEW_LEFT = "too few workers left"  # the others must leave
    STOP_ORDERED = "stop ordered"
    ALL_GONE = "no worker left"
    PROMISE_LOST = "promised GPUs lost"
    MUST_WAIT = "may not run now"  # on hold, or below its minimum number of GPUs
    MUST_SHRINK = "above its maximum number of GPUs"
    END_DECIDED = "end decided"


class Transition(NamedTuple):
    phase: Phase
    due: bool = False  # an action may follow without a decision: Stop, Finish or the second step


_TO_RUNNING = Transition(Phase.RUNNING)
_TO_RESCALING = Transition(Phase.RESCALING)
_TO_STOPPING = Transition(Phase.STOPPING)
_STOP_DUE = Transition(Phase.STOPPING, due=True)
_TO_WAITING = Transition(Phase.WAITING)
_NEXT_DUE = Transition(Phase.WAITING, due=True)
_END_DUE = Transition(Phase.ENDING, due=True)
_STILL_ENDING = Transition(Phase.ENDING)

TABLE: dict[Phase, dict[Trigger, Transition]] = {
    Phase.WAITING: {
        Trigger.PROMISED: _TO_WAITING,
        Trigger.PROMISE_LOST: _NEXT_DUE,
        Trigger.START_ORDERED: Transition(Phase.STARTING),
        Trigger.END_DECIDED: _END_DUE,
    },
    Phase.STARTING: {
        Trigger.ALL_READY: _TO_RUNNING,
        Trigger.TOO_FEW_LEFT: _STOP_DUE,
        Trigger.ALL_GONE: _TO_WAITING,
        Trigger.END_DECIDED: _END_DUE,
    },
    Phase.RUNNING: {
        Trigger.PROMISED: _TO_RESCALING,
        Trigger.RESCALE_ORDERED: _TO_RESCALING,
        Trigger.SETTLED: Transition(Phase.RUNNING, due=True),
        Trigger.WORKERS_LOST: Transition(Phase.RESCALING, due=True),
        Trigger.TOO_FEW_LEFT: _STOP_DUE,
        Trigger.STOP_ORDERED: _TO_STOPPING,
        Trigger.ALL_GONE: _TO_WAITING,
        Trigger.MUST_WAIT: _STOP_DUE,
        Trigger.MUST_SHRINK: Transition(Phase.RESCALING, due=True),
        Trigger.END_DECIDED: _END_DUE,
    },
    Phase.RESCALING: {
        Trigger.PROMISED: _TO_RESCALING,
        Trigger.RESCALE_ORDERED: _TO_RESCALING,
        Trigger.STEP_DONE: Transition(Phase.RESCALING, due=True),
        Trigger.SETTLED: Transition(Phase.RUNNING, due=True),
        Trigger.WORKERS_LOST: Transition(Phase.RESCALING, due=True),
        Trigger.TOO_FEW_LEFT: _STOP_DUE,
        Trigger.STOP_ORDERED: _TO_STOPPING,
        Trigger.ALL_GONE: _TO_WAITING,
        Trigger.PROMISE_LOST: Transition(Phase.RESCALING, due=True),
        Trigger.END_DECIDED: _END_DUE,
    },
    Phase.STOPPING: {
        Trigger.PROMISED: _TO_STOPPING,
        Trigger.STOP_ORDERED: _TO_STOPPING,
        Trigger.TOO_FEW_LEFT: _STOP_DUE,
        Trigger.PROMISE_LOST: _STOP_DUE,
        Trigger.ALL_GONE: _NEXT_DUE,
        Trigger.END_DECIDED: _END_DUE,
    },
    Phase.ENDING: {
        Trigger.ALL_READY: _STILL_ENDING,
        Trigger.STEP_DONE: _END_DUE,
        Trigger.SETTLED: _END_DUE,
        Trigger.WORKERS_LOST: _END_DUE,
        Trigger.TOO_FEW_LEFT: _END_DUE,
        Trigger.STOP_ORDERED: _STILL_ENDING,
        Trigger.ALL_GONE: _END_DUE,
    },
}


def transition(job: str, phase: Phase, trigger: Trigger) -> Transition:
    """The next phase. Raises BrokenEngineError if the trigger cannot occur in this phase."""
    found = TABLE[phase].get(trigger)
    if found is None:
        raise BrokenEngineError(
            f"job {job}: {trigger.value!r} is not possible in phase {phase.value}"
        )
    return found


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> waiting: submitted"]
    for phase, row in TABLE.items():
        for target in Phase:
            names = [trigger.value for trigger, to in row.items() if to.phase is target]
            if names and target is not phase:
                lines.append(f"    {phase.value} --> {target.value}: {' / '.join(names)}")
    lines.append("    ending --> [*]: ended")
    return "\n".join(lines)
