"""A training process: one node of a job. Run by the manager as ``python -m ddlsched.real.live.worker``.

Its assignment and its orders come on stdin. Every step is committed, weights and all, before it is reported: what is
lost with a process is at most the step under way. By name a job may run ``count``, which only counts, and ``mlp``,
which fits a small network as a script of a user would do it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ddlsched.real.live.seat import CommitTimes, Seat

BATCH = 64
"""Samples a step over all nodes."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def count(seat: Seat, step_s: Callable[[int], float], save_s: float = 0.0) -> None:
    """Count until the last step is committed, a stand-in for training; only the first node does.

    Parameters
    ----------
    seat
        Of this process.
    step_s
        How long a step takes, seconds, by the number of nodes.
    save_s
        By how much longer a commit takes, as that of a large state would; what is not committed is lost at each change
        of the group.
    """
    losses: list[float] = []
    times = CommitTimes(seat.assignment.job)
    while len(losses) < seat.assignment.steps:
        orders = seat.orders()
        if orders.rank > 0:
            seat.wait_for_leave()
            continue
        with seat.writing(orders):
            losses = seat.commits.losses()
            times.begin(orders)
            while len(losses) < seat.assignment.steps and not seat.is_asked_to_leave():
                time.sleep(step_s(orders.ranks))
                losses.append(1.0 / (1 + len(losses)))
                if times.is_due() or len(losses) == seat.assignment.steps:
                    with times.timed():
                        time.sleep(save_s)
                        seat.commits.commit(losses)
                seat.report(losses, len(losses) * BATCH, orders.ranks, times.write_s)


def _fit(_: Seat) -> None:
    """Train data-parallel over gloo; every rank has an equal part of each batch."""
    import torch
    from torch import distributed

    from ddlsched.real.live.training import train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def begin(rank: int, ranks: int) -> Callable[[int], float]:
        part = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)

        def step(number: int) -> float:
            inputs, targets = _samples(number)
            optimiser.zero_grad()
            share = torch.nn.functional.mse_loss(model(inputs[part]), targets[part], reduction="sum") / BATCH
            share.backward()
            loss = share.detach()
            for each in (loss, *(parameter.grad for parameter in model.parameters())):
                distributed.all_reduce(each)
            optimiser.step()
            return float(loss)

        return step

    train(begin, state={"model": model, "optimiser": optimiser}, samples_a_step=BATCH)


def _samples(step: int) -> tuple[Any, Any]:
    """Return the inputs and targets of a step, which depend on its number alone."""
    import torch

    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.prod(dim=1, keepdim=True).tanh() + inputs.sum(dim=1, keepdim=True)


PROGRAMS: dict[str, Callable[[Seat], None]] = {
    "count": lambda seat: count(seat, lambda ranks: 0.02 / ranks),
    "mlp": _fit,
}
"""Any other program is the path of a script. Nodes divide the work of ``count``."""


def main() -> int:
    """Run the program of this process's job until its last step is committed."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    seat = Seat(_private_stdin())
    if seat.assignment.parent not in (0, os.getppid()):  # It died before the first line above.
        return 1
    Seat.here = seat
    if seat.assignment.program in PROGRAMS:
        PROGRAMS[seat.assignment.program](seat)
    else:
        _run(seat, Path(seat.assignment.program))
    return 0


def _run(seat: Seat, script: Path) -> None:
    """Run a script as ``python script`` does; what the manager is told of it is what was read, and not read again."""
    source = script.read_bytes()
    seat.script = hashlib.sha256(source).hexdigest()
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    module = ModuleType("__main__")
    module.__dict__["__file__"] = str(script)
    sys.modules["__main__"] = module
    exec(compile(source, str(script), "exec"), module.__dict__)


def _private_stdin() -> int:
    """Return a file of its own for what comes on stdin, from which the program then reads nothing."""
    orders_from = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders_from


if __name__ == "__main__":
    sys.exit(main())
