"""GPUs that a job should be on according to the log, and where no process of it is."""

from __future__ import annotations

from ones.control.live.floor import Floor
from ones.control.live.jobs import NOW
from ones.core import events as ev
from ones.core.job import Generation

#: of a worker whose job has ended: nothing but its GPU is left of it, and no plan is newer
LAST = Generation(2**53)


def free_missing(floor: Floor) -> None:
    """Report the missing processes, so that their GPUs are free again."""
    if floor.winding_down:
        return  # no worker is started any more; the next service starts them
    for gpu, occupant in list(floor.state.occupants.items()):
        job = floor.jobs.get(occupant.job)
        if job is not None and (job.on(gpu) is not None or any(gpu in w.gpus for w in job.quiet)):
            continue
        if job is None or job.ended:
            floor.say(ev.WorkerLeft(NOW, occupant.job, LAST, gpu))
        else:
            why = "its process was not there when the service looked for it"
            floor.say(ev.WorkerLost(NOW, occupant.job, Generation(occupant.plan), gpu, why))
