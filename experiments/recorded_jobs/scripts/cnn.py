"""A convolutional network with batch normalisation, whose buffers are broadcast before each forward pass."""

from __future__ import annotations

import torch
from torch import nn
from training import train

BATCH = 16


def block(inside: int, outside: int) -> list[nn.Module]:
    """Return the layers of a block, which halves the image's sides."""
    return [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]


def loss_of(model: nn.Module) -> torch.Tensor:
    """Return the loss on random images."""
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    return nn.functional.cross_entropy(model(images), labels)


torch.manual_seed(0)
layers = [
    *block(3, 32),
    *block(32, 64),
    *block(64, 128),
    *block(128, 256),
    nn.Flatten(),
    nn.Linear(1024, 512),
    nn.ReLU(),
]
train(nn.Sequential(*layers, nn.Linear(512, 10)), loss_of)
