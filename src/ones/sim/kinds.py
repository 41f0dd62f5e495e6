"""Training model of the paper's kinds of job: formulas, with the numbers of the data file.

Step time: compute, then a ring all-reduce that partly overlaps with it, over the
slowest link among the job's GPUs. Convergence: an epoch at a large batch counts for
less (gradient noise scale), so large batches cost epochs. docs/physics.md has the
source of every number and how reliable it is.
"""

from __future__ import annotations

import math

from ones.core.job import EndReason
from ones.core.schedule import Allocation
from ones.sim.physics import Death, EpochRules, Noise, Setback, SwitchTimes
from ones.workload.kinds import Numbers, numbers_of
from ones.workload.recorded_types import curve_of
from ones.workload.trace import Training

_BYTES_PER_PARAMETER = 4


class KindPhysics:
    """Training model of one job of a kind, for its dataset."""

    def __init__(self, training: Training, numbers: Numbers | None = None) -> None:
        numbers = numbers or numbers_of(training.numbers)
        self._training = training
        kind = numbers.kinds.get(training.kind) or numbers.figures[training.kind]
        self._kind = kind
        self._step, self._hardware = numbers.step, numbers.hardware
        self._rules = numbers.convergence
        self.optimizer = kind.optimizer
        self.parameter_bytes = int(_BYTES_PER_PARAMETER * kind.parameters)
        self.max_local_batch = int(kind.max_local_batch)
        self.switch = SwitchTimes(
            first_start=numbers.costs.cold_start_seconds,
            join=numbers.costs.worker_start_seconds,
            regroup=numbers.costs.regroup_seconds,
            rescale=kind.rescale_seconds,
            restart=kind.restart_seconds,
            resume=numbers.costs.resume_seconds,
            migrate=numbers.costs.migrate_seconds,
        )
        costs = numbers.costs
        self.epoch_rules = EpochRules(
            load=kind.load_seconds,
            evaluation=costs.evaluation_share,
            restart=bool(costs.epochs_restart),
        )
        self.confirmation = int(kind.stop_epochs)
        runs = numbers.recorded(training.kind, training.dataset_size)
        self._curve = (
            curve_of(runs[training.run % len(runs)], kind.target_accuracy, self.confirmation)
            if runs
            else None
        )
        # epochs needed fall with the square root of the dataset size
        scale = math.sqrt(kind.reference_size / training.dataset_size)
        self._epochs_constant = kind.accuracy_epochs * scale * training.length
        self._first_loss = kind.first_loss or math.log(max(2, training.classes))
        self.report_noise = Noise(numbers.step.jitter, self._rules.noise_report_jitter)
        self.death = self._death()

    # speed

    def step_seconds(self, allocation: Allocation, sharing: int = 1) -> float:
        """T = s T_grad + (T_grad^γ + T_net^γ)^(1/γ) + D, s: micro-steps before the last."""
        kind, step = self._kind, self._step
        parts, n_gpus = allocation.micro_steps, allocation.n_gpus
        gradient = kind.step_seconds_fixed + kind.step_seconds_per_sample * allocation.largest_part
        if n_gpus == 1:
            seconds = parts * gradient
        else:
            n_nodes = allocation.n_nodes
            network = self._all_reduce_seconds(allocation, n_nodes, sharing)
            power = step.overlap_exponent
            overlapped: float = (gradient**power + network**power) ** (1 / power)
            seconds = (parts - 1) * gradient + overlapped + self._sync_seconds(n_gpus, n_nodes)
        # the input pipeline of the worker with the largest batch may be the bottleneck
        fullest = max(w.batch for w in allocation.workers)
        return max(seconds, fullest / kind.input_samples_per_second)

    def busy_share(self, allocation: Allocation) -> float:
        """Time per sample over the whole step: the fixed part is launches, input and network."""
        computing = self._kind.step_seconds_per_sample * allocation.largest_part
        return min(1.0, allocation.micro_steps * computing / self.step_seconds(allocation))

    def _all_reduce_seconds(self, allocation: Allocation, n_nodes: int, sharing: int) -> float:
        hardware, n_gpus = self._hardware, allocation.n_gpus
        if n_nodes > 1:
            speed = hardware.network_gb_per_second / (sharing if hardware.network_shared else 1)
            hop = hardware.network_hop_seconds
        else:
            per_socket = int(hardware.gpus_per_socket)
            sockets = {w.gpu.index // per_socket for w in allocation.workers}
            speed = (
                hardware.pair_gb_per_second if len(sockets) == 1 else hardware.node_gb_per_second
            )
            hop = hardware.node_hop_seconds
        volume = 2 * (n_gpus - 1) / n_gpus * self.parameter_bytes
        return volume / (speed * 1e9) + 2 * (n_gpus - 1) * hop + hardware.collective_seconds

    def _sync_seconds(self, n_gpus: int, n_nodes: int) -> float:
        step = self._step
        return (
            step.sync_seconds
            + step.sync_seconds_per_doubling * math.log2(n_gpus)
            + (step.socket_seconds if n_gpus > 2 or n_nodes > 1 else 0.0)
            + (step.node_seconds if n_nodes > 1 else 0.0)
        )

    # convergence

    def noise_scale(self, progress: float) -> float:
        """Gradient noise scale φ = φ0 max(1, e)^k after e effective epochs, up to a limit."""
        kind = self._kind
        grown = max(1.0, progress)
        return min(kind.noise_limit, kind.noise_start * float(grown**kind.noise_growth))

    def efficiency(self, batch: int, progress: float) -> float:
        """(φ + B_ref)/(φ + B), or (B_ref/B)^0.7 if the learning rate does not follow the batch."""
        reference = self._kind.reference_batch
        if batch <= reference:
            return 1.0
        if not self._training.rate_follows:
            return float((reference / batch) ** self._rules.unscaled_rate_exponent)
        noise = self.noise_scale(progress)
        return (noise + reference) / (noise + batch)

    def accuracy(self, progress: float, noise: float) -> float:
        if self._curve is not None:
            return self._curve.accuracy(progress / self._training.length)
        kind = self._kind
        gap = kind.accuracy_limit - kind.accuracy_start
        mean = kind.accuracy_limit - gap * math.exp(-progress / self._epochs_constant)
        return min(1.0, max(0.0, mean + kind.accuracy_noise * noise))

    def loss(self, progress: float) -> float:
        if self._curve is not None:
            return self._curve.loss(progress / self._training.length)
        limit = self._kind.loss_limit
        constant = self._rules.loss_epochs_factor * self._epochs_constant
        return limit + (self._first_loss - limit) * math.exp(-progress / constant)

    def setback(self, before: int, after: int) -> Setback:
        rules = self._rules
        ratio = after / before if before else 1.0
        if ratio <= rules.jump_ratio:
            return Setback()
        doublings = math.log2(ratio / rules.jump_ratio)
        return Setback(
            rules.jump_epochs_per_doubling * doublings,
            rules.jump_loss_per_doubling * doublings,
            rules.jump_loss_epochs,
        )

    def _death(self) -> Death | None:
        training = self._training
        if training.dies_after is None:
            return None
        reason = EndReason.CANCELLED if training.killed else EndReason.FAILED
        verb = "killed" if training.killed else "failed"
        return Death(reason, f"{verb}, as the trace says", epochs=training.dies_after)

    def epochs_to_target(self) -> float:
        """Effective epochs until the mean accuracy reaches its target; of a recorded run: until
        the epochs begin that its stop rule counts."""
        if self._curve is not None:
            epochs = self._curve.recorded.epochs - self.confirmation
            return self._training.length * epochs
        kind = self._kind
        gap = (kind.accuracy_limit - kind.target_accuracy) / (
            kind.accuracy_limit - kind.accuracy_start
        )
        return -self._epochs_constant * math.log(gap)
