"""A job as policies see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from ddlsched.policies.view_parts import Columns, GpuId, refuse_attribute
from ddlsched.units import s_from_ns
from ddlsched.workload.dag import IterationDag
from ddlsched.workload.job import Job

__all__ = ["JobView", "JobsTogether"]


class JobView:
    """A job, and how far it has come."""

    __slots__ = ("_columns", "_gpus", "_job", "_place", "_servers", "number")

    def __init__(self, job: Job, number: int, columns: Columns, place: int) -> None:
        self._job = job
        self._columns = columns
        self._place = place
        self._gpus: tuple[GpuId, ...] = ()
        self._servers: tuple[int, ...] = ()
        self.number = number
        """Row in the workload file, from 0; every tie is broken by it."""

    def __repr__(self) -> str:
        return f"<job {self._job.job_id} of {self.num_gpus} GPUs>"

    def __getattr__(self, name: str) -> NoReturn:
        refuse_attribute("a job", self, name)

    @property
    def job_id(self) -> str:
        """Its name in the workload file."""
        return self._job.job_id

    @property
    def model(self) -> str | None:
        """The model it trains, if the workload says."""
        return self._job.model

    @property
    def user(self) -> str | None:
        """Who submitted it, if the workload says."""
        return self._job.user

    @property
    def time_limit_s(self) -> float | None:
        """How long its user said that it runs at most, seconds, if the workload says."""
        return self._job.time_limit_s

    @property
    def num_gpus(self) -> int:
        """Workers, one a GPU; of an elastic job as many as it has or had last, before its first start its most."""
        return int(self._columns.num_gpus.item(self._place))

    @property
    def gpu_memory_mb(self) -> float:
        """Memory taken on each of its GPUs, MB."""
        return float(self._job.gpu_memory_mb)

    @property
    def memory_bytes(self) -> int:
        """Memory taken on each of its GPUs, bytes."""
        return int(self._columns.memory_bytes.item(self._place))

    @property
    def _misjudged(self) -> int:
        """By how many iterations it is taken for longer than it is."""
        return int(self._columns.misjudged_iterations.item(self._place))

    @property
    def _misjudged_left(self) -> int:
        """By how many iterations more it is taken to have left; one that has not ended has one at least."""
        misjudged, left = self._misjudged, int(self._columns.iterations_left.item(self._place))
        return max(misjudged, 1 - left) if misjudged and left else 0

    def _service_of(self, iterations: int) -> int:
        """Return the compute time x GPUs of iterations, nanoseconds."""
        return iterations * (self._job.service_ns // self._job.iterations) if iterations else 0

    @property
    def iterations(self) -> int:
        """Iterations in all, as far as policies know."""
        return self._job.iterations + self._misjudged

    @property
    def iterations_left(self) -> int:
        """Iterations not ended yet, as far as policies know."""
        return int(self._columns.iterations_left.item(self._place)) + self._misjudged_left

    @property
    def arrival_s(self) -> float:
        """Time of submission, seconds."""
        return float(self._job.arrival_s)

    @property
    def arrival_ns(self) -> int:
        """Time of submission, nanoseconds."""
        return int(self._columns.arrival_ns.item(self._place))

    @property
    def start_s(self) -> float | None:
        """Time of placement, seconds; None while it is queued."""
        return s_from_ns(int(self._columns.start_ns.item(self._place))) if self._servers else None

    def _placed(self, gpus: tuple[GpuId, ...], servers: tuple[int, ...]) -> None:
        self._gpus, self._servers = gpus, servers

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        """GPUs it runs on, in placement order; empty while it is queued. Those of a job that has ended stay."""
        return self._gpus

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers it runs on, in placement order; empty while it is queued. Those of a job that has ended stay."""
        return self._servers

    @property
    def dag(self) -> IterationDag:
        """The tasks of its iteration."""
        return self._job.dag

    @property
    def compute_ns(self) -> int:
        """Compute time of one iteration on a worker, of those that compute for the longest, nanoseconds."""
        return int(self._columns.compute_ns.item(self._place))

    @property
    def message_bytes(self) -> float:
        """Bytes of all collectives of one iteration, those of a group counted for each of its tuples."""
        return float(self._job.dag.message_bytes)

    @property
    def service_ns(self) -> int:
        """Compute time x iterations x GPUs of the whole job, nanoseconds."""
        return int(self._columns.service_ns.item(self._place)) + self._service_of(self._misjudged)

    @property
    def remaining_service_ns(self) -> int:
        """What is left of the service; falls by a task's time as each worker ends it, nanoseconds."""
        return int(self._columns.remaining_service_ns.item(self._place)) + self._service_of(self._misjudged_left)

    @property
    def attained_service_ns(self) -> int:
        """What has been done of the service, nanoseconds."""
        return int(self._columns.service_ns.item(self._place) - self._columns.remaining_service_ns.item(self._place))

    @property
    def remaining_service_per_gpu_ns(self) -> tuple[int, float]:
        """Remaining service / GPUs: whole nanoseconds, and the rest as a fraction of one; as exact as a fraction."""
        num_gpus = self.num_gpus
        whole_ns, rest = divmod(self.remaining_service_ns, num_gpus)
        return whole_ns, rest / num_gpus

    @property
    def remaining_time_ns(self) -> tuple[int, float]:
        """:attr:`remaining_service_per_gpu_ns` plus the remaining all-reduces without contention."""
        whole_ns, rest = self.remaining_service_per_gpu_ns
        return whole_ns + self.iterations_left * self.communication_ns, rest

    @property
    def communication_ns(self) -> int:
        """Time of an iteration's all-reduces without contention; 0 while queued and on one server."""
        return int(self._columns.communication_ns.item(self._place))

    @property
    def remaining_communication_ns(self) -> int:
        """Iterations left x :attr:`communication_ns` x GPUs, nanoseconds."""
        return self.iterations_left * self.communication_ns * self.num_gpus


class JobsTogether:
    """Reads a number of some jobs of a run at once, an array in their order; at least one job."""

    def __init__(self, jobs: Iterable[JobView]) -> None:
        self._views = list(jobs)
        self._columns = self._views[0]._columns
        self._places = np.array([view._place for view in self._views], np.int64)

    def _all(self, name: str) -> np.ndarray:
        numbers: np.ndarray = getattr(self._columns, name)[self._places]
        return numbers

    @property
    def iterations_left(self) -> np.ndarray:
        """What each has left, whatever policies know of it; 0 once it has ended."""
        return self._all("iterations_left")

    @property
    def num_gpus(self) -> np.ndarray:
        """As :attr:`JobView.num_gpus`."""
        return self._all("num_gpus")

    @property
    def memory_bytes(self) -> np.ndarray:
        """As :attr:`JobView.memory_bytes`."""
        return self._all("memory_bytes")

    @property
    def arrival_ns(self) -> np.ndarray:
        """As :attr:`JobView.arrival_ns`."""
        return self._all("arrival_ns")

    @property
    def message_bytes(self) -> np.ndarray:
        """As :attr:`JobView.message_bytes`."""
        return self._all("message_bytes")

    @property
    def remaining_service_ns(self) -> np.ndarray:
        """As :attr:`JobView.remaining_service_ns`."""
        if self._all("misjudged_iterations").any():
            return np.array([view.remaining_service_ns for view in self._views], np.int64)
        return self._all("remaining_service_ns")
