"""How jobs really train: the hidden truth of the simulator. No policy can import this.

Step time: compute, then a ring all-reduce that partly overlaps with it, over the
slowest link among the job's GPUs. Convergence: an epoch at a large batch counts for
less (gradient noise scale), so large batches cost epochs. Formulas and the origin of
every number: docs/physics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ones.core.schedule import Allocation
from ones.workload.kinds import Kind, Numbers, paper_numbers
from ones.workload.trace import Training

_BYTES_PER_PARAMETER = 4


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Seconds that changes of a job take."""

    first_start: float
    newcomer: float  # in the background, while the others train
    regroup: float  # nobody joins
    rescale: float  # somebody joins: regroup and broadcast
    restart: float  # through a checkpoint


class Physics:
    """One job at a time; nothing here remembers anything."""

    def __init__(self, numbers: Numbers | None = None) -> None:
        self._numbers = numbers or paper_numbers()

    def kind(self, training: Training) -> Kind:
        return self._numbers.kinds[training.kind]

    def max_local_batch(self, training: Training) -> int:
        return int(self.kind(training).max_local_batch)

    def parameter_bytes(self, training: Training) -> int:
        return int(_BYTES_PER_PARAMETER * self.kind(training).parameters)

    # speed

    def step_seconds(self, training: Training, allocation: Allocation) -> float:
        """One optimizer step of all workers; the slowest of them sets the pace.

        T = s T_grad + (T_grad^γ + T_net^γ)^(1/γ) + D, with s micro-steps before the last.
        """
        kind, step = self.kind(training), self._numbers.step
        part, parts = allocation.largest_part, allocation.micro_steps
        gradient = kind.step_seconds_fixed + kind.step_seconds_per_sample * part
        n_gpus = allocation.n_gpus
        if n_gpus == 1:
            seconds = parts * gradient
        else:
            network = self._all_reduce_seconds(kind, allocation)
            power = step.overlap_exponent
            overlapped: float = (gradient**power + network**power) ** (1 / power)
            seconds = (parts - 1) * gradient + overlapped + self._sync_seconds(allocation)
        # the input pipeline of the fullest worker may be slower still
        fullest = max(w.batch for w in allocation.workers)
        return max(seconds, fullest / kind.input_samples_per_second)

    def _all_reduce_seconds(self, kind: Kind, allocation: Allocation) -> float:
        hardware, n_gpus = self._numbers.hardware, allocation.n_gpus
        if allocation.n_nodes > 1:
            speed, hop = hardware.network_gb_per_second, hardware.network_hop_seconds
        elif self._share_a_socket(allocation):
            speed, hop = hardware.pair_gb_per_second, hardware.node_hop_seconds
        else:
            speed, hop = hardware.node_gb_per_second, hardware.node_hop_seconds
        volume = 2 * (n_gpus - 1) / n_gpus * _BYTES_PER_PARAMETER * kind.parameters
        return volume / (speed * 1e9) + 2 * (n_gpus - 1) * hop + hardware.collective_seconds

    def _share_a_socket(self, allocation: Allocation) -> bool:
        per_socket = int(self._numbers.hardware.gpus_per_socket)
        return len({w.gpu.index // per_socket for w in allocation.workers}) == 1

    def _sync_seconds(self, allocation: Allocation) -> float:
        step, n_gpus = self._numbers.step, allocation.n_gpus
        several = allocation.n_nodes > 1
        return (
            step.sync_seconds
            + step.sync_seconds_per_doubling * math.log2(n_gpus)
            + (step.socket_seconds if n_gpus > 2 or several else 0.0)
            + (step.node_seconds if several else 0.0)
        )

    # convergence

    def noise_scale(self, training: Training, progress: float) -> float:
        """Gradient noise scale φ after so many effective epochs: it grows as training goes on."""
        kind = self.kind(training)
        grown = max(1.0, progress / training.length)
        return min(kind.noise_limit, kind.noise_start * float(grown**kind.noise_growth))

    def efficiency(self, training: Training, batch: int, progress: float) -> float:
        """What a sample is worth at this batch: (φ + B_ref)/(φ + B), never above 1."""
        noise = self.noise_scale(training, progress)
        return min(1.0, (noise + self.kind(training).reference_batch) / (noise + batch))

    def accuracy(self, training: Training, progress: float, noise: float) -> float:
        """Validation accuracy; `noise` is a standard normal draw."""
        kind = self.kind(training)
        gap = kind.accuracy_limit - kind.accuracy_start
        mean = kind.accuracy_limit - gap * math.exp(-progress / self._epochs_constant(training))
        return min(1.0, max(0.0, mean + kind.accuracy_noise * noise))

    def loss(self, training: Training, progress: float) -> float:
        kind = self.kind(training)
        start = math.log(max(2, training.classes))
        constant = self._numbers.convergence.loss_epochs_factor * self._epochs_constant(training)
        return kind.loss_limit + (start - kind.loss_limit) * math.exp(-progress / constant)

    def jump_loss(self, before: int, after: int) -> float:
        """Effective epochs that a sudden growth of the batch throws a job back."""
        rules = self._numbers.convergence
        ratio = after / before if before else 1.0
        if ratio <= rules.jump_ratio:
            return 0.0
        return rules.jump_epochs_per_doubling * math.log2(ratio / rules.jump_ratio)

    def _epochs_constant(self, training: Training) -> float:
        kind = self.kind(training)
        scale = math.sqrt(kind.reference_size / training.dataset_size)
        return kind.accuracy_epochs * scale * training.length

    # what is reported, and what changes cost

    @property
    def step_jitter(self) -> float:
        return self._numbers.step.jitter

    @property
    def noise_jitter(self) -> float:
        return self._numbers.convergence.noise_report_jitter

    def switch_times(self, training: Training) -> SwitchTimes:
        costs, kind = self._numbers.costs, self.kind(training)
        return SwitchTimes(
            first_start=costs.cold_start_seconds,
            newcomer=costs.worker_start_seconds,
            regroup=costs.regroup_seconds,
            rescale=kind.rescale_seconds,
            restart=kind.restart_seconds,
        )
