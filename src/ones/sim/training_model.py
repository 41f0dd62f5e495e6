"""How a simulated job trains: steps, reports, epochs, its end, and who shares its network."""

from __future__ import annotations

from collections.abc import Iterable

from ones.core import events as ev
from ones.core.job import EndReason
from ones.core.schedule import Allocation
from ones.sim.network import Network
from ones.sim.noise import lognormal, normal
from ones.sim.sim_job import SimJob
from ones.sim.sim_state import ALWAYS, SimState

#: steps after which a job reports its speed in a new configuration
MEASURED_STEPS = 20
_ACCURACY, _SPEED, _NOISE, _STEP = 1, 2, 3, 4  # what a random number is for


def accuracy_noise(seed: int, job: int, epoch: int) -> float:
    """The luck of a job in an epoch, the same under every policy."""
    return normal(seed, job, _ACCURACY, epoch)


class TrainingModel:
    """Of all jobs: what each does next is planned, and planned anew after a change."""

    def __init__(self, sim: SimState, seed: int) -> None:
        self._sim, self._seed = sim, seed
        self._network = Network()

    def describe(self, job: SimJob) -> None:
        training = job.training
        job.described = True
        self._sim.say(
            ev.JobDescribed(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                dataset_size=training.dataset_size,
                base_batch=training.base_batch,
                optimizer=job.physics.optimizer,
                parameter_bytes=job.physics.parameter_bytes,
                max_local_batch=job.physics.max_local_batch,
            )
        )

    def train(self, job: SimJob, allocation: Allocation) -> None:
        allocation = self._within_memory(job, allocation)
        job.begin(self._sim.now, allocation, self._network.enter(job, allocation))
        self._plan_ahead(job)
        self._repace(self._network.neighbours(job))

    def _within_memory(self, job: SimJob, allocation: Allocation) -> Allocation:
        """A script that runs out of memory says so, and goes on in smaller parts."""
        limit = job.physics.max_local_batch
        if limit is None or allocation.largest_part <= limit:
            return allocation
        self._sim.say(
            ev.MemoryLimitLearned(
                at=self._sim.now, job=job.job.id, generation=job.generation, max_local_batch=limit
            )
        )
        return Allocation.even(allocation.gpus, allocation.batch, limit)

    def halt(self, job: SimJob) -> None:
        """Stand still; those who shared its network go faster."""
        neighbours = self._network.leave(job)
        job.halt()
        self._repace(neighbours)

    def _repace(self, jobs: Iterable[SimJob]) -> None:
        for other in jobs:
            sharing = self._network.sharing(other)
            if sharing != other.sharing:
                other.share_network(self._sim.now, sharing)
                self._plan_ahead(other)

    def _plan_ahead(self, job: SimJob) -> None:
        """What will happen to it if nothing changes: a report, an epoch, or its end."""
        epoch_end = job.epoch_end()
        if job.configuration not in job.measured:
            measured_at = job.since + MEASURED_STEPS * job.step_seconds
            if self._sim.now <= measured_at < epoch_end:
                self._sim.at(measured_at, job, job.run, self._measure)
        death = job.physics.death
        if death is not None and (dies_at := job.time_of(death)) < epoch_end:
            self._sim.at(max(self._sim.now, dies_at), job, job.run, self._die)
        else:
            self._sim.at(epoch_end, job, job.run, self._epoch)

    def _measure(self, job: SimJob) -> None:
        job.settle(self._sim.now)
        job.measured.add(job.configuration)
        steps = min(MEASURED_STEPS, max(1, job.stretch_steps))
        jitter = job.physics.report_noise.step_seconds / steps**0.5
        factor = lognormal(jitter, self._seed, job.number, _SPEED, len(job.measured))
        self._sim.say(
            ev.ThroughputMeasured(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                configuration=job.configuration,
                step_seconds=job.step_seconds * factor,
                steps=steps,
            )
        )

    def _epoch(self, job: SimJob) -> None:
        steps, samples = job.finish_epoch(self._sim.now)
        physics, seed, number, epoch = job.physics, self._seed, job.number, job.epochs
        noise = physics.noise_scale(job.progress)
        if noise is not None:
            noise *= lognormal(physics.report_noise.gradient_noise, seed, number, _NOISE, epoch)
        self._sim.say(
            ev.EpochFinished(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                epoch=epoch,
                samples=samples,
                steps=steps,
                loss=job.loss(),
                accuracy=physics.accuracy(job.progress, accuracy_noise(seed, number, epoch)),
                first_loss=physics.loss(0.0) if epoch == 1 else None,
                step_seconds=job.step_seconds * self._step_noise(job, steps),
                gradient_noise=noise,
            )
        )
        if job.configuration not in job.measured:
            self._measure(job)
        times = physics.switch
        if job.job.epochs is not None and epoch >= job.job.epochs:
            if times.finish:
                self.halt(job)
                job.finishing = True
                self._sim.at(self._sim.now + times.finish, job, ALWAYS, self._done)
            else:
                self._done(job)
        else:
            job.since += times.epoch
            self._plan_ahead(job)

    def _done(self, job: SimJob) -> None:
        if self._sim.jobs.get(job.job.id) is job:  # else it was cancelled meanwhile
            self.end(job, EndReason.FINISHED, "")

    def _step_noise(self, job: SimJob, steps: int) -> float:
        sigma = job.physics.report_noise.step_seconds / max(1, steps) ** 0.5
        return lognormal(sigma, self._seed, job.number, _STEP, job.epochs)

    def _die(self, job: SimJob) -> None:
        assert job.physics.death is not None
        self.end(job, job.physics.death.reason, job.physics.death.message)

    def end(self, job: SimJob, reason: EndReason, message: str) -> None:
        self.halt(job)
        job.order += 1
        del self._sim.jobs[job.job.id]
        self._sim.say(ev.JobEnded(self._sim.now, job.job.id, reason, message))
        newest = job.pending.generation if job.pending else job.generation
        self._sim.leave_after(job.physics.switch.clear, job, sorted(job.present), newest)
