#!/usr/bin/env python3
"""The models of the benchmark in PyTorch: the networks of apps/mnist and apps/gpt, and a ResNet-18 for small images.

    models.py export resnet18.pt      as a TorchScript model, for mnist --model
"""
import math
import sys

import torch
from torch import nn


def mnist():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10))


class BasicBlock(nn.Module):
    """He and others, "Deep residual learning for image recognition", 2016."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet18():
    """With the first layer for small images: 3 x 3 without stride, and no pooling after it."""
    layers = [nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class LayerNorm(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(elements))

    def forward(self, x):
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class TransformerBlock(nn.Module):
    def __init__(self, heads, embedding):
        super().__init__()
        self.heads = heads
        self.attention_norm = LayerNorm(embedding)
        self.query_key_value = nn.Linear(embedding, 3 * embedding, bias=False)
        self.attention_output = nn.Linear(embedding, embedding, bias=False)
        self.feed_forward_norm = LayerNorm(embedding)
        self.hidden = nn.Linear(embedding, 4 * embedding, bias=False)
        self.hidden_output = nn.Linear(4 * embedding, embedding, bias=False)

    def attend(self, x, mask):
        batch, length, embedding = x.shape
        each = embedding // self.heads
        q, k, v = self.query_key_value(x).view(batch, length, 3, self.heads, each).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(each) + mask, 3)
        return self.attention_output((weights @ v).transpose(1, 2).reshape(x.shape))

    def forward(self, x, mask):
        x = x + self.attend(self.attention_norm(x), mask)
        return x + self.hidden_output(nn.functional.gelu(self.hidden(self.feed_forward_norm(x))))


class Gpt(nn.Module):
    """apps/gpt's, without dropout: nanoGPT's small configuration for CPUs."""

    def __init__(self, vocabulary, block=64, layers=4, heads=4, embedding=128):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.positions = nn.Embedding(block, embedding)
        self.blocks = nn.ModuleList(TransformerBlock(heads, embedding) for _ in range(layers))
        self.last_norm = LayerNorm(embedding)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = torch.triu(torch.full((length, length), -math.inf, device=tokens.device), 1)
        for block in self.blocks:
            x = block(x, mask)
        return self.last_norm(x) @ self.tokens.weight.t()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "export":
        sys.exit(__doc__)
    torch.manual_seed(1)
    torch.jit.script(resnet18()).save(sys.argv[2])
