"""What the three scripts share: arguments, the process group, and the loop."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

Loss = Callable[[nn.Module], torch.Tensor]


def train(model: nn.Module, loss_of: Loss) -> None:
    """Train a model with DistributedDataParallel on gloo; ``loss_of`` draws a batch and returns its loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_default_device(given.device)  # on which batches are drawn
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    parallel = DistributedDataParallel(model.to(given.device), bucket_cap_mb=given.bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for _ in range(given.steps):
        optimizer.zero_grad()
        loss_of(parallel).backward()
        optimizer.step()
    distributed.destroy_process_group()
