"""What a run's records take, from counts alone, so that a run that is too large ends before it takes the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ddlsched.engine.records.layout import Records, make_records
from ddlsched.errors import InputError
from ddlsched.workload.job import Workload

__all__ = ["free_memory_bytes", "needed_bytes", "refuse_too_large"]

_MEMORY = Path("/proc/meminfo")
_OF_A_FLAG = 25
"""Bytes that a task takes of each worker of a job whose workers do the same: in a list, in an array, and a flag."""
_OF_A_PART = 3
"""How many tasks' memory a part of a job of groups takes: its followers are noted, and arrays that grow are twice."""
_SLACK_BYTES = 1 << 28
"""What runs take besides; smaller ones are not looked at."""


def free_memory_bytes() -> int | None:
    """Return how much memory programs can still get, None where the system does not tell as Linux does."""
    if not _MEMORY.exists():
        return None
    lines = _MEMORY.read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kilobytes) * 1024


def needed_bytes(jobs: Records) -> np.ndarray:
    """Return what each job's workers, tasks and transfers take, if each is simulated by itself."""
    kinds = ("worker", "task", "transfer")
    worker, task, transfer = (make_records(kind, 0).dtype.itemsize for kind in kinds)
    tasks = np.where(jobs.grouped == 1, _OF_A_PART * (jobs.num_transfers + jobs.group_steps), jobs.num_tasks)
    flags = np.where(jobs.grouped == 1, 0, jobs.num_gpus * jobs.num_tasks)
    found: np.ndarray = jobs.num_gpus * worker + tasks * task + jobs.num_transfers * transfer + flags * _OF_A_FLAG
    return found


def refuse_too_large(workload: Workload, jobs: Records) -> None:
    """Raise InputError if the records of all jobs take more memory than is free; it names the largest job."""
    needed = needed_bytes(jobs)
    total, free = int(needed.sum()), free_memory_bytes()
    if free is None or total < _SLACK_BYTES or total <= free:
        return
    largest = int(needed.argmax())
    raise InputError(
        f"{workload.where(largest)}: the run's records take {total / 1e9:.1f} GB, {needed[largest] / 1e9:.1f} GB of "
        f"them for job {workload[largest].job_id!r} with {jobs.num_gpus[largest]:,} GPUs, and {free / 1e9:.1f} GB are "
        "free; expected fewer jobs, GPUs or tasks, or more memory"
    )
