"""A small regression. Every worker leaves a trace of what it saw; tests read it.

Environment: OUT, OPTIMIZER, EPOCHS, SAMPLES, BATCH, LIMIT, NAP, HOLD, HOLD_MOST, LOADERS, NORM,
DTYPE, AMP, OVERFLOW, TOO_MANY, TOO_MANY_BACK, CLIP, CLAMP, CRASH, STRICT, SKEW,
CONVOLUTION, COMPILE, DIGESTS, SLOW, STREAM.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from parts import (  # type: ignore[import-not-found]
    Samples,
    Stream,
    build,
    optimizer_of,
    synchronised,
)
from torch import nn

import ones
from ones.train.elastic_job import ElasticJob

env = os.environ
out = Path(env["OUT"])
me = env.get("ONES_WORKER", "alone/0").replace("/", "-")
torch.set_num_threads(1)
faulthandler.register(signal.SIGUSR1)  # a test that gives up on a job asks where its workers are


def crash_at(moment: str) -> None:
    """CRASH is `worker:moment:signal[:step[:mark]],...`: once, the first time the worker is there.

    Instead of a signal: `error` raises an unexpected one, `errors` does so each time, `memory` runs
    out of memory, `nothing` leaves only the mark. A worker crashes once for each mark.
    """
    for wanted in (text.split(":") for text in env.get("CRASH", "").split(",")):
        if wanted[:2] != [me, moment]:
            continue
        done = out / "-".join(["crashed", me, *wanted[4:]])
        if done.exists() and wanted[2] != "errors":
            continue
        if len(wanted) > 3 and trace_of.step < int(wanted[3]):
            continue
        done.touch()
        if wanted[2] == "memory":
            raise torch.OutOfMemoryError("the samples do not fit")
        if wanted[2].startswith("error"):
            raise ValueError("Tensors must be CUDA and dense")
        if wanted[2] == "nothing":
            continue
        os.kill(os.getpid(), getattr(signal, wanted[2]))


def prepare_to_crash() -> None:
    """In the middle of what the library does, where no test could hit it from outside."""
    from ones.train import background_transfer, digest, process_group, rendezvous, replica

    def before(module: object, name: str, moment: str) -> None:
        inner = getattr(module, name)

        def wrapped(*arguments: Any, **options: Any) -> object:
            crash_at(moment)
            return inner(*arguments, **options)

        setattr(module, name, wrapped)

    before(background_transfer.StateSender, "_send_piece", "send")
    before(background_transfer.StateSender, "send_step", "repeat")
    before(background_transfer.StateSender, "finish", "switch")
    before(background_transfer.StateReceiver, "_receive_pieces", "receive")
    before(background_transfer.StateReceiver, "_repeat_step", "repeat")
    before(replica.Replica, "load_final_state", "switch")
    before(digest.DigestCheck, "_compare", "digest")
    before(torch, "save", "save")
    before(process_group.ProcessGroup, "acknowledge_leave", "leave")
    before(rendezvous.Rendezvous, "connect", "connect")
    before(process_group, "create_device_backend", "device")
    before(replica.Replica, "optimizer_settings", "settings")
    before(replica.Replica, "_broadcast", "broadcast")
    before(replica.Replica, "_allocate", "allocate")


def limit_memory(guess: torch.Tensor) -> None:
    """TOO_MANY samples do not fit forward, TOO_MANY_BACK not backward."""
    count = len(guess)
    if env.get("TOO_MANY") and count > int(env["TOO_MANY"]):
        raise torch.OutOfMemoryError(f"{count} samples do not fit")
    if env.get("TOO_MANY_BACK") and count > int(env["TOO_MANY_BACK"]):
        guess.register_hook(fail_in_backward)  # type: ignore[no-untyped-call]


def fail_in_backward(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("the samples do not fit")


class Pace:
    """How long a step takes: NAP (with SLOW: on that worker only), or longer while something is
    waited for.

    HOLD is `step:pattern,...`: from that step on, until a file of OUT fits the pattern, each step
    takes longer than the one before (at most HOLD_MOST seconds). So training goes on, and does not
    end too early.
    """

    def __init__(self) -> None:
        self._nap = float(env.get("NAP", "0")) if env.get("SLOW", me) == me else 0.0
        self._holds = [part.partition(":")[::2] for part in env.get("HOLD", "").split(",") if part]
        self._slow, self._most = 0, float(env.get("HOLD_MOST", "10"))

    def wait(self, step: int) -> None:
        while self._holds and any(out.glob(self._holds[0][1])):
            del self._holds[0]
            self._slow = 0
        if self._holds and step >= int(self._holds[0][0]):
            self._slow += 1
            time.sleep(min(self._most, 0.1 * 1.3**self._slow))
        else:
            time.sleep(self._nap)


class Trace:
    def __init__(self) -> None:
        self.step = 0
        self._file = (out / f"trace-{me}-{os.getpid()}.jsonl").open("a")

    def write(self, **values: object) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


trace_of = Trace()


class SwitchDigests:
    """Writes a digest of the whole state at the first step of each group, with DIGESTS."""

    def __init__(self, job: ElasticJob, net: nn.Module, opt: torch.optim.Optimizer) -> None:
        self._job, self._net, self._opt = job, net, opt
        self._generation: tuple[int, int] | None = None

    def write(self) -> None:
        assert self._job._elastic is not None
        layout = self._job._elastic.context.layout
        assert layout is not None
        if layout.generation == self._generation:
            return
        self._generation = layout.generation
        digest = hashlib.sha256()
        moments = self._opt.state_dict()["state"]
        for state in (self._net.state_dict(), *(moments[index] for index in sorted(moments))):
            for name, value in sorted(state.items()):
                digest.update(name.encode())
                digest.update(
                    bytes(value.detach().contiguous().view(-1).view(torch.uint8).tolist())
                )
        line = {
            "generation": layout.generation, "step": int(self._job.steps),
            "worker": me, "workers": len(layout.workers), "digest": digest.hexdigest(),
        }  # fmt: skip
        with (out / f"digests-{me}-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    if env.get("STRICT"):
        import strict_group  # type: ignore[import-not-found]

        strict_group.install(int(env["STRICT"]), float(env.get("SKEW", "0.002")))
    if env.get("CRASH"):
        prepare_to_crash()
    dtype = getattr(torch, env.get("DTYPE", "float64"))
    net = build(bool(env.get("NORM")), dtype, convolution=bool(env.get("CONVOLUTION")))
    if env.get("NORM") == "together":
        net = synchronised(net)
    scaler = torch.amp.GradScaler("cpu", 1024.0, growth_interval=20) if env.get("AMP") else None
    forward = torch.compile(net) if env.get("COMPILE") else net
    opt = optimizer_of(net, env.get("OPTIMIZER", "sgd"))
    limit = int(env["LIMIT"]) if env.get("LIMIT") else None
    samples = Samples(int(env.get("SAMPLES", "203")), dtype)
    job = ones.join(
        net,
        opt,
        Stream(samples, int(env["STREAM"])) if env.get("STREAM") else samples,
        batch_size=int(env.get("BATCH", "16")),
        max_local_batch=limit,
        num_workers=int(env.get("LOADERS", "0")),
        lr_ramp_steps=5,
        scaler=scaler,
    )
    workers, pace, digests = 0, Pace(), SwitchDigests(job, net, opt)
    for epoch in job.epochs(int(env.get("EPOCHS", "4"))):
        for x, y, index in job.batches():
            if job.workers != workers:
                workers = job.workers
                state = {"net": net.state_dict(), "opt": opt.state_dict()}
                state["scaler"] = scaler.state_dict() if scaler else {}
                torch.save(state, out / f"replica-{job.steps}-{workers}-{me}.pt")
            if env.get("DIGESTS"):
                digests.write()
            trace_of.step = job.steps
            trace_of.write(
                epoch=epoch, step=job.steps, batch=job.batch, workers=job.workers,
                indices=[] if job.is_filler else index.tolist(),
            )  # fmt: skip
            crash_at("forward")
            valid = index % 3 != 0 if env.get("WEIGHTED") else index >= 0
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=scaler is not None):
                guess = forward(x)
            limit_memory(guess)
            loss = nn.functional.mse_loss(guess[valid].to(dtype), y[valid])
            if env.get("OVERFLOW") and job.steps in (10, 25) and not job.is_main:
                loss = loss * float("inf")  # in one worker only
            crash_at("step")
            clip = float(env["CLIP"]) if env.get("CLIP") else None
            job.step(loss, clip=clip, weight=int(valid.sum()) if env.get("WEIGHTED") else None)
            if env.get("CLAMP"):  # not seen by the library, so not repeated on joining workers
                for p in net.parameters():
                    p.data.clamp_(-0.3, 0.3)
            pace.wait(job.steps)
        job.report(accuracy=epoch / 100)
    state = {"net": net.state_dict(), "opt": opt.state_dict()}
    state["scaler"] = scaler.state_dict() if scaler else {}
    torch.save(state, out / f"end-{me}.pt")
    if job.is_main:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "steps": int(job.steps)}
        torch.save(state, out / "final.pt")


if __name__ == "__main__":
    main()
