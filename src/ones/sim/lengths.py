"""Expected duration of a job with a fixed allocation: used to map traces and to compute loads."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from ones.core.cluster import Cluster
from ones.core.schedule import Allocation
from ones.sim.kinds import KindPhysics
from ones.sim.physics import JobPhysics
from ones.sim.recorded import RecordedPhysics
from ones.workload.trace import RecordedTraining, Training

Truth = Training | RecordedTraining


def physics_of(training: Truth) -> JobPhysics:
    """The training model of a job: recorded, or by its kind."""
    if isinstance(training, RecordedTraining):
        return RecordedPhysics(training)
    return KindPhysics(training)


@lru_cache(maxsize=4096)
def epochs_needed(training: Truth, batch: int) -> int:
    """Epochs until the job ends, at a fixed batch and without noise."""
    return epochs_to_end(training, physics_of(training), batch)


def epochs_to_end(training: Truth, physics: JobPhysics, batch: int) -> int:
    """The same with a given training model."""
    if isinstance(training, RecordedTraining):
        target, confirmation = training.total, 0
    else:
        kind = KindPhysics(training)
        target, confirmation = kind.epochs_to_target(), kind.confirmation
    progress, epochs = 0.0, 0
    while progress < target - 1e-9:
        progress += physics.efficiency(batch, progress)
        epochs += 1
    return epochs + confirmation


@lru_cache(maxsize=4096)
def expected_seconds(training: Truth, gpus: int, batch: int) -> float:
    """Training time on `gpus` packed GPUs with this batch, without start-up."""
    physics = physics_of(training)
    places = list(Cluster.of(gpus).gpus())
    allocation = Allocation.even(places, max(batch, gpus), physics.max_local_batch)
    steps = ceil(training.dataset_size / allocation.batch)
    epochs = epochs_needed(training, allocation.batch)
    return epochs * steps * physics.step_seconds(allocation) + epochs * physics.epoch_rules.load


def length_of(training: Truth, gpus: int, batch: int) -> tuple[float, int]:
    """Expected seconds and epochs, as the mapping of a production trace needs them."""
    seconds = expected_seconds(training, gpus, batch)
    return seconds, epochs_needed(training, max(batch, gpus))


def one_gpu_seconds(training: Truth) -> float:
    """The work of a job in GPU-seconds, the unit of loads; of a job that fails, until it fails."""
    seconds = expected_seconds(training, 1, training.base_batch)
    if isinstance(training, Training) and training.dies_after is not None:
        seconds *= min(1.0, training.dies_after / epochs_needed(training, training.base_batch))
    return seconds
