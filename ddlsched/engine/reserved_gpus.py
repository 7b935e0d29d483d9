"""GPUs that are kept for a job that is not on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ddlsched.engine.loop.room import reserve_bytes
from ddlsched.engine.run_state import RunState
from ddlsched.workload.elastic_job import ElasticJob

__all__ = ["ReservedGpus"]


class ReservedGpus:
    """Keeps memory of GPUs for jobs; of a GPU that is for one job alone, or where jobs are elastic, the whole."""

    def __init__(self, state: RunState) -> None:
        self._state, self._taken = state, defaultdict[int, list[tuple[int, int]]](list)
        self._alone = state.cluster.exclusive or any(isinstance(job, ElasticJob) for job in state.workload)

    def take(self, number: int, gpus: Iterable[int]) -> None:
        """Keep GPUs for a job."""
        state, known = self._state, {gpu for gpu, _ in self._taken[number]}
        for gpu in gpus:
            if gpu not in known:
                free_bytes = state.gpus.free_bytes.item(gpu) + 1
                taken_bytes = free_bytes if self._alone else state.jobs.memory_bytes.item(number)
                reserve_bytes(state.arrays, gpu, taken_bytes)
                self._taken[number].append((gpu, taken_bytes))

    def release(self, number: int) -> None:
        """Give back what is kept for a job."""
        for gpu, taken_bytes in self._taken.pop(number, ()):
            reserve_bytes(self._state.arrays, gpu, -taken_bytes)
