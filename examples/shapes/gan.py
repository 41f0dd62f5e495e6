"""Two models and two optimizers: a generator against a discriminator."""

import torch
from task import dataset, network, result
from torch import nn
from torch.utils.data import DataLoader

import ones


def main() -> None:
    generator, discriminator = network(), network(1, seed=8)
    loader = DataLoader(dataset(), batch_size=16)
    opt_g = torch.optim.AdamW(generator.parameters(), lr=0.01)
    opt_d = torch.optim.AdamW(discriminator.parameters(), lr=0.01)
    job = ones.join([generator, discriminator], [opt_g, opt_d], loader)
    entropy = nn.BCEWithLogitsLoss()
    for _ in job.epochs(5):
        for noise, real in job.batches():
            ones_, zeros = torch.ones_like(real), torch.zeros_like(real)
            fake = generator(noise)
            job.backward(entropy(discriminator(real), ones_))
            job.backward(entropy(discriminator(fake.detach()), zeros))
            job.update(opt_d)
            job.backward(entropy(discriminator(fake), ones_))
            job.update(opt_g)
    job.log(result(generator, discriminator))


if __name__ == "__main__":
    main()
