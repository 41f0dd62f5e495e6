"""Two models and two optimizers: a generator against a discriminator."""

import torch
from task import dataset, network, result
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    generator, discriminator = network(), network(1, seed=8)
    loader = DataLoader(dataset(), batch_size=16)
    opt_g = torch.optim.AdamW(generator.parameters(), lr=0.01)
    opt_d = torch.optim.AdamW(discriminator.parameters(), lr=0.01)
    entropy = nn.BCEWithLogitsLoss()
    for _ in range(5):
        for noise, real in loader:
            ones_, zeros = torch.ones_like(real), torch.zeros_like(real)
            fake = generator(noise)
            discriminator.zero_grad()
            entropy(discriminator(real), ones_).backward()
            entropy(discriminator(fake.detach()), zeros).backward()
            opt_d.step()
            generator.zero_grad()
            entropy(discriminator(fake), ones_).backward()
            opt_g.step()
    print(result(generator, discriminator))


if __name__ == "__main__":
    main()
