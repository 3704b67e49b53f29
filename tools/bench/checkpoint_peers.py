"""How long other libraries take to write the same bytes durably: DIRECTORY MEBIBYTES. Prints "<name> <seconds>" lines."""

import os
import sys
import time

import torch
from safetensors.torch import save_file


def synced(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


directory, mebibytes = sys.argv[1], int(sys.argv[2])
elements = mebibytes * (1 << 20) // 16 // 4
tensors = {f"layer.{i}": torch.rand(elements) for i in range(16)}
for name, save, path in (
    ("torch.save", torch.save, os.path.join(directory, "state.pt")),
    ("safetensors.save_file", save_file, os.path.join(directory, "state.safetensors")),
):
    os.sync()
    start = time.perf_counter()
    save(tensors, path)
    synced(path)
    print(name, time.perf_counter() - start)
    os.remove(path)
