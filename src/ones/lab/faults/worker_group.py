"""The workers of a simulated job that train together, and the reports of their first worker."""

from __future__ import annotations

from dataclasses import dataclass

from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.worker import SimulatedWorker
from ones.wire.messages import Epoch, Speed


@dataclass(slots=True)
class WorkerGroup:
    plan: int
    incarnation: int
    members: list[SimulatedWorker]
    batch: int

    def samples_per_second(self, spec: JobSpec) -> float:
        return spec.samples_per_second * float(len(self.members) ** 0.8)

    def speed(self, spec: JobSpec) -> Speed:
        return Speed(
            gpus=len(self.members),
            nodes=len({member.node for member in self.members}),
            batch=self.batch,
            micro_steps=1,
            step_seconds=self.batch / self.samples_per_second(spec),
            steps=self._epoch_steps(spec),
        )

    def epoch(self, spec: JobSpec, epoch: int) -> Epoch:
        return Epoch(
            epoch=epoch,
            steps=self._epoch_steps(spec),
            samples=spec.dataset_size,
            loss=2.0 / (1 + epoch),
            accuracy=1.0 - 0.8**epoch,
            first_loss=2.3,
            step_seconds=0.1,
            planned_epochs=spec.epochs,
        )

    def _epoch_steps(self, spec: JobSpec) -> int:
        return max(1, spec.dataset_size // self.batch)
