"""The network of apps/mnist in PyTorch's DistributedDataParallel: one process of the group, started by `run`."""
import gzip
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def read_idx(path):
    opened = gzip.open(path) if path.endswith(".gz") else open(path, "rb")
    with opened as file:
        content = file.read()
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


def main():
    images_path, labels_path, batch, steps, held_out, report = sys.argv[1:7]
    batch, steps, held_out = int(batch), int(steps), int(held_out)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    images = read_idx(images_path)[:-held_out]
    labels = read_idx(labels_path)[:-held_out]
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), 2e-3)
    local = batch // world
    generator = torch.Generator().manual_seed(1)
    order, position = torch.randperm(len(images), generator=generator), 0
    begun = 0.0
    for step in range(1, steps + 1):
        if position + batch > len(order):
            order, position = torch.randperm(len(images), generator=generator), 0
        mine = order[position + rank * local : position + (rank + 1) * local]
        position += batch
        x = images[mine].float().div(255).sub(0.13).div(0.31).unsqueeze(1)
        loss = nn.functional.cross_entropy(parallel(x), labels[mine].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if step == 1:
            begun = time.time()
    if rank == 0:
        with open(report, "w") as out:
            out.write(f"{begun} {time.time() - begun}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    main()
