"""Checks of installation and machine: versions, torch, GPUs and their other users."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ones import __version__
from ones.apps.doctor.findings import GB, NOTE, OK, PROBLEM, WARNING, Finding, Findings
from ones.config import ServiceSettings

FEW_FILES = 1024
TORCH_SECONDS = 120.0

#: extra -> its modules, and what does not work without it
EXTRAS = {
    "serve": (("fastapi", "uvicorn", "sqlalchemy", "alembic", "sse_starlette"), "no ones up"),
    "train": (("torch",), "scripts that call ones.join cannot run"),
    "report": (("matplotlib", "jinja2"), "no pictures and no pages of results"),
    "examples": (("sklearn", "mlxtend"), "only ones demo --simulated works"),
}


def versions(settings: ServiceSettings) -> Findings:
    yield Finding(
        "versions",
        OK,
        f"ones {__version__}, Python {platform.python_version()}, {platform.system()}"
        f" {platform.release()}",
    )
    if sys.platform != "linux":
        advice = "ones sim, compare and paper work; ones up needs Linux"
        yield Finding("system", PROBLEM, f"{sys.platform} is not Linux", advice)


def extras(settings: ServiceSettings) -> Findings:
    for extra, (modules, loss) in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            status = PROBLEM if extra == "serve" else WARNING
            what = f"not installed: {', '.join(missing)} ({loss})"
            yield Finding(extra, status, what, f"pip install 'ones[{extra}]'")
        else:
            yield Finding(extra, OK, ", ".join(_with_version(module) for module in modules))


def _with_version(module: str) -> str:
    package = {"sklearn": "scikit-learn"}.get(module, module)
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


_ASK_TORCH = """
import json, torch
import torch.distributed as d
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "gloo": d.is_available() and d.is_gloo_available(),
    "nccl": d.is_available() and d.is_nccl_available(),
}))
"""


def torch_and_gpus(settings: ServiceSettings) -> Findings:
    torch = _torch()
    if isinstance(torch, Finding):
        yield torch
        torch = None
    elif torch is not None:
        cuda = f"CUDA {torch['cuda']}" if torch["cuda"] else "without CUDA"
        backends = [name for name in ("gloo", "nccl") if torch[name]]
        text = f"{torch['version']}, {cuda}, {', '.join(backends) or 'no collectives'}"
        yield Finding("torch", OK, text)
        if not torch["gloo"]:
            advice = "install a build of torch with torch.distributed"
            yield Finding("torch", PROBLEM, "gloo is missing: no elastic training", advice)
    yield from _gpus(torch, settings)


def _torch() -> dict[str, Any] | Finding | None:
    """Asks torch in another process, because a broken installation may crash the interpreter."""
    if find_spec("torch") is None:
        return None
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True, text=True, timeout=TORCH_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding("torch", PROBLEM, f"import takes more than {TORCH_SECONDS:.0f} s")
    if asked.returncode:
        lines = asked.stderr.strip().splitlines()
        last = lines[-1] if lines else f"exit code {asked.returncode}"
        return Finding("torch", PROBLEM, f"cannot be imported: {last}", "install torch again")
    found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return found


def _gpus(torch: dict[str, Any] | None, settings: ServiceSettings) -> Findings:
    if find_spec("pynvml") is None:
        return
    from ones.control.statedir import StateDir
    from ones.launchers.devices import gpu_slots

    mark = f"ONES_JOB_DIR={StateDir.of(settings.state).runs}".encode()

    def is_ours(pid: int) -> bool:
        try:
            return mark in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    slots = gpu_slots("local", is_ours)
    if not slots:
        cores = len(os.sched_getaffinity(0))
        advice = f"CPU slots work: ones up --slots {cores}"
        yield Finding("GPUs", NOTE, "none (no NVIDIA driver answers)", advice)
        return
    for slot in slots:
        what = f"{slot.name}, {slot.memory_mb:,} MB"
        if slot.used_by:
            used = f"{what}, in use by {', '.join(slot.used_by)}"
            yield Finding(
                f"GPU {slot.index}", WARNING, used, "ONES does not use it until that process ends"
            )
        else:
            yield Finding(f"GPU {slot.index}", OK, what)
    if torch is not None and not torch["gpus"]:
        why = "was built without CUDA" if not torch["cuda"] else "cannot use them"
        advice = "install a CUDA build of torch that fits the driver (see nvidia-smi)"
        yield Finding("CUDA", PROBLEM, f"{len(slots)} GPUs, but torch {why}", advice)
    elif torch is not None and not torch["nccl"]:
        yield Finding("NCCL", PROBLEM, "torch has no NCCL", "jobs on several GPUs need it")


def machine(settings: ServiceSettings) -> Findings:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = f"{cores} cores (load {load:.1f}), {memory / GB:.0f} GB of memory"
    yield Finding("machine", OK, text)
    slots = settings.slots
    if slots is not None and slots > 2 * cores:
        advice = f"use --slots {cores}, one per core"
        yield Finding("slots", WARNING, f"{slots} CPU slots on {cores} cores", advice)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < FEW_FILES:
        yield Finding("open files", WARNING, f"the limit is {files}", "ulimit -n 4096")
    cache = Path(os.environ.get("NUMBA_CACHE_DIR", ""))
    nearest = next((p for p in (cache, *cache.parents) if p.exists()), cache)
    if not os.access(nearest, os.W_OK):
        advice = "set NUMBA_CACHE_DIR to a writable directory"
        what = f"{cache}: not writable; kernels are compiled at every start"
        yield Finding("cache", WARNING, what, advice)
