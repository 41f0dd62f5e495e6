"""Training model of a recorded job, from the measurements of its run.

Step times are those measured; other configurations use a fit to them. Accuracy, loss and noise
scale follow the recorded values over effective progress, and the job ends at the recorded
progress. So "what if another policy had run last week's jobs" depends only on job reports.
"""

from __future__ import annotations

from bisect import bisect_left

from ones.core.job import Configuration, StepTime
from ones.core.schedule import Allocation
from ones.models.goodput import efficiency
from ones.models.speed import SpeedModel, fit_speed
from ones.sim.physics import Death, EpochRules, Noise, Setback, SwitchTimes
from ones.workload.kinds import paper_numbers
from ones.workload.trace import Milestone, RecordedTraining

#: seconds of a restart if the log has none (assumed: the median of the paper's models)
RESTART_SECONDS = 20.0


class RecordedPhysics:
    epoch_rules = EpochRules()

    def __init__(self, training: RecordedTraining) -> None:
        self._training = training
        self.optimizer = training.optimizer
        self.parameter_bytes = training.parameter_bytes
        self.max_local_batch = training.max_local_batch
        costs = paper_numbers().costs
        pause, habits = training.rescale_seconds, training.service
        self.switch = SwitchTimes(
            first_start=_known(training.start_seconds, costs.cold_start_seconds),
            join=_known(training.join_seconds, costs.worker_start_seconds),
            regroup=costs.regroup_seconds if pause is None else min(pause, costs.regroup_seconds),
            rescale=1.0 if pause is None else pause,
            restart=training.restart_seconds or RESTART_SECONDS,
            resume=costs.resume_seconds,
            migrate=costs.migrate_seconds,
            notice=habits.notice,
            leave=habits.leave,
            stop=habits.stop,
            finish=habits.finish,
            clear=habits.clear,
            warms_early=habits.warms_early,
        )
        self.report_noise = Noise(0.0, 0.0)  # the noise is in the recording
        self.death = Death(training.end, training.end_message, progress=training.total)
        self._measured = dict(training.step_seconds)
        fitted = fit_speed({c: StepTime(t, 1) for c, t in training.step_seconds})
        assert fitted is not None, "a recorded job has measured its speed"
        self._speed: SpeedModel = fitted
        self._progress = [m.progress for m in training.milestones]

    def busy_share(self, allocation: Allocation) -> float:
        return 1.0

    def step_seconds(self, allocation: Allocation, sharing: int = 1) -> float:
        """Ignores `sharing`: the measurements include the sharing that happened."""
        now = Configuration(
            allocation.n_gpus, allocation.n_nodes, allocation.batch, allocation.micro_steps
        )
        known = self._measured.get(now)
        if known is not None:
            return known
        return self._speed.step_seconds(
            gpus=now.gpus, nodes=now.nodes, batch=now.batch, micro_steps=now.micro_steps
        )

    def efficiency(self, batch: int, progress: float) -> float:
        noise = self.noise_scale(progress)
        return 1.0 if noise is None else efficiency(batch, self._training.base_batch, noise)

    def noise_scale(self, progress: float) -> float | None:
        return self._at(progress).noise

    def accuracy(self, progress: float, noise: float) -> float | None:
        return self._at(progress).accuracy

    def loss(self, progress: float) -> float | None:
        return self._training.first_loss if progress <= 0 else self._at(progress).loss

    def setback(self, before: int, after: int) -> Setback:
        return Setback()

    def _at(self, progress: float) -> Milestone:
        """The first recorded epoch with at least this progress."""
        index = bisect_left(self._progress, progress - 1e-9)
        return self._training.milestones[min(index, len(self._progress) - 1)]


def _known(measured: float | None, assumed: float) -> float:
    return assumed if measured is None else measured
