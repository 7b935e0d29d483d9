"""ResNet-50 on images of 224 x 224, for a GPU (needs torchvision)."""

from __future__ import annotations

import torch
import torchvision
from torch import nn
from training import train

BATCH = 32


def loss_of(model: nn.Module) -> torch.Tensor:
    """Return the loss on random images."""
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))
    return nn.functional.cross_entropy(model(images), labels)


torch.manual_seed(0)
train(torchvision.models.resnet50(), loss_of)
