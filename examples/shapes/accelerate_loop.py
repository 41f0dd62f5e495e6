"""An Accelerate loop with accumulation, clipping, a schedule and evaluation. Two changed lines.

python examples/shapes/accelerate_loop.py --epochs 3
ones run --slots 2 --schedule "0:1,20:2,60:1" -- python examples/shapes/accelerate_loop.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ones.integrations.accelerate import Accelerator  # ones: from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--stop-at", type=int, default=0)
parser.add_argument("--save", default="")
parser.add_argument("--load", default="")
parser.add_argument("--start", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(1013, 20)
labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
train = DataLoader(TensorDataset(inputs[:813], labels[:813]), 20 // args.accumulate)
test = DataLoader(TensorDataset(inputs[813:], labels[813:]), 100)
total = args.epochs * -(-813 // 20)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
model, optimizer, train, test, schedule = accelerator.prepare(
    model, optimizer, train, test, schedule
)
if args.load:
    accelerator.load_state(args.load)
done, first, epochs = 0, args.start, args.epochs
for epoch in accelerator.epochs(epochs, first):  # ones: for epoch in range(first, epochs):
    model.train()
    for x, y in train:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
        if args.stop_at and done >= args.stop_at:
            break
    model.eval()
    right = count = 0
    for x, y in test:
        with torch.no_grad():
            found, wanted = accelerator.gather_for_metrics((model(x).argmax(1), y))
        right, count = right + int((found == wanted).sum()), count + len(wanted)
    accelerator.print(f"epoch {epoch}: accuracy {right / count:.4f}")
    if args.save:
        accelerator.save_state(f"{args.save}/epoch{epoch}")
    if args.stop_at and done >= args.stop_at:
        break
square = sum(float(p.detach().double().square().sum()) for p in model.parameters())
accelerator.print(f"final: accuracy {right / count:.4f}, square {square:.9f}")
