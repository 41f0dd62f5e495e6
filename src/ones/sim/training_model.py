"""Training of simulated jobs: steps, reports, epochs, ends, and shared network cards."""

from __future__ import annotations

from collections.abc import Iterable

from ones.core import events as ev
from ones.core.job import EndReason
from ones.core.schedule import Allocation
from ones.sim.gpu_sharing import GpuSharing
from ones.sim.network import Network
from ones.sim.noise import lognormal, normal, wave
from ones.sim.sim_job import SimJob
from ones.sim.sim_state import ALWAYS, SimState
from ones.sim.stragglers import Stragglers

#: steps after which a job reports its speed in a new configuration
MEASURED_STEPS = 20
_ACCURACY, _SPEED, _NOISE, _STEP, _LOSS, _WAVE = 1, 2, 3, 4, 5, 6  # keys of random numbers, by use


def accuracy_noise(seed: int, job: int, epoch: int) -> float:
    """Noise of a job's accuracy in an epoch, the same under every policy."""
    return normal(seed, job, _ACCURACY, epoch)


class TrainingModel:
    """Schedules the next report, epoch or end of every job, and again after each change."""

    def __init__(
        self, sim: SimState, seed: int, stragglers: Stragglers, sharing: GpuSharing
    ) -> None:
        self._sim, self._seed = sim, seed
        self._network = Network()
        self._stragglers, self._shared_gpus = stragglers, sharing

    def describe(self, job: SimJob) -> None:
        training = job.training
        job.described = True
        self._sim.emit(
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
        slowdown, _ = self._stragglers.at(allocation, self._sim.now)
        self._shared_gpus.enter(job, allocation)
        job.begin(self._sim.now, allocation, self._network.enter(job, allocation), slowdown)
        if job.evaluated:
            job.since += job.physics.epoch_rules.load
        else:
            job.since += self._evaluation_seconds(job)
        packed = self._shared_gpus.slowdown(job)
        if packed != 1.0:
            job.change_pace(self._sim.now, job.sharing, slowdown * packed)
            job.measured.discard(job.configuration)
        self._plan_ahead(job)
        self._repace(self._network.neighbours(job))
        self._repack(self._shared_gpus.partners(job))

    def _within_memory(self, job: SimJob, allocation: Allocation) -> Allocation:
        """The allocation with accumulation where a worker's part exceeds the memory of a GPU.

        Emits `MemoryLimitLearned`, as a script does that runs out of memory.
        """
        limit = job.physics.max_local_batch
        if limit is None or allocation.largest_part <= limit:
            return allocation
        self._sim.emit(
            ev.MemoryLimitLearned(
                at=self._sim.now, job=job.job.id, generation=job.generation, max_local_batch=limit
            )
        )
        return Allocation.even(allocation.gpus, allocation.batch, limit)

    def _evaluation_seconds(self, job: SimJob) -> float:
        share = job.physics.epoch_rules.evaluation
        return 0.0 if share is None else share * (job.epoch_end() - job.since)

    def interrupt(self, job: SimJob) -> bool:
        """Stops training for a rescale or a stop; returns False if the job ends by that.

        Where epochs restart, the present one counts as done from its half on.
        """
        job.settle(self._sim.now)
        ended = False
        if job.physics.epoch_rules.restart and job.epoch_samples:
            if 2 * job.epoch_samples >= job.training.dataset_size:
                self._report_epoch(job, *job.close_epoch())
                ended = job.job.epochs is not None and job.passes >= job.job.epochs
            else:
                job.carry_epoch()
        if ended:
            self._done(job)
        else:
            self.halt(job)
        return not ended

    def halt(self, job: SimJob) -> None:
        """Stops training of a job; jobs that shared its network card become faster."""
        neighbours = self._network.leave(job)
        partners = self._shared_gpus.leave(job)
        job.halt()
        self._repace(neighbours)
        self._repack(partners)

    def _slowdown(self, job: SimJob) -> float:
        """Factor on the step time, by slow nodes and shared GPUs."""
        assert job.allocation is not None
        slowdown, _ = self._stragglers.at(job.allocation, self._sim.now)
        return slowdown * self._shared_gpus.slowdown(job)

    def _repack(self, jobs: Iterable[SimJob]) -> None:
        """Changes the pace of jobs that got or lost a partner; they report their new speed."""
        for other in jobs:
            if other.allocation is not None and self._slowdown(other) != other.slowdown:
                other.change_pace(self._sim.now, other.sharing, self._slowdown(other))
                other.measured.discard(other.configuration)
                other.stretch_steps = 0
                self._plan_ahead(other)

    def _repace(self, jobs: Iterable[SimJob]) -> None:
        for other in jobs:
            sharing = self._network.sharing(other)
            if sharing != other.sharing:
                other.change_pace(self._sim.now, sharing, other.slowdown)
                self._plan_ahead(other)

    def _straggle(self, job: SimJob) -> None:
        """A node of the job becomes slow, or as fast as usual."""
        job.change_pace(self._sim.now, job.sharing, self._slowdown(job))
        self._plan_ahead(job)

    def _plan_ahead(self, job: SimJob) -> None:
        """Schedules what happens next if nothing changes: a report, an epoch, or the end."""
        if not job.evaluated:
            self._sim.at(max(self._sim.now, job.since), job, job.run, self._evaluate)
            return
        epoch_end = job.epoch_end()
        if self._stragglers and job.allocation is not None:
            _, changes_at = self._stragglers.at(job.allocation, self._sim.now)
            if changes_at < epoch_end:
                self._sim.at(changes_at, job, job.run, self._straggle)
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
        self._sim.emit(
            ev.ThroughputMeasured(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                configuration=job.configuration,
                step_seconds=job.step_seconds * factor,
                steps=steps,
            )
        )

    def _evaluate(self, job: SimJob) -> None:
        """Reports the evaluation before training, which counts as an epoch without samples."""
        job.evaluated = True
        job.epochs += 1
        self._sim.emit(
            ev.EpochFinished(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                epoch=job.epochs,
                samples=0,
                steps=0,
                loss=job.physics.loss(0.0),
                accuracy=job.physics.accuracy(0.0, 0.0),
                first_loss=job.physics.loss(0.0),
            )
        )
        job.since = self._sim.now + job.physics.epoch_rules.load
        self._plan_ahead(job)

    def _report_epoch(self, job: SimJob, steps: int, samples: int) -> None:
        physics, seed, number, epoch = job.physics, self._seed, job.number, job.epochs
        noise = physics.noise_scale(job.progress)
        if noise is not None:
            noise *= lognormal(physics.report_noise.gradient_noise, seed, number, _NOISE, epoch)
            noise *= physics.report_noise.gradient_bias
        self._sim.emit(
            ev.EpochFinished(
                at=self._sim.now,
                job=job.job.id,
                generation=job.generation,
                epoch=epoch,
                samples=samples,
                steps=steps,
                loss=self._reported_loss(job),
                accuracy=physics.accuracy(job.progress, accuracy_noise(seed, number, epoch)),
                first_loss=physics.loss(0.0) if epoch == 1 else None,
                step_seconds=self._mean_step(job, steps) * self._step_noise(job, steps),
                gradient_noise=noise,
            )
        )
        if job.configuration not in job.measured:
            self._measure(job)

    def _epoch(self, job: SimJob) -> None:
        self._report_epoch(job, *job.finish_epoch(self._sim.now))
        times = job.physics.switch
        if job.job.epochs is not None and job.passes >= job.job.epochs:
            if times.finish:
                self.halt(job)
                job.finishing = True
                self._sim.at(self._sim.now + times.finish, job, ALWAYS, self._done)
            else:
                self._done(job)
        else:
            job.since += times.epoch + job.physics.epoch_rules.load
            self._plan_ahead(job)

    def _done(self, job: SimJob) -> None:
        if self._sim.jobs.get(job.job.id) is job:  # else it was cancelled in the meantime
            self.end(job, EndReason.FINISHED, "")

    def _mean_step(self, job: SimJob, steps: int) -> float:
        """Mean time of a step of the epoch, with the time of the input pipeline."""
        return job.step_seconds + job.physics.epoch_rules.load / max(1, steps)

    def _reported_loss(self, job: SimJob) -> float | None:
        loss, noise = job.loss(), job.physics.report_noise
        if loss is None or not (noise.loss or noise.loss_waves):
            return loss
        key = (self._seed, job.number)
        loss *= lognormal(noise.loss, *key, _LOSS, job.epochs)
        return loss * (1.0 + noise.loss_waves * wave(job.epochs, *key, _WAVE))

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
        self._sim.emit(ev.JobEnded(self._sim.now, job.job.id, reason, message))
        newest = job.pending.generation if job.pending else job.generation
        self._sim.leave_after(job.physics.switch.clear, job, sorted(job.present), newest)
