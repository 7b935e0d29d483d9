"""Starts the ranks of a training run as processes of this machine."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.dataset_files import Samples
from ddlsched.errors import DdlschedError


class TrainingError(DdlschedError, RuntimeError):
    """A rank failed; the message is its own."""


def train(
    source: Path, samples: Samples, steps: int, *, destination: Path | None = None, **fixed: float
) -> list[float]:
    """Train from a checkpoint on, with as many processes as it has ranks; returns the loss of each step.

    Parameters
    ----------
    source
        A checkpoint of a :class:`~ddlsched.checkpoints.tensor_models.StoredTransformer` with Adam's state.
    samples
        The data set.
    steps
        Optimiser steps.
    destination
        Where to write the next checkpoint, under the same parallelism; None: nowhere.
    fixed
        Fields of ``trainer.Hyperparameters`` that differ from the defaults.

    Raises
    ------
    TrainingError
        A rank failed.
    """
    from trainer import Hyperparameters, run

    task = {"source": source, "destination": destination, "samples": samples, "steps": steps}
    ranks = Checkpoint.read(source).collection.num_ranks
    losses: list[float] = on_ranks(ranks, run, {**task, "fixed": Hyperparameters(**fixed)})[0]
    return losses


@cache
def _context() -> Any:
    """Return what starts processes: each a copy of one that has imported what takes seconds and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    # An optimiser's first step imports torch._dynamo. The server does not find this folder's own modules.
    slow = ["torch", "torch._dynamo", "safetensors.torch", "pydantic", "ddlsched.checkpoints.dataset_views"]
    context.set_forkserver_preload(slow)
    return context


def on_ranks(ranks: int, work: Callable[[int, Any], Any], task: Any) -> list[Any]:
    """Return ``work(rank, task)`` of each rank, run in processes that reach each other through gloo.

    Raises
    ------
    TrainingError
        A rank failed: the first one's message.
    """
    with tempfile.TemporaryDirectory() as folder:
        answers = [_context().Pipe(duplex=False) for _ in range(ranks)]
        arguments = [(rank, ranks, folder, work, task, answers[rank][1]) for rank in range(ranks)]
        processes = [_context().Process(target=_process, args=each) for each in arguments]
        for process, (_, sending) in zip(processes, answers, strict=True):
            process.start()
            sending.close()
        try:
            return _answers([receiving for receiving, _ in answers])
        finally:
            for process in processes:
                process.kill()
                process.join()


def _answers(receiving: list[Connection]) -> list[Any]:
    """Return all ranks' answers; the first failure to come is raised, not those that it causes elsewhere."""
    answers: dict[int, Any] = {}
    while len(answers) < len(receiving):
        for ready in wait([end for rank, end in enumerate(receiving) if rank not in answers]):
            rank = receiving.index(ready)  # type: ignore[arg-type]
            try:
                answers[rank], failure = receiving[rank].recv()
            except EOFError:
                failure = "ended without an answer"
            if failure:
                raise TrainingError(f"rank {rank}: {failure}")
    return [answers[rank] for rank in range(len(receiving))]


def _process(
    rank: int, ranks: int, folder: str, work: Callable[[int, Any], Any], task: Any, sending: Connection
) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    try:
        sending.send((work(rank, task), ""))
    except Exception as error:  # to be raised where the run was started
        sending.send((None, f"{type(error).__name__}: {error}"))
    sending.close()
