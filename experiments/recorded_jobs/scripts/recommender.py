"""A recommender: eight tables of embeddings, whose gradients are most of the bytes, and a small network."""

from __future__ import annotations

import torch
from torch import nn
from training import train

TABLES, ROWS, CHANNELS, DENSE, BATCH = 8, 8000, 32, 16, 128


class Recommender(nn.Module):
    """Tables of embeddings and two small networks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, CHANNELS) for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(DENSE, 128), nn.ReLU(), nn.Linear(128, CHANNELS))
        self.top = nn.Sequential(nn.Linear(CHANNELS * (TABLES + 1), 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return the logit of a click of each sample."""
        found = [table(sparse[:, place]) for place, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(dense), *found], dim=1))


def loss_of(model: nn.Module) -> torch.Tensor:
    """Return the loss on random samples."""
    dense, sparse = torch.randn(BATCH, DENSE), torch.randint(0, ROWS, (BATCH, TABLES))
    clicks = torch.randint(0, 2, (BATCH, 1)).float()
    return nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), clicks)


torch.manual_seed(0)
train(Recommender(), loss_of)
