"""The slots of this machine: shares of its CPUs, or its GPUs with the processes on them (NVML)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.launchers.api import Slot
from ones.launchers.topology import nvml_groups

#: `used_by` of a GPU that the driver does not list any more
GONE = "no process: the driver does not list this GPU"


def gpu_slots(node: str, is_ours: Callable[[int], bool], nvml: Any = None) -> list[Slot]:  # noqa: ANN401
    """One slot for each GPU or MIG device; `used_by` names processes on it that are not ours.

    Returns no slots without an NVIDIA driver. `nvml`: the module pynvml, or a replacement.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        devices = _devices(nvml)
        near = nvml_groups(devices, nvml)
        return [
            replace(_slot(node, index, device, is_ours, nvml), group=near[index])
            for index, device in enumerate(devices)
        ]
    except nvml.NVMLError as problem:
        raise WorldError(f"the NVIDIA driver did not list its GPUs: {problem}") from problem
    finally:
        nvml.nvmlShutdown()


def _devices(nvml: Any) -> list[Any]:  # noqa: ANN401
    """Handles of the GPUs; of a GPU that is divided (MIG), those of its parts instead."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            is_divided = nvml.nvmlDeviceGetMigMode(gpu)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError:  # not supported
            is_divided = False
        if not is_divided:
            found.append(gpu)
            continue
        for part in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError):  # fewer parts than possible
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part))
    return found


def _slot(
    node: str,
    index: int,
    device: Any,  # noqa: ANN401
    is_ours: Callable[[int], bool],
    nvml: Any,  # noqa: ANN401
) -> Slot:
    others = [
        process.pid
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)
        if not is_ours(process.pid)
    ]
    return Slot(
        node=node,
        index=index,
        kind="gpu",
        name=_text(nvml.nvmlDeviceGetName(device)),
        memory_mb=nvml.nvmlDeviceGetMemoryInfo(device).total >> 20,
        device=_text(nvml.nvmlDeviceGetUUID(device)),
        used_by=tuple(_process_name(pid) for pid in sorted(set(others))),
    )


def free_gpu_slots(
    node: str,
    count: int,
    *,
    may_share: bool = False,
    nvml: Any = None,  # noqa: ANN401
) -> list[Slot]:
    """Slots for `count` GPUs that no process uses. Raises WorldError if there are too few.

    `may_share`: several slots may have one GPU, if there are fewer GPUs than slots.
    """
    slots = gpu_slots(node, lambda pid: False, nvml)
    if not slots:
        raise WorldError("no GPU was found: no NVIDIA driver responds")
    free = [slot for slot in slots if not slot.used_by]
    if not free or (len(free) < count and not may_share):
        used = [f"GPU {slot.index} by {', '.join(slot.used_by)}" for slot in slots if slot.used_by]
        why = f"; in use: {'; '.join(used)}" if used else ""
        raise WorldError(f"{count} GPUs are wanted, {len(free)} of {len(slots)} are free{why}")
    return [replace(free[index % len(free)], index=index) for index in range(count)]


def _process_name(pid: int) -> str:
    name = ""
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        name = file.read().strip()
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old drivers return bytes


def granted_gpu_slots(node: str, gpus: Sequence[str]) -> list[Slot]:
    """Slots for the GPUs that a resource manager granted, each by index or UUID.

    NVML describes those that it knows.
    """
    real: list[Slot] = []
    with suppress(Exception):  # no NVIDIA driver: GPUs of another vendor, or fake ones
        real = gpu_slots(node, lambda pid: True)
    known = {str(slot.index): slot for slot in real} | {slot.device: slot for slot in real}
    is_hidden = len(real) == len(gpus) and all(gpu.isdecimal() for gpu in gpus)
    if is_hidden and not set(gpus) <= set(known):  # NVML sees the granted ones only, from 0 on
        gpus = [str(slot.index) for slot in real]
    return [
        replace(
            known.get(gpu, Slot(node=node, index=i, kind="gpu", name="GPU", device=gpu)), index=i
        )
        for i, gpu in enumerate(gpus)
    ]


def cpu_slots(node: str, count: int) -> list[Slot]:
    """Shares of this machine's CPUs, for jobs without a GPU."""
    return [Slot(node=node, index=i, kind="cpu", name="CPU") for i in range(count)]


def threads_per_slot(slots: int) -> int:
    """Threads for the arithmetic of one worker, so that those of all workers fit the machine."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, slots))


def local_slots(node: str, root: Path, cpus: int | None) -> list[Slot]:
    """The slots of this machine: `cpus` CPU slots or, with None, its GPUs.

    A GPU keeps its index while jobs run, even if the driver lists fewer or more GPUs.
    """
    if cpus is not None:
        return cpu_slots(node, cpus)
    found = {slot.device: slot for slot in read_gpus(node, root)}
    order = _stored_order(root) if any((root / "live").glob("*/*")) else None
    if order is None:
        order = list(found)
        (root / "slots.json").write_text(json.dumps(order))
    return [
        replace(found[device], index=i)
        if device in found
        else Slot(node=node, index=i, kind="gpu", device=device, used_by=(GONE,))
        for i, device in enumerate(order)
    ]


def read_gpus(node: str, root: Path) -> list[Slot]:
    """The GPUs in the driver's order; `used_by`: processes that are not of jobs below `root`."""
    mark = str(root).encode()

    def is_ours(pid: int) -> bool:
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            return b"ONES_JOB_DIR=" + mark in file.read()
        return False

    return gpu_slots(node, is_ours)


def _stored_order(root: Path) -> list[str] | None:
    try:
        return list(json.loads((root / "slots.json").read_text()))
    except (OSError, ValueError):
        return None
