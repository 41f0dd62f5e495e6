"""The training script of the acceptance run: `python -m ones.train.acceptance.script`.

An ordinary script that calls `ones.join`. It also notes a digest of its state after each switch,
times each step, and at its end compares its model with that of one process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import ones
from ones.train.acceptance import reference
from ones.train.acceptance.case import OUT, VARIABLE, Case
from ones.train.acceptance.ddp import DdpSteps
from ones.train.acceptance.faults import happen
from ones.train.acceptance.models import (
    Forward,
    make_data,
    make_model,
    make_optimizer,
    make_scaler,
)
from ones.train.acceptance.notes import Notes, StepTimer, memory_used, state_digest
from ones.train.acceptance.waits import WaitCounter
from ones.train.device import find_device

_BLOCK = 10  # steps of each kind that are compared with DDP
_BLOCKS = 3
_COUNTED = range(12, 22)  # steps in which host waits are counted


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # what a job that hangs is doing
    case, out = Case.from_text(os.environ[VARIABLE]), Path(os.environ[OUT])
    worker = os.environ["ONES_WORKER"]
    torch.set_num_threads(1)
    device = find_device()
    model = make_model(case)
    optimizer, scaler = make_optimizer(case, model), make_scaler(case, device)
    began = time.perf_counter()
    job = ones.join(
        model, optimizer, make_data(case), batch_size=case.batch, scaler=scaler, lr_ramp_steps=0,
    )  # fmt: skip
    notes = Notes(out, worker)
    notes.write("joined", seconds=time.perf_counter() - began)
    forward, timer = Forward(case, model, device), StepTimer(device)
    overhead = _Overhead(case, device, out, notes) if case.compare_with_ddp else None
    waits = WaitCounter()
    layout: Any = None
    for _ in job.epochs(case.most_steps * case.batch // case.samples):
        for x, y in job.batches():
            step, now = job.steps, (job.workers, job.batch, _group(job))
            is_first, layout = now != layout, now
            if is_first:
                notes.write(
                    "state", step=step, workers=job.workers, memory=memory_used(device),
                    digest=state_digest(model, optimizer),
                )  # fmt: skip
            timer.begin()
            happen(case.drill, out, step=step, workers=job.workers, worker=worker)
            loss = forward(x, y)
            if case.count_waits and job.workers > 1 and step in _COUNTED:
                with waits.counting():
                    job.step(loss)
                if step == _COUNTED[-1]:
                    notes.write("waits", of_steps=waits.counts)
            else:
                job.step(loss)
            seconds = timer.end()
            if is_first or step % 5 == 0:
                notes.write("step", step=step, workers=job.workers, seconds=seconds, first=is_first)
            if overhead is not None:
                overhead.after_step(job, seconds, is_first=is_first)
            time.sleep(case.nap_seconds)
    if job.is_main:
        steps = job.steps
        apart = reference.difference(case, model, reference.train(case, device, steps))
        result = {"steps": steps, "difference": apart, "parameters": len(list(model.parameters()))}
        made = out / "result.part"
        made.write_text(json.dumps(result))
        made.replace(out / "result.json")


def _group(job: Any) -> object:
    """The layout of the job: a new one for each plan and each loss."""
    layout = job._elastic.context.layout
    return layout.plan, layout.incarnation


class _Overhead:
    """Compares steps of the job with those of DDP, block by block."""

    def __init__(self, case: Case, device: torch.device, out: Path, notes: Notes) -> None:
        self._case, self._device, self._out, self._notes = case, device, out, notes
        self._seconds: list[float] = []
        self._ddp: DdpSteps | None = None
        self._blocks = 0

    def after_step(self, job: Any, seconds: float, *, is_first: bool) -> None:
        if job.workers != 2 or is_first or self._blocks > _BLOCKS:
            return
        self._seconds.append(seconds)
        if len(self._seconds) < _BLOCK:
            return
        elastic, self._seconds = sum(self._seconds) / _BLOCK, []
        if self._ddp is None:
            rank = job._elastic.rank
            self._ddp = DdpSteps(self._case, self._device, self._out, rank, job.workers)
        with job._guard.allowed():  # backward and optimizer of DDP are not the job's
            plain = self._ddp.seconds(_BLOCK)
        if self._blocks:  # the first one warms up
            self._notes.write("overhead", elastic=elastic, ddp=plain)
        self._blocks += 1


if __name__ == "__main__":
    main()
    sys.stdout.flush()
