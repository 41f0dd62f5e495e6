"""The rivals of `ones bench rescale`: DistributedDataParallel that saves, ends and starts again.

One process of one hop. With `--torchrun` it trains until it is killed, and saves now and then;
without, it makes `--steps` steps, saves and ends.
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
from ones.train.bench.moments import Moments  # noqa: E402


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
    args = parser.parse_args()
    rank, workers, meet = args.rank, args.workers, f"file://{args.meet}"
    if args.torchrun:
        rank, workers, meet = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://"
    torch.manual_seed(0)
    model = mlp(args.width, args.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    built = time.monotonic()
    step = _load(args.checkpoint, model, optimizer)
    loaded = time.monotonic()
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=workers)
    # all have the state of the checkpoint already: do not send it again
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, init_sync=False)
    moments = Moments(args.out, f"rank{rank}of{workers}")
    connected = time.monotonic()
    moments.note(rank, started=STARTED, built=built, loaded=loaded, connected=connected)
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
        moments.step(workers=workers, step=step, begin=begin, rank=rank)
        if args.torchrun and rank == 0 and step % args.steps == 0:
            _save(args.checkpoint, model, optimizer, step)
    if rank == 0:
        _save(args.checkpoint, model, optimizer, step)
        moments.note(rank, saved=time.monotonic())
    _farewell(Path(args.out), rank, workers)


def _farewell(home: Path, rank: int, workers: int) -> None:
    """End together, and at once. Who closes its connections while another still reads may leave it
    waiting for ever, and a barrier of the group cannot tell when its own last word has arrived."""
    (home / f"{rank}.through").touch()
    until = time.monotonic() + 60.0
    while time.monotonic() < until and len(list(home.glob("*.through"))) < workers:
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
