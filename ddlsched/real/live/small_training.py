"""The program ``mlp``: a small network fitted to a fixed function, as a script of a user would do it."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from ddlsched.real.live.training import Step, train

__all__ = ["fit"]


def fit(batch: int) -> None:
    """Train data-parallel over gloo with so many samples a step; every rank has an equal part of each batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def begin(rank: int, ranks: int) -> Step:
        part = slice(rank * batch // ranks, (rank + 1) * batch // ranks)

        def step(number: int) -> float:
            inputs, targets = _samples(number, batch)
            optimiser.zero_grad()
            share = torch.nn.functional.mse_loss(model(inputs[part]), targets[part], reduction="sum") / batch
            share.backward()
            loss = share.detach()
            for each in (loss, *(parameter.grad for parameter in model.parameters())):
                distributed.all_reduce(each)
            optimiser.step()
            return float(loss)

        return step

    train(begin, state={"model": model, "optimiser": optimiser}, samples_a_step=batch)


def _samples(step: int, batch: int) -> tuple[Any, Any]:
    """Return the inputs and targets of a step, which depend on its number alone."""
    inputs = torch.randn(batch, 8, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.prod(dim=1, keepdim=True).tanh() + inputs.sum(dim=1, keepdim=True)
