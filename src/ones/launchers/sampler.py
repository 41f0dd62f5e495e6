"""The sampler of a node: what each worker uses of its slots, from NVML and /proc."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ones.exec.processes import ProcessUsage, usage_of_all
from ones.launchers.api import LaunchedProcess, Slot
from ones.wire.samples import OwnSteps, SlotSample

MB = 1 << 20


class NodeSampler:
    """Reads counters. `cpus_per_slot`: CPUs that are the share of one slot.

    `own_steps` reads what a worker says of its steps. `nvml`: the module pynvml, or a replacement.
    """

    def __init__(
        self,
        cpus_per_slot: int,
        own_steps: Callable[[LaunchedProcess], OwnSteps | None] = lambda process: None,
        *,
        usage: Callable[[], Iterable[ProcessUsage]] = usage_of_all,
        clock: Callable[[], float] = time.monotonic,
        nvml: Any = None,  # noqa: ANN401
    ) -> None:
        self._cpus_per_slot, self._own_steps = cpus_per_slot, own_steps
        self._usage, self._clock = usage, clock
        self._nvml = nvml
        self._read_at = clock()
        self._cpu_seconds: dict[tuple[int, int], float] = {}  # (pid, born) -> at the last reading

    def sample(
        self, processes: Iterable[LaunchedProcess], slots: Mapping[str, Slot]
    ) -> tuple[SlotSample, ...]:
        """One sample for each slot of the living workers. The first knows no CPU time."""
        alive = [process for process in processes if process.alive and process.pid is not None]
        if not alive:
            self._cpu_seconds.clear()  # the next reading would be a mean over a long time
            return ()
        running, before, elapsed = self._read()
        devices = {slots[id].device for process in alive for id in process.slots if id in slots}
        gpus = self._read_gpus(devices - {""})
        found: list[SlotSample] = []
        for process in alive:
            assert process.pid is not None
            tree = running.tree(process.pid)
            cpus = _cpus(tree, before, elapsed)
            share = self._cpus_per_slot * max(1, len(process.slots))
            memory = sum(each.memory_bytes for each in tree) / MB / max(1, len(process.slots))
            steps = self._own_steps(process)
            for id in process.slots:
                slot = slots.get(id)
                if slot is None:
                    continue
                used: dict[str, float | None] = {
                    "utilisation": None if cpus is None else min(1.0, cpus / share),
                    "memory_mb": memory if tree else None,
                }
                if slot.device:
                    used = gpus.get(slot.device, {})
                found.append(
                    SlotSample(launch=process.id, slot=id, cpus=cpus, own_steps=steps, **used)
                )
        return tuple(found)

    def _read(self) -> tuple[_Running, Mapping[tuple[int, int], float], float]:
        """All processes, the CPU seconds of the last reading, and the seconds since then."""
        now = self._clock()
        elapsed, self._read_at = now - self._read_at, now
        running = _Running(self._usage())
        before, self._cpu_seconds = self._cpu_seconds, running.cpu_seconds()
        return running, before, elapsed

    # GPUs

    def _read_gpus(self, devices: Iterable[str]) -> dict[str, dict[str, float | None]]:
        """What is known of these GPUs; nothing without an NVIDIA driver."""
        wanted = list(devices)
        if not wanted:
            return {}
        if self._nvml is None:
            import pynvml

            self._nvml = pynvml
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return {}
        try:
            return {device: self._read_gpu(device) for device in wanted}
        finally:
            nvml.nvmlShutdown()

    def _read_gpu(self, device: str) -> dict[str, float | None]:
        nvml = self._nvml
        found: dict[str, float | None] = {}
        with suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(device)
            # a part of a divided GPU (MIG) knows its memory only
            with suppress(nvml.NVMLError):
                busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
                found["utilisation"] = min(1.0, busy / 100.0)
            with suppress(nvml.NVMLError):
                found["memory_mb"] = nvml.nvmlDeviceGetMemoryInfo(handle).used / MB
            with suppress(nvml.NVMLError):
                found["power_watts"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0
        return found


class _Running:
    """The processes of one reading."""

    def __init__(self, processes: Iterable[ProcessUsage]) -> None:
        self._by_pid = {process.pid: process for process in processes}
        self._children: dict[int, list[ProcessUsage]] = defaultdict(list)
        for process in self._by_pid.values():
            self._children[process.parent].append(process)

    def cpu_seconds(self) -> dict[tuple[int, int], float]:
        return {(p.pid, p.born): p.cpu_seconds for p in self._by_pid.values()}

    def tree(self, root: int) -> list[ProcessUsage]:
        """A process and its descendants."""
        found: list[ProcessUsage] = []
        todo = [self._by_pid[root]] if root in self._by_pid else []
        while todo:
            process = todo.pop()
            found.append(process)
            todo += self._children.get(process.pid, ())
        return found


def _cpus(
    tree: list[ProcessUsage], before: Mapping[tuple[int, int], float], elapsed: float
) -> float | None:
    """CPUs that these processes have kept busy since the last reading; None: it is the first."""
    if not before or not tree or elapsed <= 0.0:
        return None
    seconds = sum(p.cpu_seconds - before.get((p.pid, p.born), 0.0) for p in tree)
    return max(0.0, seconds / elapsed)
