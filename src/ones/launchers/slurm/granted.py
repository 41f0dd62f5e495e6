"""What Slurm has given us on a node, as slots."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ones.launchers.api import Slot
from ones.launchers.devices import cpu_slots, gpu_slots


def slots_of(node: str, gpus: list[int], cpus: int) -> list[Slot]:
    """The GPUs that Slurm gave us here, by their names if NVML knows them; or parts of the CPUs."""
    if not gpus:
        return cpu_slots(node, cpus)
    real: list[Slot] = []
    with suppress(Exception):  # no driver: GPUs of another make, or fake ones
        real = gpu_slots(node, lambda pid: True)
    if len(real) == len(gpus):  # Slurm hides the others
        return [replace(slot, index=i) for i, slot in enumerate(real)]
    by_index = {slot.index: slot for slot in real}
    return [
        replace(by_index[gpu], index=i)
        if gpu in by_index
        else Slot(node=node, index=i, kind="gpu", name="GPU", device=str(gpu))
        for i, gpu in enumerate(gpus)
    ]
