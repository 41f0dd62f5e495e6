"""Epochs over a DataLoader, with a schedule per epoch."""

import torch
from task import dataset, loss_of, network, result
from torch.utils.data import DataLoader


def main() -> None:
    model = network()
    loader = DataLoader(dataset(), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(5):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
    print(result(model))


if __name__ == "__main__":
    main()
