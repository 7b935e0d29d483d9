"""What the three scripts share: arguments, the process group, and the loop."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

Loss = Callable[[nn.Module], torch.Tensor]


def train(model: nn.Module, loss_of: Loss) -> None:
    """Train a model with DistributedDataParallel on gloo; ``loss_of`` draws a batch and returns its loss.

    The first rank prints the mean of the steps behind the first ``--skip``, milliseconds.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--bucket-mb", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_default_device(given.device)  # on which batches are drawn
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    parallel = DistributedDataParallel(model.to(given.device), bucket_cap_mb=given.bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step in range(given.steps):
        if step == given.skip:
            begin_s = time.perf_counter()
        optimizer.zero_grad()
        loss_of(parallel).backward()
        optimizer.step()
    if given.device != "cpu":
        torch.cuda.synchronize()
    if distributed.get_rank() == 0:
        print((time.perf_counter() - begin_s) * 1e3 / (given.steps - given.skip))
    distributed.destroy_process_group()
