"""A job as policies see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, overload

import numpy as np

from ddlsched.policies.view_parts import Columns, GpuId, StoredField, View, plus, put, stored, times
from ddlsched.units import s_from_ns
from ddlsched.workload.dag import IterationDag
from ddlsched.workload.job import Job


class JobView(View):
    """A job, and how far it has come.

    This is where what policies see of a job is declared: a field that a record holds in one line (:func:`stored`), what
    is made of such as a property. Compiled code has both from here.
    """

    __slots__ = ("_columns", "_gpus", "_job", "_place", "_servers", "number")
    _stored: ClassVar[dict[str, StoredField]]
    _what = "a job"

    _job: Job
    _columns: Columns
    _place: int
    _gpus: tuple[GpuId, ...]
    _servers: tuple[int, ...]
    number: int
    """Row in the workload file, from 0; every tie is broken by it."""

    model: str | None = stored("The model it trains, if the workload says.", "model")
    user: str | None = stored("Who submitted it, if the workload says.", "user")
    time_limit_s: float | None = stored(
        "How long its user said that it runs at most, seconds, if the workload says.", "time_limit_s"
    )
    queue: str | None = stored("The tenant's queue it was submitted to, if the workload says.", "queue")
    priority: int = stored("Higher goes first, 0 if the workload does not say.", "priority")
    required_levels: str | None = stored("Levels that it waits for, if the workload says.", "required_levels")
    preferred_levels: str | None = stored("Levels that it likes, if the workload says.", "preferred_levels")
    balanced_level: str | None = stored("The level over whose units it is spread evenly, if any.", "balanced_level")
    num_gpus: int = stored(
        "Workers, one a GPU; of an elastic job as many as it has or had last, before its first start its most.",
        "num_gpus",
    )
    gpu_memory_mb: float = stored("Memory taken on each of its GPUs, MB.", "gpu_memory_mb")
    memory_bytes: int = stored("Memory taken on each of its GPUs, bytes.", "gpu_memory_bytes")
    arrival_s: float = stored("Time of submission, seconds.", "arrival_s")
    arrival_ns: int = stored("Time of submission, nanoseconds.", "arrival_ns")
    compute_ns: int = stored(
        "Compute time of one iteration on a worker, of those that compute for the longest, nanoseconds.", "compute_ns"
    )
    message_bytes: float = stored(
        "Bytes of all collectives of one iteration, those of a group counted for each of its tuples.",
        "dag.message_bytes",
    )
    communication_ns: int = stored(
        "Time of an iteration's all-reduces without contention; 0 while queued and on one server."
    )
    _iterations: int = stored("Iterations in all.", "iterations", record="iterations")
    _left: int = stored("Iterations not ended yet.", "iterations", record="iterations_left", changes=True)
    _service_ns: int = stored("Compute time x iterations x GPUs, nanoseconds.", "service_ns", record="service_ns")
    _remaining_ns: int = stored("What is left of it.", "service_ns", record="remaining_service_ns", changes=True)
    _cut_ns: int = stored("What stops undid of it, nanoseconds.", record="cut_service_ns")
    _misjudged: int = stored("By how many iterations it is taken for longer than it is.", record="misjudged_iterations")

    def __init__(self, job: Job, number: int, columns: Columns, place: int) -> None:
        put(self, "_job", job)
        put(self, "number", number)
        put(self, "_columns", columns)
        put(self, "_place", place)
        put(self, "_gpus", ())
        put(self, "_servers", ())

    def __repr__(self) -> str:
        return f"<job {self._job.job_id} of {self.num_gpus} GPUs>"

    def _placed(self, gpus: tuple[GpuId, ...], servers: tuple[int, ...]) -> None:
        put(self, "_gpus", gpus)
        put(self, "_servers", servers)

    # --- what only Python has, and what compiled code finds in its own way

    @property
    def job_id(self) -> str:
        """Its name in the workload file."""
        return self._job.job_id

    @property
    def dag(self) -> IterationDag:
        """The tasks of its iteration."""
        return self._job.dag

    @property
    def start_s(self) -> float | None:
        """Time of placement, seconds; None while it is queued."""
        return s_from_ns(int(self._columns.start_ns.item(self._place))) if self._servers else None

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        """GPUs it runs on, in placement order; empty while it is queued. Those of a job that has ended stay."""
        return self._gpus

    @property
    def servers(self) -> tuple[int, ...]:
        """Servers it runs on, in placement order; empty while it is queued. Those of a job that has ended stay."""
        return self._servers

    # --- what is made of fields, in Python and in compiled code by the same lines

    @property
    def _misjudged_left(self) -> int:
        """By how many iterations more it is taken to have left; one that has not ended has one at least."""
        misjudged, left = self._misjudged, self._left
        return max(misjudged, 1 - left) if misjudged != 0 and left != 0 else 0

    @property
    def iterations(self) -> int:
        """Iterations in all, as far as policies know."""
        return self._iterations + self._misjudged

    @property
    def iterations_left(self) -> int:
        """Iterations not ended yet, as far as policies know."""
        return self._left + self._misjudged_left

    @property
    def service_ns(self) -> int:
        """Compute time x iterations x GPUs of the whole job, nanoseconds."""
        misjudged = self._misjudged
        return self._service_ns + (misjudged * (self._service_ns // self._iterations) if misjudged != 0 else 0)

    @property
    def remaining_service_ns(self) -> int:
        """What is left of the service; falls by a task's time as each worker ends it, nanoseconds."""
        misjudged = self._misjudged_left
        return self._remaining_ns + (misjudged * (self._service_ns // self._iterations) if misjudged != 0 else 0)

    @property
    def attained_service_ns(self) -> int:
        """What has been done of the service, nanoseconds."""
        return self._service_ns - self._remaining_ns

    @property
    def used_service_ns(self) -> int:
        """:attr:`attained_service_ns`, and what stops undid: it never falls, nanoseconds."""
        return self.attained_service_ns + self._cut_ns

    @property
    def remaining_service_per_gpu_ns(self) -> tuple[int, float]:
        """Remaining service / GPUs: whole nanoseconds, and the rest as a fraction of one; as exact as a fraction."""
        num_gpus, remaining_ns = self.num_gpus, self.remaining_service_ns
        return remaining_ns // num_gpus, (remaining_ns % num_gpus) / (num_gpus * 1.0)

    @property
    def remaining_time_ns(self) -> tuple[int, float]:
        """:attr:`remaining_service_per_gpu_ns` plus the remaining all-reduces without contention."""
        whole_ns, rest = self.remaining_service_per_gpu_ns
        return plus(whole_ns, times(self.iterations_left, self.communication_ns)), rest

    @property
    def remaining_communication_ns(self) -> int:
        """Iterations left x :attr:`communication_ns` x GPUs, nanoseconds."""
        return times(times(self.iterations_left, self.communication_ns), self.num_gpus)


class JobsTogether:
    """Reads a number of some jobs of a run at once, an array in their order; at least one job."""

    def __init__(self, jobs: Iterable[JobView]) -> None:
        self._views = list(jobs)
        self._columns = self._views[0]._columns
        self._places = np.array([view._place for view in self._views], np.int64)

    def column(self, name: str) -> np.ndarray:
        """Return a field of each job's record; ``iterations_left`` is what it has left, whatever policies know."""
        numbers: np.ndarray = getattr(self._columns, name)[self._places]
        return numbers

    @property
    def remaining_service_ns(self) -> np.ndarray:
        """As :attr:`JobView.remaining_service_ns`."""
        if self.column("misjudged_iterations").any():
            return np.array([view.remaining_service_ns for view in self._views], np.int64)
        return self.column("remaining_service_ns")


class JobQueue(Sequence[JobView]):
    """Views of the jobs that wait, in the queue's order; only those that are looked at are made.

    Parameters
    ----------
    numbers
        The jobs' numbers, in the queue's order.
    views
        The view of each job, by number.
    """

    def __init__(self, numbers: np.ndarray, views: Sequence[JobView] | Mapping[int, JobView]) -> None:
        self.numbers = numbers
        """The jobs' numbers, in the queue's order, for policies that reckon with arrays."""
        self._views = views

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> JobView: ...
    @overload
    def __getitem__(self, place: slice) -> JobQueue: ...
    def __getitem__(self, place: int | slice) -> JobView | JobQueue:
        if isinstance(place, slice):
            return JobQueue(self.numbers[place], self._views)
        number: int = self.numbers.item(place)
        return self._views[number]

    def __iter__(self) -> Iterator[JobView]:
        for number in self.numbers.tolist():
            yield self._views[number]
