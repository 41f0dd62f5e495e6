"""Hugging Face Trainer with a tiny BERT on synthetic sentences. Two lines make it elastic.

python examples/shapes/hf_trainer.py --epochs 3
ones run --slots 2 --schedule "0:1,20:2,60:1" -- python examples/shapes/hf_trainer.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)

from ones.integrations.transformers import elastic  # ones

WORDS, LENGTH = 50, 12


class Sentences(torch.utils.data.Dataset):
    """Random word numbers; the label says whether more of them are even than odd."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(2, WORDS, (size, LENGTH), generator=generator)
        self.labels = ((self.words % 2 == 0).float().mean(1) > 0.5).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        return {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": self.labels[index],
        }


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {
        "accuracy": float((np.argmax(prediction.predictions, -1) == prediction.label_ids).mean())
    }


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--steps", type=int, default=-1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--save", default="no")
parser.add_argument("--resume", default=None)
parser.add_argument("--output", default="hf_trainer_output")
parser.add_argument("--samples", type=int, default=1000)
args = parser.parse_args()

torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        max_steps=args.steps,
        per_device_train_batch_size=20 // args.accumulate,
        gradient_accumulation_steps=args.accumulate,
        per_device_eval_batch_size=250,
        learning_rate=2e-3,
        warmup_steps=10,
        train_sampling_strategy="sequential",
        eval_strategy="epoch",
        save_strategy=args.save,
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Sentences(args.samples, seed=1),
    eval_dataset=Sentences(500, seed=2),
    compute_metrics=accuracy,
)
elastic(trainer, lr_rule="none")  # ones
trainer.train(resume_from_checkpoint=args.resume)
found = trainer.evaluate()
if trainer.is_world_process_zero():
    square = sum(float(p.detach().double().square().sum()) for p in model.parameters())
    print(
        f"final: step {trainer.state.global_step}, loss {found['eval_loss']:.9f},"
        f" accuracy {found['eval_accuracy']:.4f}, square {square:.9f}",
        flush=True,
    )
