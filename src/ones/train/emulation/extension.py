"""Compiles the emulated device, and makes it known to torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ones.errors import WorldError
from ones.train.emulation import DEVICE

_SOURCE = Path(__file__).with_name("device.cpp")
_COMPILE_SECONDS = 300.0

_torch: Any = torch  # parts of it have no types
operators: Any = torch.ops.ones_emulated


def compiler() -> str | None:
    """The C++ compiler of this machine: `CXX`, or c++, or g++."""
    names = (os.environ.get("CXX", ""), "c++", "g++")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def build(directory: Path) -> Path:
    """Compiles the device into `directory`, unless it is there. Raises WorldError if it cannot."""
    library = directory / "emulated_gpu.so"
    if library.exists():
        return library
    program = compiler()
    if program is None:
        raise WorldError("the emulated GPU needs a C++ compiler, and none was found (c++, g++)")
    torch_directory = Path(torch.__file__).parent
    include = torch_directory / "include"
    made = directory / f"emulated_gpu-{os.getpid()}.so"
    command = [
        program, "-std=c++20", "-O0", "-fPIC", "-shared", "-w",
        f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", str(_SOURCE),
        "-o", str(made), f"-L{torch_directory / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise WorldError(f"{program} took more than {_COMPILE_SECONDS:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise WorldError(f"the emulated GPU does not compile with {program}: {lines[0]}")
    made.replace(library)  # at once: another process may build it, too
    return library


def activate(library: str | Path) -> torch.device:
    """Loads the compiled device into this process; torch then has a device named `emulated`."""
    if getattr(torch, DEVICE, None) is None:
        _torch.ops.load_library(str(library))
        _torch.utils.rename_privateuse1_backend(DEVICE)
        _torch._register_device_module(DEVICE, _device_module())
        _torch.utils.generate_methods_for_privateuse1_backend()
        # `model.to(device)` must keep the parameters that the optimizer knows, as on CUDA
        torch.__future__.set_swap_module_params_on_conversion(True)
    return torch.device(DEVICE, 0)


class _Stream:
    def synchronize(self) -> None:
        operators.synchronise()


def _device_module() -> types.ModuleType:
    """The part of `torch.cuda` that torch and the training library use."""

    @contextlib.contextmanager
    def device(index: object) -> Iterator[None]:
        yield

    module: Any = types.ModuleType(f"torch.{DEVICE}")
    module.device = device
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.current_stream = lambda device=None: _Stream()
    module.synchronize = lambda device=None: operators.synchronise()
    module.manual_seed_all = lambda seed: None
    module._is_in_bad_fork = lambda: False
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.memory_allocated = lambda device=None: operators.bytes_used()
    module.max_memory_allocated = lambda device=None: operators.peak_bytes()
    module.reset_peak_memory_stats = lambda device=None: operators.reset_peak()
    module.memory_reserved = module.memory_allocated
    module.mem_get_info = lambda device=None: (
        operators.most_bytes() - operators.bytes_used(),
        operators.most_bytes(),
    )
    module.empty_cache = lambda: None
    found: types.ModuleType = module
    return found
