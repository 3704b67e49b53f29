#!/usr/bin/env python3
"""A model from Python for mnist --model, and back.

    python_model.py export residual.pt
    mnist --model residual.pt --images IMAGES --labels LABELS --name residual
    troupe checkpoint export runs/residual residual.safetensors
    python_model.py evaluate residual.safetensors IMAGES LABELS 2000
"""
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def make_model():
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), Block(8), nn.MaxPool2d(2), Block(8),
                         nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.1), nn.Linear(72, 10))


def read_idx(path, header):
    with open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def evaluate(weights, images, labels, held_out):
    from safetensors.torch import load_file
    model = make_model()
    # The rest is the optimizer's.
    model.load_state_dict({k: v for k, v in load_file(weights).items() if not k.startswith("optimizer/")})
    model.eval()
    x = read_idx(images, 16).view(-1, 1, 28, 28)[-held_out:].float().div(255).sub(0.13).div(0.31)
    y = read_idx(labels, 8)[-held_out:].long()
    with torch.no_grad():
        scores = model(x)
    print("accuracy %.17g loss %.17g" % ((scores.argmax(1) == y).double().mean(), nn.functional.cross_entropy(scores, y)))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "export":
        torch.manual_seed(1)
        torch.jit.script(make_model()).save(sys.argv[2])
    elif len(sys.argv) == 6 and sys.argv[1] == "evaluate":
        evaluate(*sys.argv[2:5], int(sys.argv[5]))
    else:
        sys.exit(__doc__)
