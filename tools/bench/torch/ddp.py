"""One process of a group that trains a model of models.py with PyTorch's DistributedDataParallel, or alone in a plain
loop; started by `run`."""
import argparse
import gzip
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import models

block = 64


def read_idx(path):
    opened = gzip.open(path) if path.endswith(".gz") else open(path, "rb")
    with opened as file:
        content = file.read()
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(content[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


class Images:
    def __init__(self, options):
        self.images = read_idx(options.images)[: -options.held_out]
        self.labels = read_idx(options.labels)[: -options.held_out]
        self.model = models.resnet18() if options.model == "resnet18" else models.mnist()
        self.size = len(self.images)
        self.clip = None
        self.device = options.device

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, 2e-3)

    def loss(self, parallel, samples):
        x = self.images[samples].to(self.device, torch.float).div(255).sub(0.13).div(0.31).unsqueeze(1)
        return nn.functional.cross_entropy(parallel(x), self.labels[samples].to(self.device, torch.long))


class Text:
    def __init__(self, options):
        with open(options.text, "rb") as file:
            content = file.read()
        characters = {c: i for i, c in enumerate(sorted(set(content)))}
        self.tokens = torch.tensor([characters[c] for c in content], dtype=torch.uint8)
        self.model = models.Gpt(len(characters), block)
        self.size = len(content) * 9 // 10 - block
        self.clip = 1.0
        self.device = options.device

    def optimizer(self, parameters):
        parameters = list(parameters)
        return torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                                  {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
                                 1e-3, betas=(0.9, 0.99))

    def loss(self, parallel, samples):
        windows = torch.stack([self.tokens[s : s + block + 1] for s in samples.tolist()]).to(self.device, torch.long)
        scores = parallel(windows[:, :-1])
        return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[2]), windows[:, 1:].reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    for name in ("--model", "--images", "--labels", "--text", "--report"):
        parser.add_argument(name)
    for name in ("--local-batch", "--steps", "--held-out"):
        parser.add_argument(name, type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, world = 0, 1
    if not options.plain:
        dist.init_process_group(options.backend)
        rank, world = dist.get_rank(), dist.get_world_size()
    task = Text(options) if options.model == "gpt" else Images(options)
    parallel = task.model.to(options.device)
    if not options.plain:
        parallel = DistributedDataParallel(parallel)
    optimizer = task.optimizer(parallel.parameters())
    local = options.local_batch
    generator = torch.Generator().manual_seed(1)
    order, position = torch.randperm(task.size, generator=generator), 0
    begun = 0.0
    for step in range(1, options.steps + 1):
        if position + local * world > len(order):
            order, position = torch.randperm(task.size, generator=generator), 0
        mine = order[position + rank * local : position + (rank + 1) * local]
        position += local * world
        loss = task.loss(parallel, mine)
        optimizer.zero_grad()
        loss.backward()
        if task.clip:
            nn.utils.clip_grad_norm_(parallel.parameters(), task.clip)
        optimizer.step()
        loss.item()
        if step == 1:
            begun = time.time()
    if rank == 0:
        with open(options.report, "w") as out:
            out.write(f"{begun} {time.time() - begun} {torch.__version__}\n")
    if not options.plain:
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    main()
