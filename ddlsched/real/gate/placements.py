"""Places real jobs as they arrive, by the simulator's own placement and order policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.engine.decisions.rounds import start_queued, stop_running
from ddlsched.engine.records.layout import Columns, make_records
from ddlsched.policies.job_view import JobQueue
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.real.gate.live_jobs import LiveJob, LiveRank
from ddlsched.units import s_from_ns

__all__ = ["Placements", "ProcessorSlots"]


@dataclass(frozen=True)
class _Ready:
    job: LiveJob
    rank: LiveRank
    task: int


@dataclass
class ProcessorSlots:
    """Who computes on each GPU, and who waits to."""

    policies: CheckedPolicies
    running: dict[int, _Ready] = field(default_factory=dict)
    ready: dict[int, list[_Ready]] = field(default_factory=dict)

    def wants(self, job: LiveJob, rank: LiveRank, task: int, gpu: int) -> None:
        """Note that a task is ready on a GPU."""
        self.ready.setdefault(gpu, []).append(_Ready(job, rank, task))

    def ended(self, gpu: int) -> None:
        """Note that what computed on a GPU has ended."""
        self.running.pop(gpu, None)

    def decide(self, now_ns: int) -> None:
        """Let every idle GPU take the ready task of the smallest key; ties go to the lower job, then task."""
        for gpu, waiting in self.ready.items():
            if gpu in self.running or not waiting:
                continue
            first = self.policies.in_order((one.job.view for one in waiting), s_from_ns(now_ns))[0]
            chosen = min((one for one in waiting if one.job.number == first), key=lambda one: one.task)
            waiting.remove(chosen)
            self.running[gpu] = chosen
            chosen.rank.send({"do": "compute", "task": chosen.task, "gpu": gpu})


_ABSENT_BYTES = -2
"""Below what is left of a GPU that one job has for itself."""


class Placements:
    """The queue, and what each GPU holds."""

    def __init__(self, cluster: Cluster, policies: CheckedPolicies, costs: CommunicationCosts) -> None:
        self._cluster, self._policies, self._costs = cluster, policies, costs
        self._gpus = Columns(make_records("gpu", cluster.num_gpus))
        self._gpus.server[:] = cluster.server_of_gpu
        self._gpus.free_bytes[:] = self._empty = np.broadcast_to(cluster.gpu_memory_bytes, cluster.num_gpus).copy()
        self._residents: dict[int, list[LiveJob]] = {}
        self.queue: list[LiveJob] = []
        self.changed = False
        self._by_number: dict[int, LiveJob] = {}
        self._now_ns = 0

    def arrive(self, job: LiveJob) -> None:
        """Let a job wait for GPUs."""
        self.queue.append(job)
        self.changed = True

    def free(self, job: LiveJob) -> None:
        """Free the GPUs of a job."""
        for gpu in job.gpus:
            self._residents[gpu].remove(job)
            self._gpus.num_residents[gpu] -= 1
            taken = sum(other.job.gpu_memory_bytes for other in self._residents[gpu])
            self._gpus.free_bytes[gpu] = self._empty[gpu] - taken
        self.changed = True

    def shut(self, gpus: list[int]) -> None:
        """Let nobody have GPUs: their server is not there, or somebody else has them."""
        self._gpus.free_bytes[gpus] = _ABSENT_BYTES

    def stops(self, running: Sequence[LiveJob], now_ns: int) -> list[LiveJob]:
        """Take off their GPUs those of the running jobs that the order stops for the queue, and return them."""
        jobs = {job.number: job for job in sorted(running, key=lambda job: job.number)}
        queue = self._queued(now_ns) if self.queue and jobs else JobQueue(np.zeros(0, np.int64), {})
        views = [job.view for job in jobs.values()]
        self._by_number = jobs
        return [jobs[n] for n in stop_running(self._policies, views, queue, self.view(now_ns), self)]

    def decide(self, now_ns: int) -> list[LiveJob]:
        """Ask the placement policy about the queued jobs, in the queue's order; return those that were placed."""
        self.changed, self._now_ns = False, now_ns
        queue = self._queued(now_ns)
        placed = start_queued(self._policies, queue, self.view(now_ns), self)
        self.queue = [self._by_number[number] for number in queue.numbers.tolist() if number not in placed]
        return [self._by_number[number] for number in placed]

    def _queued(self, now_ns: int) -> JobQueue:
        """Return the queue in its order."""
        self._by_number = {job.number: job for job in self.queue}
        numbers = self._policies.in_order((job.view for job in self.queue), s_from_ns(now_ns))
        return JobQueue(np.array(numbers, np.int64), {n: job.view for n, job in self._by_number.items()})

    def next_fitting(self, queue: JobQueue, place: int) -> int:
        """Return the first place in the queue, from ``place`` on, of a job that enough GPUs have room for, or -1."""
        jobs = ((at, queue[at]) for at in range(place, len(queue)))
        return next((at for at, job in jobs if len(self._eligible(job.memory_bytes)) >= job.num_gpus), -1)

    def put(self, number: int, gpus: list[int]) -> None:
        """Let a job of the queue have GPUs."""
        self.seat(self._by_number[number], gpus, self._now_ns)

    def leave(self, number: int) -> None:
        """Free the GPUs of one of the running jobs that were looked at last."""
        self.free(self._by_number[number])

    def seat(self, job: LiveJob, gpus: Sequence[int], now_ns: int) -> None:
        """Let a job have GPUs."""
        planned = self._costs.planned(job.job.dag, gpus)
        job.place(gpus, self._costs.servers_of(gpus), planned, self._costs, now_ns)
        for gpu in gpus:
            self._residents.setdefault(gpu, []).append(job)
            self._gpus.num_residents[gpu] += 1
            self._gpus.free_bytes[gpu] -= job.job.gpu_memory_bytes
            if self._cluster.exclusive:
                self._gpus.free_bytes[gpu] = -1

    def view(self, now_ns: int) -> ClusterView:
        """Return the cluster as policies see it."""
        return ClusterView(
            self._gpus,
            self._cluster,
            self._loads,
            self._eligible,
            now_ns,
            self._costs.network,
            self._views_on,
            self._costs.all_reduce_s,
        )

    def _views_on(self, gpu: int) -> list[JobView]:
        return [job.view for job in sorted(self._residents.get(gpu, []), key=lambda job: job.number)]

    def _eligible(self, memory_bytes: int) -> np.ndarray:
        return np.flatnonzero(self._gpus.free_bytes >= memory_bytes)

    def _loads(self, gpus: np.ndarray) -> np.ndarray:
        """Return the loads of GPUs: remaining compute and, across servers, communication, nanoseconds."""
        loads = [sum(job.load_ns(gpu) for job in self._residents.get(gpu, [])) for gpu in gpus.tolist()]
        return np.array(loads, np.int64)
