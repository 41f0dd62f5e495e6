"""The slots of this machine: shares of its processors, or its GPUs, and who uses them by NVML."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.launchers.api import Slot
from ones.launchers.topology import nvml_groups

#: in place of a name, of a GPU that the driver does not know any more
GONE = "nobody: the driver does not find it"


def gpu_slots(node: str, is_ours: Callable[[int], bool], nvml: Any = None) -> list[Slot]:  # noqa: ANN401
    """One slot for each GPU; `used_by` names processes on it that are not ours.

    No NVIDIA driver: no slots. `nvml` is the module pynvml or one like it.
    """
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        near = nvml_groups(devices, nvml)
        return [
            replace(_slot(node, index, device, is_ours, nvml), group=near[index])
            for index, device in enumerate(devices)
        ]
    except nvml.NVMLError as problem:
        raise WorldError(f"the NVIDIA driver does not tell its GPUs: {problem}") from problem
    finally:
        nvml.nvmlShutdown()


def _slot(
    node: str,
    index: int,
    device: Any,  # noqa: ANN401
    is_ours: Callable[[int], bool],
    nvml: Any,  # noqa: ANN401
) -> Slot:
    strangers = [
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
        used_by=tuple(_who(pid) for pid in sorted(set(strangers))),
    )


def _who(pid: int) -> str:
    name = ""
    with suppress(OSError), open(f"/proc/{pid}/comm") as file:
        name = file.read().strip()
    return f"{name} (pid {pid})" if name else f"pid {pid}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old drivers give bytes


def cpu_slots(node: str, count: int) -> list[Slot]:
    """Shares of this machine's processors, for jobs without a GPU."""
    return [Slot(node=node, index=i, kind="cpu", name="CPU") for i in range(count)]


def threads_per_slot(slots: int) -> int:
    """How many threads a worker may use for arithmetic, so that all together fit the machine."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, slots))


def local_slots(node: str, root: Path, cpus: int | None) -> list[Slot]:
    """So many CPU slots; or, with None, the GPUs of this machine; `used_by` says who else uses one.

    A GPU keeps its number while jobs run, whatever the driver says of others."""
    if cpus is not None:
        return cpu_slots(node, cpus)
    found = {slot.device: slot for slot in look_at_gpus(node, root)}
    order = _kept_order(root) if any((root / "live").glob("*/*")) else None
    if order is None:
        order = list(found)
        (root / "slots.json").write_text(json.dumps(order))
    return [
        replace(found[device], index=i)
        if device in found
        else Slot(node=node, index=i, kind="gpu", device=device, used_by=(GONE,))
        for i, device in enumerate(order)
    ]


def look_at_gpus(node: str, root: Path) -> list[Slot]:
    """As the driver numbers them, with those who use them and are not below this root."""
    mark = str(root).encode()

    def is_ours(pid: int) -> bool:
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            return b"ONES_JOB_DIR=" + mark in file.read()
        return False

    return gpu_slots(node, is_ours)


def _kept_order(root: Path) -> list[str] | None:
    try:
        return list(json.loads((root / "slots.json").read_text()))
    except (OSError, ValueError):
        return None
