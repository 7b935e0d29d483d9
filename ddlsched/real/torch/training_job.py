"""A job of a workload that really trains: a model under DDP whose gradients are as large as the job's messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from ddlsched.real.gate.client import WaitingBuckets
from ddlsched.real.torch import Hook
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

_BATCH = 16
_RATE = 1e-3
_WAIT_S = 1.0
"""A thread that has heard nothing for so long, while buckets are under way, waits for those."""
_GROUP_S = 60.0
_ITEM_BYTES = 4


class TrainingJob(WaitingBuckets):
    """One rank: a stack of square layers, as many as the job has all-reduces, each in a bucket of its own.

    Parameters
    ----------
    dag
        Of an iteration; its messages say how large the model is.
    gpus, iterations
        Of the job on this server.
    say
        Tells the gate something.
    """

    def __init__(
        self, dag: IterationDag, gpus: Sequence[int], iterations: int, say: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(self._tell)
        self._dag, self._gpus, self._iterations, self._tell_gate = dag, list(gpus), iterations, say
        self._moved_s = time.monotonic()
        self._begun = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def computes(self) -> bool:
        """Whether it may say something without being told to."""
        alive = self._thread is not None and self._thread.is_alive()
        return alive and not (self._waiting and time.monotonic() - self._moved_s > _WAIT_S)

    def prepare(self, host: str, port: int, rank: int, size: int) -> None:
        """Build the model and its groups in a thread, which says when all ranks have, and trains once told to."""
        self._thread = threading.Thread(target=self._live, args=(host, port, rank, size), daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin to train."""
        self._begun.set()

    def _live(self, host: str, port: int, rank: int, size: int) -> None:
        try:
            self._build(host, port, rank, size)
            self._say({"say": "grouped"})
            self._begun.wait()
            self._train()
        except Exception as error:
            self._say({"say": "failed", "error": f"{type(error).__name__}: {error}"})

    def _build(self, host: str, port: int, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        wait = timedelta(seconds=_GROUP_S)
        store = dist.TCPStore(host, port, is_master=False, timeout=wait)
        dist.init_process_group("gloo", store=dist.PrefixStore("training", store), rank=rank, world_size=size)
        torch.manual_seed(0)
        self.width, layers = self._shape()
        stack = [torch.nn.Linear(self.width, self.width, bias=False) for _ in range(layers)]
        layer_mb = self.width**2 * _ITEM_BYTES / 2**20
        self._model = DistributedDataParallel(torch.nn.Sequential(*stack), bucket_cap_mb=0.9 * layer_mb)
        hook = Hook(self, dist.new_group(), size)
        self._model.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def _shape(self) -> tuple[int, int]:
        """Return the width and the number of layers."""
        messages = [task.message_bytes for task in self._dag.tasks if isinstance(task, AllReduceTask)]
        mean_bytes = sum(messages) / max(len(messages), 1)
        return max(round((mean_bytes / _ITEM_BYTES) ** 0.5), 2), max(len(messages), 1)

    def _train(self) -> None:
        import torch

        computes = [number for number, task in enumerate(self._dag.tasks) if isinstance(task, ComputeTask)]
        for iteration in range(self._iterations):
            self._model.zero_grad()
            self._model(torch.randn(_BATCH, self.width)).square().mean().backward()
            with torch.no_grad():
                for parameter in self._model.parameters():
                    parameter -= _RATE * parameter.grad
            for task in computes:
                self._say({"say": "computed", "task": task, "gpus": self._gpus, "late_ns": 0})
            self._say({"say": "iterated", "iteration": iteration})

    def _tell(self, message: dict[str, Any]) -> None:
        self._moved_s = time.monotonic()
        self._tell_gate(message)

    def iterated(self, iteration: int) -> None:
        """Say nothing: the loop does, once the gradients are there."""

    def leave(self) -> None:
        """Leave the groups; all ranks have ended their last iteration."""
        import torch.distributed as dist

        if self._thread is not None:
            self._thread.join(_GROUP_S)
        del self._model
        dist.destroy_process_group()
