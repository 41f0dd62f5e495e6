"""A moving average of the model beside it, and the best score in a file."""

import sys

import torch
from task import dataset, loss_of, network, result
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader


def main() -> None:
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    data = dataset()
    loader = DataLoader(data, batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    best = float("inf")
    for _ in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            score = float(loss_of(average, *data.tensors))
        if score < best:
            best = score
            torch.save(model.state_dict(), sys.argv[1] if sys.argv[1:] else "/dev/null")
    print(result(average, model), f"best {best:.12f}")


if __name__ == "__main__":
    main()
