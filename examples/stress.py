"""Predicts the stressed syllable of a word: a network over letters, on generated words.

Words are made of random syllables and stressed by the rule of Latin: on the last syllable but one
if it ends in a consonant or has two vowels, else on the one before. One word in eight is an
exception. Always guessing the second syllable is right for about a third of the words.
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ones
from ones.stopping import StopRule

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST = 20  # letters
SYLLABLES = 4  # words stressed on a later syllable are left out: there are few
VALIDATION = 5000  # words for validation
EXCEPTIONS = 1 / 8
ONSETS = ("", *"bcdfglmnprstv", "pr", "tr", "cl", "st")
VOWELS = (*"aeiou", *"aeiou", "ae", "au", "oe")
CODAS = ("", "", "", "", *"nrslmx")


def new_word(draw: random.Random) -> tuple[str, int]:
    """The letters of a random word, and the index of its stressed syllable."""
    parts = [
        (draw.choice(ONSETS), draw.choice(VOWELS), draw.choice(CODAS))
        for _ in range(draw.choice((2, 3, 3, 4, 4, 5)))
    ]
    _, vowel, coda = parts[-2]
    is_heavy = bool(coda) or len(vowel) > 1
    stressed = max(0, len(parts) - (2 if is_heavy else 3))
    if draw.random() < EXCEPTIONS:
        stressed = draw.randrange(len(parts))
    return "".join(map("".join, parts)), stressed


def words(samples: int) -> tuple[TensorDataset, TensorDataset]:
    """Words as numbers of letters (0: none), and the index of the stressed syllable."""
    draw = random.Random(0)
    spelled, stressed = [], []
    while len(spelled) < samples + VALIDATION:
        word, stress = new_word(draw)
        if len(word) <= LONGEST and stress < SYLLABLES:
            spelled.append([LETTERS.index(letter) + 1 for letter in word])
            stressed.append(stress)
    x = torch.zeros(len(spelled), LONGEST, dtype=torch.long)
    for row, letters in zip(x, spelled, strict=True):
        row[: len(letters)] = torch.tensor(letters)
    y = torch.tensor(stressed)
    cut = VALIDATION
    return TensorDataset(x[cut:], y[cut:]), TensorDataset(x[:cut], y[:cut])


class Reader(nn.Module):
    """An embedding of letters, three convolutions, and the maximum over positions."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS) + 1, 32, padding_idx=0)
        self.places = nn.Parameter(torch.zeros(LONGEST, 32))
        self.convolutions = nn.Sequential(
            nn.Conv1d(32, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(width, SYLLABLES))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.convolutions((self.letters(x) + self.places).transpose(1, 2))
        scores: Tensor = self.head(seen.amax(2))
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
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--samples", type=int, default=24_000, help="words to learn from")
    parser.add_argument("--target", type=float, default=0.87, help="accuracy at which to stop")
    args = parser.parse_args()

    torch.manual_seed(0)
    training, validation = words(args.samples)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    stop = StopRule(target_accuracy=args.target)
    job = ones.join(model, optimizer, training, batch_size=args.batch_size, stop=stop)
    for epoch in job.epochs(args.epochs):
        for x, y in job.batches():
            job.step(loss_fn(model(x), y))
        right = accuracy(model, validation, job.device)
        job.report(accuracy=right)
        job.log(f"epoch {epoch}: accuracy {right:.4f}")


if __name__ == "__main__":
    main()
