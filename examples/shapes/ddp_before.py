"""DistributedDataParallel, started by torchrun."""

import torch
import torch.distributed as dist
from task import dataset, loss_of, network, result
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = network()
    wrapped = DistributedDataParallel(model)
    data = dataset()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=16 // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(wrapped, x, y).backward()
            optimizer.step()
    if rank == 0:
        print(result(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
