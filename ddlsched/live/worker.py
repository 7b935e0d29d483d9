"""A training process: one rank of a job on one node. Run by the manager as ``python -m ddlsched.live.worker``.

It reads its orders (JSON) from stdin. Every step is committed, weights and all, before it is reported: what is lost
with a process is at most the step under way. A job's committed state is what one file names, which is replaced whole.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddlsched.live.progress_socket import Report, send_report

__all__ = ["PROGRAMS", "Orders", "committed_steps", "main"]

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
BATCH = 64
"""Samples a step over all nodes, so that the loss does not depend on how many there are."""


@dataclass(frozen=True)
class Orders:
    """What a process is to do."""

    job: str
    token: str
    program: str
    steps: int
    rank: int
    nodes: int
    generation: int
    folder: str
    socket: str
    manager: int


def committed_steps(folder: Path) -> list[float]:
    """Return the loss of every committed step of a job, in order."""
    try:
        history: list[float] = json.loads((folder / "history.json").read_bytes())["losses"]
    except FileNotFoundError:
        return []
    return history


def main() -> int:
    """Train until the last step is committed."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    orders = Orders(**json.loads(sys.stdin.readline()))
    if os.getppid() != orders.manager:  # It died before the line above.
        return 1
    folder = Path(orders.folder)
    with (folder / f"rank{orders.rank}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Until the process that had this rank before has ended.
        PROGRAMS[orders.program](orders, folder)
    return 0


def _commit(folder: Path, losses: list[float], state: Callable[[Path], None] | None = None) -> None:
    """Replace the committed state: the weights of this step under their own name, then the file that names them.

    Each is on disk before the next begins, and the weights of the step before go last: whatever ends the machine, the
    file names weights that are whole.
    """
    step = len(losses)
    if state is not None:
        state(folder / f"state{step}.tmp")
        _replace(folder / f"state{step}.tmp", folder / f"state{step}.pt")
    (folder / "history.tmp").write_text(json.dumps({"losses": losses}))
    _replace(folder / "history.tmp", folder / "history.json")
    (folder / f"state{step - 1}.pt").unlink(missing_ok=True)


def _replace(temporary: Path, target: Path) -> None:
    """Give a file its name, contents and name on disk."""
    _sync(temporary)
    temporary.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _report(orders: Orders, losses: list[float]) -> None:
    step = len(losses)
    said = Report(orders.job, orders.token, step, step * BATCH, orders.nodes, losses[-1], time.time())
    send_report(orders.socket, said)


def _count(orders: Orders, folder: Path) -> None:
    """Only count, on the first node: a stand-in for training where there is no PyTorch."""
    losses = committed_steps(folder)
    while orders.rank == 0 and len(losses) < orders.steps:
        time.sleep(0.02 / orders.nodes)
        losses.append(1.0 / (1 + len(losses)))
        _commit(folder, losses)
        _report(orders, losses)


def _train(orders: Orders, folder: Path) -> None:
    """Fit a small network to a fixed function, data-parallel over gloo; every node has an equal part of each batch."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    rendezvous = folder / f"rendezvous{orders.generation}"
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous.resolve()}", rank=orders.rank, world_size=orders.nodes
    )
    losses = committed_steps(folder)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if losses:
        state = torch.load(folder / f"state{len(losses)}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
    for inputs, targets in _batches(torch, len(losses), orders):
        optimiser.zero_grad()
        share = torch.nn.functional.mse_loss(model(inputs), targets, reduction="sum") / BATCH
        share.backward()
        loss = share.detach()
        distributed.all_reduce(loss)
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
        optimiser.step()
        losses.append(float(loss))
        if orders.rank == 0:
            both = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
            _commit(folder, losses, partial(torch.save, both))
            _report(orders, losses)
    distributed.barrier()
    distributed.destroy_process_group()


def _batches(torch: Any, first: int, orders: Orders) -> Iterator[tuple[Any, Any]]:
    """Yield this node's part of each batch from step ``first`` on; a batch depends on its step alone."""
    for step in range(first, orders.steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(BATCH, 8, generator=generator)
        part = slice(orders.rank * BATCH // orders.nodes, (orders.rank + 1) * BATCH // orders.nodes)
        yield inputs[part], inputs[part].prod(dim=1, keepdim=True).tanh() + inputs[part].sum(dim=1, keepdim=True)


PROGRAMS: dict[str, Callable[[Orders, Path], None]] = {"count": _count, "mlp": _train}
"""What a job may run, by name."""

if __name__ == "__main__":
    sys.exit(main())
