"""Jobs and workloads, in memory; :mod:`ddlsched.workload.workload_files` reads and writes them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ddlsched.deferred import np, pd
from ddlsched.errors import InputError, UnknownNameError, did_you_mean, says_unknown_arguments
from ddlsched.units import MAX_MESSAGE_BYTES, MAX_NS, NS_PER_S, bytes_from_mb, is_whole, ns_from_s
from ddlsched.workload.dag import ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.groups import demands_of, slices_of, workers_of


@says_unknown_arguments
@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: the same iteration, many times, on a fixed number of GPUs.

    Parameters
    ----------
    job_id
        Unique within a workload.
    arrival_s
        Time of submission, seconds from the start of the simulation.
    num_gpus
        Workers, one a GPU, all or nothing until the job ends.
    iterations
        How often the iteration runs, at least 1.
    iteration
        The work of one iteration; :class:`DataParallelIteration` for the usual forward, backward,
        all-reduce, or any :class:`IterationDag`.
    gpu_memory_mb
        Memory taken on each of its GPUs, MB (1e6 B).
    model, user
        Labels for tables and charts.
    queue
        The tenant's queue it is submitted to (:mod:`ddlsched.cluster.tenants`).
    priority
        Higher goes first and may preempt, where an admission policy goes by it.
    required_levels
        Levels of the topology that it waits for, between spaces: ``pod`` for all of its workers in one pod,
        ``tensor:tray`` for each tuple of the group ``tensor`` in one tray, ``8:server`` for each 8 workers in their
        order on one server. A placement that gives it others is refused.
    preferred_levels
        The same, without waiting, for placements that go by it (``levels``).
    balanced_level
        The level of whose units those that it has shall have as equal numbers of its workers as can be.
    time_limit_s
        How long its user said that it runs at most, seconds; placements that backfill plan with it. A job that takes
        longer is not stopped.

    Raises
    ------
    InputError
        A value out of range, or more service than a 64-bit count of nanoseconds holds.
    """

    job_id: str
    arrival_s: float
    num_gpus: int
    iterations: int
    iteration: DataParallelIteration | IterationDag
    gpu_memory_mb: float
    model: str | None = None
    user: str | None = None
    time_limit_s: float | None = None
    queue: str | None = None
    priority: int = 0
    required_levels: str | None = None
    preferred_levels: str | None = None
    balanced_level: str | None = None

    def __post_init__(self) -> None:
        self._check_texts()
        _check(self, "arrival_s", self.arrival_s, 0 <= self.arrival_s < _CLOCK_S, _ON_CLOCK)
        priority = self.priority
        _check(self, "priority", priority, is_whole(priority, -MAX_PRIORITY, MAX_PRIORITY), _PRIORITY)
        for name in ("num_gpus", "iterations"):
            count = getattr(self, name)
            _check(self, name, count, is_whole(count, 1), "a whole number from 1")
            object.__setattr__(self, name, int(count))  # One of numpy's would overflow in the products below.
        memory = self.gpu_memory_mb
        _check(self, "gpu_memory_mb", memory, 0 <= memory <= MAX_NS / 1e6, "a finite number of MB from 0")
        if (time_limit_s := self.time_limit_s) is not None:
            good = 0 < time_limit_s < _CLOCK_S
            _check(self, "time_limit_s", time_limit_s, good, f"seconds above 0, below {_CLOCK_S:.6g}")
        if isinstance(self.iteration, DataParallelIteration):
            self._check_iteration(self.iteration)
        else:
            self._check_groups(self.iteration)
        for name in ("required_levels", "preferred_levels"):
            if text := getattr(self, name):
                self._check_levels(name, text)
        if self.service_ns > MAX_NS:
            raise InputError(
                f"job {self.job_id!r}: compute time x iterations x GPUs is {self.service_ns / NS_PER_S:.4g} s; "
                f"expected at most {_CLOCK_S:.4g} s of service in all; give it as several jobs"
            )

    def _check_texts(self) -> None:
        for name in ("job_id", *TEXTS):
            value = getattr(self, name)
            if value is None and name != "job_id":
                continue
            good = isinstance(value, str) and value == value.strip() != "" and not _CONTROL.search(value)
            if not good:
                expected = "a text, not empty, without control characters or space around it"
                raise InputError(f"job {self.job_id!r}: {name} is {value!r}; expected {expected}")

    def _check_levels(self, name: str, text: str) -> None:
        try:
            for demand in demands_of(text):
                slices_of(demand.part, self.dag.groups, self.num_gpus)
        except InputError as error:
            raise InputError(f"job {self.job_id!r}: {name} {error}") from None

    def _check_iteration(self, iteration: DataParallelIteration) -> None:
        for name in ("forward_s", "backward_s"):
            value = getattr(iteration, name)
            _check(self, name, value, 0 <= value < _CLOCK_S, _ON_CLOCK)
        message = iteration.message_bytes
        good = 0 <= message <= MAX_MESSAGE_BYTES
        _check(self, "message_bytes", message, good, _BYTES)
        buckets = iteration.buckets
        _check(self, "buckets", buckets, is_whole(buckets, 1, 10_000), "a whole number from 1 to 10000")

    def _check_groups(self, iteration: IterationDag) -> None:
        for name, group in iteration.groups.items():
            for worker in workers_of([group]):
                if worker >= self.num_gpus:
                    raise InputError(
                        f"job {self.job_id!r}, field groups: group {name!r} has worker {worker}; "
                        f"expected workers of the job's {self.num_gpus} GPUs, from 0 to {self.num_gpus - 1}"
                    )

    @cached_property
    def dag(self) -> IterationDag:
        """The graph of one iteration's tasks."""
        return self.iteration.dag() if isinstance(self.iteration, DataParallelIteration) else self.iteration

    @property
    def arrival_ns(self) -> int:
        """Time of submission, nanoseconds."""
        return ns_from_s(self.arrival_s)

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory taken on each GPU, bytes."""
        return bytes_from_mb(self.gpu_memory_mb)

    @property
    def compute_ns(self) -> int:
        """Compute time of one iteration on a worker, of those that compute for the longest, nanoseconds."""
        if isinstance(self.iteration, DataParallelIteration):
            return ns_from_s(self.iteration.forward_s) + ns_from_s(self.iteration.backward_s)
        return self.iteration.compute_ns

    @property
    def service_ns(self) -> int:
        """Total compute of the job: compute time, added up over its GPUs, x iterations, nanoseconds."""
        if isinstance(self.iteration, DataParallelIteration):
            return self.compute_ns * self.iterations * self.num_gpus
        return self.iteration.all_compute_ns(self.num_gpus) * self.iterations


TEXTS = ("model", "user", "queue", "required_levels", "preferred_levels", "balanced_level")
"""The fields of a job that are a text, or left out."""
REQUIRED = ("job_id", "arrival_s", "gpus", "iterations", "forward_s", "backward_s", "message_bytes", "gpu_memory_mb")
_SHOWN_JOBS = 5
MAX_PRIORITY = 2**31 - 1
_PRIORITY = f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
_CLOCK_S = MAX_NS / NS_PER_S
_ON_CLOCK = f"seconds from 0 to below {_CLOCK_S:.6g}"  # texts once: a stream checks hundreds of jobs
_BYTES = f"a number of bytes from 0 to {MAX_MESSAGE_BYTES:g}"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that break lines, tables or encodings."""


