"""The GPUs of the acceptance run, or the emulated ones, and what is known of them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ones import __version__
from ones.apps.doctor.findings import NOTE, OK, PROBLEM, WARNING, Finding, Findings
from ones.apps.doctor.gpu.jobs import Machine
from ones.errors import WorldError
from ones.extras import require
from ones.lab.fork_launcher import start_zygote
from ones.launchers.devices import cpu_slots, gpu_slots
from ones.launchers.local import NODE
from ones.train.emulation import VARIABLE

MOST_GPUS = 4
_FACTS_SECONDS = 120.0
_MEMORY_MB = 64  # of a GPU, that may differ before and after


@contextlib.contextmanager
def emulated_machine(directory: Path) -> Iterator[Machine]:
    """Two emulated GPUs. Raises WorldError if there is no compiler."""
    require("ones doctor --gpu", "torch")
    from ones.train.emulation.extension import build

    library = os.environ.get(VARIABLE) or build(directory)  # compiled before, by a test
    socket = str(directory / "zygote")
    zygote = start_zygote(socket)
    environment = {VARIABLE: str(library), "OMP_NUM_THREADS": "1"}
    try:
        yield Machine(tuple(cpu_slots(NODE, 2)), True, environment, socket)
    finally:
        zygote.terminate()
        zygote.wait()


def gpu_machine() -> Machine:
    """The free GPUs. Two workers share a single GPU by gloo. Raises WorldError without a GPU."""
    require("ones doctor --gpu", "torch", "pynvml")
    slots = gpu_slots(NODE, lambda pid: False)
    free = [slot for slot in slots if not slot.used_by][:MOST_GPUS]
    if not slots:
        raise WorldError(
            "no GPU was found (no NVIDIA driver answers); to try the command without one:"
            " ones doctor --gpu --emulate"
        )
    if not free:
        raise WorldError(
            f"all {len(slots)} GPUs are in use by other processes: see nvidia-smi, then try again"
        )
    environment = {}
    if len(free) == 1 or any(slot.device.startswith("MIG-") for slot in free):
        environment["ONES_BACKEND"] = "gloo"  # NCCL refuses workers that share a GPU
    if len(free) == 1:
        free = [free[0], replace(free[0], index=free[0].index + 1)]
    numbered = tuple(replace(slot, index=index) for index, slot in enumerate(free))
    return Machine(numbered, False, environment)


def facts() -> dict[str, Any]:
    """What torch says, asked in another process."""
    asked = subprocess.run(
        [sys.executable, "-m", "ones.train.acceptance.facts"],
        capture_output=True, text=True, timeout=_FACTS_SECONDS, check=False,
    )  # fmt: skip
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or ["no message"]
        raise WorldError(f"torch cannot be used: {lines[-1]}")
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return found


def versions(torch: dict[str, Any], machine: Machine) -> Findings:
    parts = [
        f"ones {__version__}", f"Python {platform.python_version()}", f"torch {torch['torch']}",
        f"CUDA {torch['cuda']}", f"cuDNN {torch['cudnn']}", f"NCCL {torch['nccl']}",
        f"driver {_driver()}", f"Linux {platform.release()}",
    ]  # fmt: skip
    is_missing = not machine.is_emulated and not (torch["gpus"] and torch["nccl"])
    advice = "install a CUDA build of torch that fits the driver" if is_missing else ""
    text = ", ".join(part for part in parts if not part.endswith(" None"))
    yield Finding("versions", PROBLEM if is_missing else OK, text, advice)


def gpus(torch: dict[str, Any], machine: Machine) -> Findings:
    if machine.is_emulated:
        yield Finding("GPUs", NOTE, "2 emulated: nothing here ran on a GPU")
        return
    names = "; ".join(torch["gpus"])
    if machine.environment.get("ONES_BACKEND") == "gloo":
        yield Finding(
            "GPUs", WARNING, f"{names}; NCCL is not tested: gloo carries all tensors",
            "run it on a machine with two free GPUs, too",
        )  # fmt: skip
    else:
        yield Finding("GPUs", OK, f"{names}; {len(machine.slots)} are used")


def mig(torch: dict[str, Any], machine: Machine) -> Findings:
    if machine.is_emulated:
        yield Finding("MIG", NOTE, "not applicable: emulated")
        return
    count = sum(slot.device.startswith("MIG-") for slot in machine.slots)
    yield Finding("MIG", OK, f"{count} of {len(machine.slots)} devices are MIG devices")


def p2p(torch: dict[str, Any], machine: Machine) -> Findings:
    pairs = [(i, j) for i, row in enumerate(torch["p2p"]) for j in range(len(row)) if i < j]
    if machine.is_emulated or not pairs:
        yield Finding("P2P", NOTE, "not applicable: fewer than two GPUs")
        return
    direct = sum(torch["p2p"][i][j] for i, j in pairs)
    text = f"{direct} of {len(pairs)} pairs of GPUs reach each other's memory directly"
    yield Finding("P2P", OK if direct == len(pairs) else NOTE, text)


def used_mb(machine: Machine) -> dict[str, int]:
    """Memory in use on each GPU, by all processes."""
    import pynvml

    found = {}
    pynvml.nvmlInit()
    try:
        for device in {slot.device for slot in machine.slots}:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device)
            found[device] = pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
    finally:
        pynvml.nvmlShutdown()
    return found


def memory_after(machine: Machine, before: dict[str, int], pids: set[int]) -> Findings:
    """Whether the workers of all jobs are gone, and their memory with them."""
    left = sorted(pid for pid in pids if os.path.exists(f"/proc/{pid}"))
    if left:
        yield Finding("memory after leaving", PROBLEM, f"workers are left: {left}", "kill them")
    elif machine.is_emulated:
        yield Finding("memory after leaving", OK, f"all {len(pids)} workers are gone")
    else:
        more = {gpu: mb - before[gpu] for gpu, mb in used_mb(machine).items()}
        most = max(more.values())
        text = f"all {len(pids)} workers are gone; at most {most} MB more in use than before"
        yield Finding("memory after leaving", OK if most <= _MEMORY_MB else PROBLEM, text)


def _driver() -> str | None:
    if find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    finally:
        pynvml.nvmlShutdown()
