"""Loss of workers, and its effect on their jobs."""

from __future__ import annotations

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import Generation, JobId
from ones.core.lifecycle import OrderKind
from ones.sim.sim_job import SimJob
from ones.sim.sim_state import ALWAYS, SimState
from ones.sim.training_model import TrainingModel

#: seconds until another attempt to kill a worker of a job that cannot lose one now
KILL_RETRY = 0.2


class WorkerLosses:
    def __init__(self, sim: SimState, training: TrainingModel, *, elastic: bool) -> None:
        self._sim, self._training, self._elastic = sim, training, elastic

    def node(self, gpus: list[Gpu]) -> None:
        """Removes all workers on these GPUs of a node."""
        hit: dict[JobId, list[Gpu]] = {}
        for gpu in gpus:
            job = self._sim.vanish(gpu)
            if job is not None:
                hit.setdefault(job.job.id, []).append(gpu)
        for job_id, lost in hit.items():
            self._lose(self._sim.jobs[job_id], lost)

    def kill(self, name: JobId) -> None:
        job = self._sim.jobs.get(name)
        if job is None or job.finishing:
            return
        if job.allocation is None or job.pending is not None or job.allocation.n_gpus < 2:
            self._sim.at(self._sim.now + KILL_RETRY, job, ALWAYS, lambda job: self.kill(job.job.id))
            return
        gpu = job.allocation.gpus[-1]
        self._sim.vanish(gpu)
        self._sim.emit(ev.WorkerLost(self._sim.now, name, job.generation, gpu, "killed"))
        self._lose(job, [gpu])

    def _lose(self, job: SimJob, gpus: list[Gpu]) -> None:
        """Handles the loss of workers: survivors regroup; without any, the checkpoint is used."""
        job.settle(self._sim.now)
        pending = job.pending
        kind = pending.kind if pending else None
        if kind is OrderKind.STOP and job.present:
            return  # the others leave as ordered
        job.order += 1
        job.pending = None
        if kind is OrderKind.START:
            return  # the core stops the remaining workers
        held = job.held
        survivors = held.without(g for g in held.gpus if g not in job.present) if held else None
        if survivors is None:
            self._training.halt(job)
            job.held = None
            job.fall_back()
            return
        if pending is not None and kind is OrderKind.RESCALE:
            self._sim.emit(
                ev.RescaleFailed(self._sim.now, job.job.id, pending.generation, "a worker died")
            )
            joining = [g for g in sorted(job.present) if g not in survivors.gpus]
            self._sim.leave(job, joining, pending.generation)
        if held is not None and any(gpu in held.gpus for gpu in gpus):
            self._training.halt(job)
            job.held = survivors
            if (
                not self._elastic
            ):  # with the mechanism `checkpoint`, recovery uses the checkpoint, too
                job.fall_back()
            self._sim.at(self._sim.now + self._regroup_seconds(job), job, -job.order, self._regroup)
        elif job.allocation is None:
            self._training.train(job, survivors)

    def _regroup_seconds(self, job: SimJob) -> float:
        times = job.physics.switch
        if not self._elastic:
            return times.restart
        return times.regroup if times.recover is None else times.recover

    def _regroup(self, job: SimJob) -> None:
        assert job.held is not None
        plan, incarnation = job.generation
        job.generation = Generation(plan, incarnation + 1)
        pause = self._regroup_seconds(job)
        self._sim.emit(ev.Rescaled(self._sim.now, job.job.id, job.generation, pause))
        self._training.train(job, job.held)
