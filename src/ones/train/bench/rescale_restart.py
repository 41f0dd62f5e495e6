"""The baseline of `ones bench rescale`: DistributedDataParallel that saves, ends and restarts.

One process of one phase. With `--torchrun` it trains until it is killed and saves every `--steps`
steps; without, it makes `--steps` steps, saves and ends.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()

import argparse  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ones.train.bench.models import mlp  # noqa: E402
from ones.train.bench.step_times import StepTimes  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--meet", default="", help="a file for the rendezvous")
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    rank, workers, rendezvous = args.rank, args.workers, f"file://{args.meet}"
    if args.torchrun:
        rank, workers, rendezvous = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://"
    torch.manual_seed(0)
    model = mlp(args.width, args.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    built = time.monotonic()
    step = _load(args.checkpoint, model, optimizer)
    loaded = time.monotonic()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=workers)
    # all have the state of the checkpoint already: do not send it again
    ddp: nn.Module = DistributedDataParallel(model, gradient_as_bucket_view=True, init_sync=False)
    if args.compile:
        ddp = torch.compile(ddp)  # type: ignore[assignment]
    times = StepTimes(args.out, f"rank{rank}of{workers}")
    connected = time.monotonic()
    times.note(rank, started=STARTED, built=built, loaded=loaded, connected=connected)
    local = max(1, args.batch // workers)
    x, y = torch.randn(local, args.width), torch.randn(local, args.width)
    loss = nn.MSELoss()
    last = step + args.steps
    while args.torchrun or step < last:
        begin = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        loss(ddp(x), y).backward()
        optimizer.step()
        step += 1
        times.step(workers=workers, step=step, begin=begin, rank=rank)
        if args.torchrun and rank == 0 and step % args.steps == 0:
            _save(args.checkpoint, model, optimizer, step)
    if rank == 0:
        _save(args.checkpoint, model, optimizer, step)
        times.note(rank, saved=time.monotonic())
    _end_together(Path(args.out), rank, workers)


def _end_together(home: Path, rank: int, workers: int) -> None:
    """Ends when all ranks are done: a connection closed early may leave a rank waiting for ever."""
    (home / f"{rank}.done").touch()
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and len(list(home.glob("*.done"))) < workers:
        time.sleep(0.002)
    sys.stdout.flush()
    os._exit(0)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    new = path.with_suffix(".new")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new
    )
    new.rename(path)


def _load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, mmap=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    main()
