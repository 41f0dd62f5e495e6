"""A Lightning module with a schedule, clipping, a checkpoint callback and a CSV log.

python examples/shapes/lightning_fit.py --epochs 3
ones run --slots 2 --schedule "0:1,20:2,60:1" -- python examples/shapes/lightning_fit.py
"""

from __future__ import annotations

import argparse

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ones.integrations.lightning  # noqa: F401  # ones


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2)
        )

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        found = self.layers(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(found, batch[1]))
        self.log("val_accuracy", (found.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--patience", type=int, default=0)
parser.add_argument("--resume", default=None)
parser.add_argument("--output", default="lightning_output")
args = parser.parse_args()

L.seed_everything(0)
inputs = torch.randn(1007, 20)
labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
train = DataLoader(TensorDataset(inputs[:807], labels[:807]), 20 // args.accumulate)
test = DataLoader(TensorDataset(inputs[807:], labels[807:]), 100)
model = Classifier()
checkpoint = ModelCheckpoint(monitor="val_accuracy", mode="max", save_last=True)
callbacks: list[L.Callback] = [checkpoint, LearningRateMonitor()]
if args.patience:
    callbacks.append(EarlyStopping("val_accuracy", mode="max", patience=args.patience))
trainer = L.Trainer(
    strategy="ones",  # ones
    max_epochs=args.epochs,
    accumulate_grad_batches=args.accumulate,
    gradient_clip_val=1.0,
    callbacks=callbacks,
    logger=CSVLogger(args.output),
    log_every_n_steps=10,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, train, test, ckpt_path=args.resume)
if trainer.is_global_zero:
    found = trainer.callback_metrics
    square = sum(float(p.detach().double().square().sum()) for p in model.parameters())
    print(
        f"final: epoch {trainer.current_epoch}, step {trainer.global_step},"
        f" accuracy {found['val_accuracy']:.4f}, square {square:.9f},"
        f" best {checkpoint.best_model_score:.4f}",
        flush=True,
    )
