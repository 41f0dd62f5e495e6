"""Common part of the scripts of the paper's workload: options, and the elastic training loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

import ones
from ones.stopping import StopRule


class Sets(NamedTuple):
    training: Dataset[Any]
    validation: Dataset[Any]


def options(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Parses the command line. `defaults`: values that differ between scripts."""
    parser = argparse.ArgumentParser(description=about)
    add = parser.add_argument
    add("--data", type=Path, help="folder of the data set; without: random tensors of its shape")
    add("--samples", type=int, help="training samples (default: %(default)s)")
    add("--classes", type=int, help="classes (default: %(default)s)")
    add("--batch-size", type=int, help="samples of a step, of all workers (default: %(default)s)")
    add("--rate", type=float, help="learning rate at that batch size (default: %(default)s)")
    add("--epochs", type=int, default=100, help="maximum number of epochs (default: %(default)s)")
    add("--target", type=float, help="accuracy at which to stop (default: %(default)s)")
    add(
        "--target-epochs",
        type=int,
        default=10,
        help="consecutive epochs above the target before stopping (default: 10)",
    )
    add("--loader-workers", type=int, default=0, help="processes that load data (default: 0)")
    add("--max-local-batch", type=int, help="samples that fit one GPU; more are accumulated")
    add("--amp", action="store_true", help="mixed precision")
    if "image_size" in defaults:
        add("--image-size", type=int, help="of random images and crops (default: %(default)s)")
    if "length" in defaults:
        add("--length", type=int, help="tokens of a sentence or a pair (default: %(default)s)")
        add("--pretrained", type=Path, help="folder with config.json, model.safetensors, vocab.txt")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def train(
    args: argparse.Namespace,
    model: nn.Module,
    sets: Sets,
    optimizer: Optimizer,
    loss_fn: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy,
) -> None:
    cuda = torch.cuda.is_available()
    job = ones.join(
        model,
        optimizer,
        sets.training,
        batch_size=args.batch_size,
        max_local_batch=args.max_local_batch,
        num_workers=args.loader_workers,
        pin_memory=cuda,
        # half precision needs its gradients scaled; bfloat16, on the CPU, does not
        scaler=torch.amp.GradScaler("cuda") if args.amp and cuda else None,
        stop=StopRule(target_accuracy=args.target, target_epochs=args.target_epochs),
    )
    half = torch.float16 if cuda else torch.bfloat16
    for epoch in job.epochs(args.epochs):
        for x, y in job.batches():
            with torch.autocast(job.device.type, dtype=half, enabled=args.amp):
                loss = loss_fn(model(x), y)
            job.step(loss)
        right = accuracy(model, sets.validation, args.batch_size, job.device)
        job.report(accuracy=right)
        job.log(f"epoch {epoch}: {job.steps} steps, accuracy {right:.4f}")


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset[Any], batch_size: int, device: torch.device) -> float:
    """Share of correct predictions, evaluated in batches of at most the script's size."""
    model.eval()
    right = torch.zeros((), device=device)
    count = 0
    for x, y in DataLoader(data, batch_size=batch_size):
        right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        count += len(y)
    model.train()
    return float(right) / count


def sgd(model: nn.Module, args: argparse.Namespace) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9, weight_decay=5e-4)


def adam(model: nn.Module, args: argparse.Namespace) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01)


def refuse(problem: str) -> NoReturn:
    """Exits with a one-line error message."""
    raise SystemExit(f"error: {problem}")
