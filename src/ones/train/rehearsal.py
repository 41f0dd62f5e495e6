"""A rehearsal: forward and backward of one micro-batch before a worker says that it can train.

The first step of a process is slow: kernels are compiled, libraries and allocators start. All
workers would wait for a joining worker's first step; so it makes one beforehand, and throws it
away.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ones.train import logs

_CACHE = "TORCHINDUCTOR_CACHE_DIR"

Rehearse = Callable[[Any], Tensor]

_log = logs.logger(__name__)


def rehearse(
    model: nn.Module,
    loss_of: Rehearse,
    fetch: Callable[[int], Any],
    sizes: list[int],
    device: torch.device,
) -> None:
    """Runs `loss_of` and backward on a micro-batch of each size.

    Two sizes: torch.compile compiles code for any size when it sees the second. Random generators,
    buffers and gradients are as before. An error is not the job's: the first step will show it.
    """
    with _random_state(device), _buffers(model):
        try:
            for size in sizes:
                torch.autograd.backward(loss_of(fetch(size)))
        except Exception as error:  # of the script: any
            _log.warning("the rehearsal failed, training goes on: %s", logs.describe(error))
        finally:
            for p in model.parameters():
                p.grad = None


def share_compile_cache(job_dir: str) -> None:
    """One cache for the workers of a job on a node: what one has compiled the next ones load.

    A directory that the user has set stays; torch itself sets its default when it is imported.
    """
    chosen = os.environ.get(_CACHE, "")
    parent, name = os.path.split(chosen)
    if not chosen or (parent == tempfile.gettempdir() and name.startswith("torchinductor_")):
        os.environ[_CACHE] = os.path.join(job_dir, "inductor")


@contextmanager
def _random_state(device: torch.device) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 the script may use it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    before = [(b, b.detach().clone()) for b in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