def _check(job: Job, name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise InputError(f"job {job.job_id!r}: {name} is {value}; expected {expected}")


def _job_of_row(row: Mapping[str, Any]) -> Job:
    limits = {name: row[name] for name in (*TEXTS, "time_limit_s") if name in row}
    iteration = DataParallelIteration(
        forward_s=row["forward_s"],
        backward_s=row["backward_s"],
        message_bytes=row["message_bytes"],
        buckets=row.get("buckets", 1),
    )
    return Job(
        job_id=str(row["job_id"]),
        arrival_s=row["arrival_s"],
        num_gpus=row["gpus"],
        iterations=row["iterations"],
        iteration=iteration,
        gpu_memory_mb=row["gpu_memory_mb"],
        priority=int(row.get("priority", 0)),
        **limits,
    )


def _ends_an_iteration(job: Job) -> int:
    transfers = 1 if job.num_gpus > 1 else 0  # one worker has nobody to reduce with
    return sum(job.num_gpus if isinstance(task, ComputeTask) else transfers for task in job.dag.tasks)


@dataclass(frozen=True, repr=False)
class Workload:
    """Jobs in the order of their file; a job's number is its place here.

    Parameters
    ----------
    jobs
        At least one, with unique ``job_id``.
    source
        The file they were read from, for error messages.
    """

    jobs: tuple[Job, ...]
    source: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InputError(f"{self.source or 'workload'}: holds no jobs; expected at least one")
        seen: dict[str, int] = {}
        for number, job in enumerate(self.jobs):
            if not isinstance(job, Job):
                raise InputError(f"{self.where(number)}: is {job!r}; expected a Job")
            if job.job_id in seen:
                raise InputError(
                    f"{self.where(number)}: job_id {job.job_id!r} is already that of row {seen[job.job_id] + 1}; "
                    "expected a unique id"
                )
            seen[job.job_id] = number

    def __repr__(self) -> str:
        gpus = [job.num_gpus for job in self.jobs]
        arrivals_s = [job.arrival_s for job in self.jobs]
        sizes = f"{min(gpus)}" if min(gpus) == max(gpus) else f"{min(gpus)} to {max(gpus)}"
        count = "1 job" if len(self) == 1 else f"{len(self):,} jobs"
        source = "" if self.source is None else f", from {self.source}"
        return f"<workload: {count} of {sizes} GPUs, arriving {min(arrivals_s):g} to {max(arrivals_s):g} s{source}>"

    def _repr_html_(self) -> str:
        names = ["job_id", "arrival_s", "num_gpus", "iterations", "gpu_memory_mb", "model", "user"]
        shown = [[getattr(job, name) for name in names] for job in self.jobs[:_SHOWN_JOBS]]
        table = pd.DataFrame(shown, columns=names, dtype=object).to_html(index=False, border=0)
        more = f"<p>and {len(self) - _SHOWN_JOBS:,} more</p>" if len(self) > _SHOWN_JOBS else ""
        return f"<p><b>{html.escape(repr(self)[1:-1])}</b></p>{table}{more}"

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __getitem__(self, number: int) -> Job:
        return self.jobs[number]

    def where(self, number: int) -> str:
        """Return where job ``number`` stands: its file, if it came from one, and its row (the first job is row 1)."""
        return f"{self.source or 'workload'}, row {number + 1}"

    @property
    def task_ends(self) -> int:
        """How often a task or a transfer ends until all jobs are done, each on several servers.

        On one server an all-reduce takes no time and does not count. Elastic jobs count as on their most GPUs.
        """
        return sum(job.iterations * _ends_an_iteration(job) for job in self.jobs)

    def number_of(self, job_id: str) -> int:
        """Return a job's number, from 0.

        Raises
        ------
        UnknownNameError
            No job has this id.
        """
        for number, job in enumerate(self.jobs):
            if job.job_id == job_id:
                return number
        raise UnknownNameError(f"no job is named {job_id!r}.{did_you_mean(job_id, (job.job_id for job in self.jobs))}")

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Workload:
        """Build from a table in the columns of a workload file, a row a job (docs/workloads.md).

        Parameters
        ----------
        frame
            Columns ``job_id``, ``arrival_s`` (s), ``gpus``, ``iterations``, ``forward_s`` (s), ``backward_s`` (s),
            ``message_bytes``, ``gpu_memory_mb`` (MB), and optionally ``model``, ``user``, ``buckets``,
            ``time_limit_s`` (s), ``queue``, ``priority``, ``required_levels``, ``preferred_levels``,
            ``balanced_level``. Further columns are not read.

        Raises
        ------
        InputError
            A column is missing, or a row holds what no job can have.
        """
        missing = [name for name in REQUIRED if name not in frame]
        if missing:
            raise InputError(f"table: has no column {', '.join(missing)}; expected {', '.join(REQUIRED)}")
        jobs = []
        for number, row in enumerate(frame.to_dict("records")):
            known = {str(name): value for name, value in row.items() if value is not None and value == value}
            try:
                jobs.append(_job_of_row(known))
            except (InputError, KeyError, TypeError, ValueError) as error:
                why = f"{error.args[0]} is empty" if isinstance(error, KeyError) else str(error)
                raise InputError(f"table, row {number + 1}: {why}") from None
        return cls(tuple(jobs))

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Workload:
        """Build from any sequence of jobs.

        Examples
        --------
        >>> from ddlsched import DataParallelIteration, Job, Workload
        >>> step = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=125e6)
        >>> jobs = [
        ...     Job(job_id=name, arrival_s=arrival_s, num_gpus=2, iterations=10, iteration=step, gpu_memory_mb=4096)
        ...     for name, arrival_s in (("first", 0), ("second", 1.5))
        ... ]
        >>> Workload.of(jobs)
        <workload: 2 jobs of 2 GPUs, arriving 0 to 1.5 s>
        """
        return cls(tuple(jobs))


def steady_part(workload: Workload) -> np.ndarray:
    """Return whether each job counts, in the order of the workload; at least one does.

    The first fifth of the jobs fills the cluster, and the last tenth keeps it full while those before it end. Fewer
    than 10 jobs have no last tenth. Jobs that arrive at once are told apart by their place in the workload.
    """
    order = np.argsort([job.arrival_ns for job in workload], kind="stable")
    counted = np.zeros(len(order), bool)
    counted[order[len(order) // 5 : len(order) - len(order) // 10]] = True
    return counted
