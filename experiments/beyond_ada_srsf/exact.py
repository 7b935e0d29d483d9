"""The least possible sum of job completion times of a small instance, by constraint programming (CP-SAT)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.network.contention import Linear
from ddlsched.results.result import Result
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar


@dataclass(frozen=True)
class Optimum:
    """What the solver found.

    Attributes
    ----------
    average_jct_s
        Of the best schedule found, seconds.
    lower_bound_s
        No schedule of the model has a smaller average, seconds; equal to the above if proven.
    proven
        Whether the best is the optimum.
    """

    average_jct_s: float
    lower_bound_s: float
    proven: bool


@dataclass(frozen=True)
class _Times:
    """A job in units of time."""

    arrival: int
    forward: int
    backward: int
    transfer: int
    iterations: int
    num_gpus: int


def optimum(
    workload: Workload,
    cluster: Cluster,
    *,
    contention: Linear,
    unit_s: float,
    time_limit_s: float = 60.0,
    replay: Result | None = None,
) -> Optimum:
    """Return the least average JCT over all placements, orders of tasks, and transfers cut at whole units.

    The model is the engine's: tasks are never interrupted, one at a time on a GPU; workers of a job need not run
    together; the all-reduce waits for all of them, occupies every server of the job, and takes no time on one
    server. No two transfers meet on a server; a transfer may pause at each unit of time. So the optimum is a
    bound for every policy that never overlaps transfers and changes them at whole units, which each one does on
    an instance in whole units; and with at most two servers for every policy: all transfers then share
    one resource, whose total rate overlapping only lowers, so the order in which overlapping transfers end can be
    had without overlap, none ending later. With three servers and more, overlapping may beat it.

    Parameters
    ----------
    workload, cluster
        Few jobs of few iterations; no buckets, servers alike, memory for all jobs on every GPU.
    contention
        A linear model without latency.
    unit_s
        Every arrival, task and transfer alone is a whole number of these, seconds.
    time_limit_s
        Of the solver, one thread.
    replay
        A run of the same instance without overlap, recorded as a timeline: fix all decisions to its own, which
        gives its own average JCT if the model and the engine agree.

    Raises
    ------
    InputError
        An instance outside the model, or no schedule found in time.

    References
    ----------
    Perron, Didier, "The CP-SAT-LP solver", CP 2023.
    """
    from ortools.sat.python import cp_model

    jobs = _in_units(workload, cluster, contention, unit_s)
    model = cp_model.CpModel()
    built = _Model(model, jobs, cluster)
    if replay is not None:
        built.fix(replay, ns_from_s(unit_s))
    model.minimize(sum(built.finish))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # or Ctrl-C would end the process without a word from then on
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise InputError(f"optimum: {solver.status_name(status)} within {time_limit_s:g} s; expected a schedule")
    arrivals = sum(job.arrival for job in jobs)
    best, bound = ((value - arrivals) * unit_s / len(jobs) for value in _values(solver))
    return Optimum(best, bound, status == cp_model.OPTIMAL)


def _values(solver: Any) -> tuple[float, float]:
    return solver.objective_value, solver.best_objective_bound


def _in_units(workload: Workload, cluster: Cluster, contention: Linear, unit_s: float) -> list[_Times]:
    """Return the jobs in units, or refuse what the model does not cover."""
    if not isinstance(contention, Linear) or contention.latency_s or cluster.topology != "star":
        raise InputError("optimum: expected the linear contention model without latency, on a star")
    if cluster.servers or sum(job.gpu_memory_mb for job in workload) > cluster.gpu_memory_mb:
        raise InputError("optimum: expected equal servers whose every GPU has the memory for all jobs at once")
    return [_job_in_units(job, workload.where(number), contention, unit_s) for number, job in enumerate(workload)]


def _job_in_units(job: Job, where: str, contention: Linear, unit_s: float) -> _Times:
    iteration = job.iteration
    if not isinstance(iteration, DataParallelIteration) or iteration.buckets != 1:
        raise InputError(f"{where}: job {job.job_id!r}; optimum expected forward, backward and one all-reduce")
    transfer_s = contention.per_byte_s * iteration.message_bytes
    times_s = (job.arrival_s, iteration.forward_s, iteration.backward_s, transfer_s)
    units = [round(time_s / unit_s) for time_s in times_s]
    for time_s, count in zip(times_s, units, strict=True):
        if abs(time_s - count * unit_s) > 1e-9:
            raise InputError(f"{where}: job {job.job_id!r} has a time of {time_s} s; expected multiples of {unit_s} s")
    arrival, forward, backward, transfer = units
    return _Times(arrival, forward, backward, transfer, job.iterations, job.num_gpus)


class _Model:
    """Variables and constraints; all start times are in units."""

    def __init__(self, model: CpModel, jobs: list[_Times], cluster: Cluster) -> None:
        self._model, self._jobs, self._cluster = model, jobs, cluster
        work = sum(job.iterations * (job.forward + job.backward + job.transfer) for job in jobs)
        self._horizon = max(job.arrival for job in jobs) + work
        self._on_gpu: list[list[Any]] = [[] for _ in range(cluster.num_gpus)]
        self._on_server: list[list[Any]] = [[] for _ in range(cluster.num_servers)]
        self.starts: list[dict[tuple[int, int, int], IntVar]] = []
        """Of each job, by (worker, iteration, 0 for forward or 1 for backward)."""
        self.chunks: list[list[list[IntVar]]] = []
        """Of each job and iteration, the start of each unit of its transfer."""
        self.gpus = [self._place(job) for job in jobs]
        """Of each job and worker, whether it is on each GPU."""
        self.finish = [self._add_job(job, *self.gpus[number]) for number, job in enumerate(jobs)]
        for intervals in (*self._on_gpu, *self._on_server):
            model.add_no_overlap(intervals)

    def _place(self, job: _Times) -> tuple[list[list[IntVar]], list[IntVar], IntVar]:
        """Return which worker is on which GPU, the servers that carry transfers, and whether there are several."""
        model, cluster = self._model, self._cluster
        on = [[model.new_bool_var("") for _ in range(cluster.num_gpus)] for _ in range(job.num_gpus)]
        numbers = []
        for worker in on:
            model.add_exactly_one(worker)
            numbers.append(sum(gpu * here for gpu, here in enumerate(worker)))
        for before, after in pairwise(numbers):
            model.add(after >= before + 1)  # workers are alike
        spans = model.new_bool_var("")
        used, carries = [], []
        for server in range(cluster.num_servers):
            first, end = cluster.first_gpus[server], cluster.first_gpus[server + 1]
            uses = model.new_bool_var("")
            model.add_max_equality(uses, [worker[gpu] for worker in on for gpu in range(first, end)])
            both = model.new_bool_var("")
            model.add_multiplication_equality(both, [uses, spans])
            used.append(uses)
            carries.append(both)
        model.add(sum(used) >= 2).only_enforce_if(spans)
        model.add(sum(used) <= 1).only_enforce_if(~spans)
        return on, carries, spans

    def _add_job(self, job: _Times, on: list[list[IntVar]], carries: list[IntVar], spans: IntVar) -> IntVar:
        """Add tasks and transfers of a job, and return its finish."""
        model = self._model
        starts: dict[tuple[int, int, int], IntVar] = {}
        self.starts.append(starts)
        self.chunks.append([])
        ready = model.new_constant(job.arrival)
        for iteration in range(job.iterations):
            ends = []
            for worker, here in enumerate(on):
                forward = starts[worker, iteration, 0] = self._task(job.forward, here)
                backward = starts[worker, iteration, 1] = self._task(job.backward, here)
                model.add(forward >= ready)
                model.add(backward >= forward + job.forward)
                ends.append(backward + job.backward)
            ready = self._all_reduce(job.transfer, ends, carries, spans)
        return ready

    def _task(self, duration: int, here: list[IntVar]) -> IntVar:
        start = self._model.new_int_var(0, self._horizon, "")
        for gpu, present in enumerate(here):
            interval = self._model.new_optional_fixed_size_interval_var(start, duration, present, "")
            self._on_gpu[gpu].append(interval)
        return start

    def _all_reduce(self, length: int, ends: list[Any], carries: list[IntVar], spans: IntVar) -> IntVar:
        """Add the units of a transfer one after the other, and return when the iteration is over."""
        model = self._model
        over = model.new_int_var(0, self._horizon, "")
        for end in ends:
            model.add(over >= end)
        chunks: list[IntVar] = []
        for _ in range(length):
            chunk = model.new_int_var(0, self._horizon, "")
            for server, present in enumerate(carries):
                self._on_server[server].append(model.new_optional_fixed_size_interval_var(chunk, 1, present, ""))
            for before in [last + 1 for last in chunks[-1:]] or ends:
                model.add(chunk >= before).only_enforce_if(spans)
            chunks.append(chunk)
        if chunks:
            model.add(over >= chunks[-1] + 1).only_enforce_if(spans)
        self.chunks[-1].append(chunks)
        return over

    def fix(self, result: Result, unit_ns: int) -> None:
        """Fix placement, tasks and transfers to those of a run."""
        from ddlsched.results.slices import compute_slices, transfer_slices

        names = result.jobs["job_id"].tolist()
        workers = {name: sorted(result.gpus_of(name)) for name in names}
        for number, name in enumerate(names):
            for here, gpu in zip(self.gpus[number][0], workers[name], strict=True):
                self._model.add(here[gpu] == 1)
        for row in compute_slices(result).to_dict("records"):
            key = workers[row["job_id"]].index(row["gpu"]), row["iteration"], int(row["task"] == "backward")
            self._fix(self.starts[names.index(row["job_id"])][key], row["start_ns"], unit_ns)
        begins_ns: dict[tuple[str, int], list[int]] = {}
        for row in transfer_slices(result).to_dict("records"):
            begins = begins_ns.setdefault((row["job_id"], row["iteration"]), [])
            begins += range(row["start_ns"], row["end_ns"], unit_ns)
        for (name, iteration), times_ns in begins_ns.items():
            for chunk, begin_ns in zip(self.chunks[names.index(name)][iteration], sorted(times_ns), strict=True):
                self._fix(chunk, begin_ns, unit_ns)

    def _fix(self, start: IntVar, time_ns: int, unit_ns: int) -> None:
        if time_ns % unit_ns:
            raise InputError(f"optimum: the run to replay has a start at {time_ns} ns; expected multiples of {unit_ns}")
        self._model.add(start == time_ns // unit_ns)
