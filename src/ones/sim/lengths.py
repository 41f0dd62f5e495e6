"""How long a job would take if nothing about it ever changed: for mapping traces, and for loads."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from ones.core.cluster import Cluster
from ones.core.schedule import Allocation
from ones.sim.kinds import KindPhysics
from ones.sim.physics import JobPhysics
from ones.sim.recorded import RecordedPhysics
from ones.workload.generate import STOP_EPOCHS
from ones.workload.trace import RecordedTraining, Training

Truth = Training | RecordedTraining


def physics_of(training: Truth) -> JobPhysics:
    """The laws of a job, wherever they come from."""
    if isinstance(training, RecordedTraining):
        return RecordedPhysics(training)
    return KindPhysics(training)


@lru_cache(maxsize=4096)
def epochs_needed(training: Truth, batch: int) -> int:
    """Epochs to its end at a fixed batch, without noise."""
    if isinstance(training, RecordedTraining):
        target, confirmation = training.total, 0
    else:
        target, confirmation = KindPhysics(training).epochs_to_target(), STOP_EPOCHS
    physics = physics_of(training)
    progress, epochs = 0.0, 0
    while progress < target - 1e-9:
        progress += physics.efficiency(batch, progress)
        epochs += 1
    return epochs + confirmation


@lru_cache(maxsize=4096)
def expected_seconds(training: Truth, gpus: int, batch: int) -> float:
    """Training time on so many GPUs, packed, with this batch; start-up not included."""
    physics = physics_of(training)
    places = list(Cluster.of(gpus).gpus())
    allocation = Allocation.even(places, max(batch, gpus), physics.max_local_batch)
    steps = ceil(training.dataset_size / allocation.batch)
    return epochs_needed(training, allocation.batch) * steps * physics.step_seconds(allocation)


def length_of(training: Truth, gpus: int, batch: int) -> tuple[float, int]:
    """Seconds and epochs: what mapping a production trace asks for."""
    seconds = expected_seconds(training, gpus, batch)
    return seconds, epochs_needed(training, max(batch, gpus))


def one_gpu_seconds(training: Truth) -> float:
    """The work of a job, in the unit in which loads are told; of one that dies, until then."""
    seconds = expected_seconds(training, 1, training.base_batch)
    if isinstance(training, Training) and training.dies_after is not None:
        seconds *= min(1.0, training.dies_after / epochs_needed(training, training.base_batch))
    return seconds
