"""The made-up training of an emulated job: what its workers report."""

from __future__ import annotations

from dataclasses import dataclass

from ones.wire.messages import Epoch, Joined, Report, Speed, Steps

#: seconds between two reports, as of real workers
REPORT_SECONDS = 0.5
BATCH, STEP_SECONDS = 64, 0.1
JOINED = Joined(
    dataset_size=50_000, base_batch=BATCH, optimizer="sgd", parameter_bytes=1 << 20,
    max_local_batch=4 * BATCH,
)  # fmt: skip


@dataclass(slots=True)
class EmulatedProgress:
    batch: int = BATCH
    reports: int = 0
    epoch: int = 0
    samples: int = 0  # of the current epoch

    def next_reports(self, workers: int, epoch_reports: int | None) -> tuple[Report, ...]:
        """Reports of half a second of training; every `epoch_reports` times an epoch ends."""
        step = STEP_SECONDS * (0.3 + 0.7 * self.batch / (workers * BATCH)) + 0.002 * workers
        self.samples += round(REPORT_SECONDS / step) * self.batch
        self.reports += 1
        steps = max(1, self.samples // self.batch)
        if epoch_reports is None or self.reports % epoch_reports:
            return (Steps(epoch=self.epoch + 1, steps=steps, samples=self.samples),)
        self.epoch += 1
        samples, self.samples = self.samples, 0
        return (
            Speed(
                gpus=workers, nodes=1, batch=self.batch, micro_steps=1, step_seconds=step,
                steps=steps,
            ),
            Epoch(
                epoch=self.epoch, steps=steps, samples=samples, loss=2.0 / self.epoch,
                accuracy=1.0 - 0.9**self.epoch, step_seconds=step,
            ),
        )  # fmt: skip
