"""Effect of a growing batch on training: real runs, one line of JSON for each epoch.

The batch follows `--batches`, for example "0:32,10:512": 32 samples a step, and 512 from epoch 10
on. The number of workers has no effect here: with gradients weighted by samples the update is
that of the whole batch. `ones bench convergence` calls this script.
"""

import argparse
import json

import torch
from mnist import mnist
from torch import Tensor, nn

from ones.train.learning_rate import RULES, LearningRate


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def run(
    args: argparse.Namespace, batches: dict[int, int], seed: int, data: tuple[Tensor, ...]
) -> None:
    x, y, valid_x, valid_y = data
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=args.momentum)
    base = args.base_batch or batches[0]
    rate = LearningRate(RULES[args.rule], base, args.ramp)
    rate.start = rate.target = RULES[args.rule](batches[0] / base)
    loss_fn = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(args.epochs):
        batch = batches[max(start for start in batches if start <= epoch)]
        rate.set_batch(batch, step)
        losses = []
        for part in torch.randperm(len(x)).split(batch):
            loss = loss_fn(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            with rate.applied(optimizer, step):
                optimizer.step()
            losses.append((loss.item(), len(part)))
            step += 1
        with torch.no_grad():
            accuracy = (model(valid_x).argmax(1) == valid_y).float().mean().item()
        mean = sum(loss * count for loss, count in losses) / len(x)
        row = {"seed": seed, "epoch": epoch, "batch": batch, "steps": step, "loss": mean}
        print(json.dumps(row | {"accuracy": round(accuracy, 4)}), flush=True)
        if args.target is not None and accuracy >= args.target:
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", default="0:32", help="epoch:batch,epoch:batch,...")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate at --base-batch")
    parser.add_argument("--base-batch", type=int, help="default: the first of --batches")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--rule", choices=sorted(RULES), default="linear")
    parser.add_argument("--ramp", type=int, default=0, help="steps in which the rate follows")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--target", type=float, help="accuracy at which a run ends")
    parser.add_argument("--seeds", default="1", help="one run for each, as 1,2,3")
    args = parser.parse_args()

    pairs = [part.split(":") for part in args.batches.split(",")]
    batches = {int(epoch): int(batch) for epoch, batch in pairs}
    training, validation = mnist()
    (x, y), (valid_x, valid_y) = training.tensors, validation.tensors
    # 14 x 14 pixels are enough, and training is four times as fast
    x, valid_x = nn.functional.avg_pool2d(x, 2), nn.functional.avg_pool2d(valid_x, 2)
    for seed in args.seeds.split(","):
        run(args, batches, int(seed), (x, y, valid_x, valid_y))


if __name__ == "__main__":
    main()
