"""The page on the life cycle of a job, from the table in `ones.core.lifecycle`."""

from __future__ import annotations

from docs.reference.markdown import table
from ones.core.lifecycle import TABLE, Phase, diagram

_MEANING = {
    Phase.WAITING: "holds no GPU: new or preempted; GPUs may be promised to it",
    Phase.STARTING: "has GPUs; not all of its workers are ready",
    Phase.RUNNING: "trains as the schedule says",
    Phase.RESCALING: "trains; its workers or its batch are about to change",
    Phase.STOPPING: "its workers are to leave; then it waits",
    Phase.ENDING: "its end is decided; its workers are to leave",
}


def lifecycle_page() -> str:
    rows = [[f"`{phase.value}`", f"`{phase.shown}`", _MEANING[phase]] for phase in Phase]
    moves = [
        [f"`{phase.value}`", trigger.value, f"`{moved.phase.value}`", "yes" if moved.due else ""]
        for phase, row in TABLE.items()
        for trigger, moved in row.items()
    ]
    return "\n\n".join(
        [
            "# The life cycle of a job",
            "A job that ends leaves every phase: its state is `converged`, `finished`, `failed`,"
            " `cancelled` or `refused`.",
            table(["phase", "state that users see", "meaning"], rows),
            f"```mermaid\n{diagram()}\n```",
            "Every change of phase is a row of this table (`core/lifecycle.py`); any other is an"
            " error. *Due*: the core may act at once, without a decision of the policy: `Stop`,"
            " `Finish`, `Withdraw`, or the second step of a change.",
            table(["phase", "what happens", "next phase", "due"], moves),
        ]
    )
