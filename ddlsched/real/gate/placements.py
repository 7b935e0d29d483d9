"""Places real jobs as they arrive, by the simulator's own placement and order policies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.checked_policies import CheckedPolicies
from ddlsched.engine.records.layout import Columns, make_records
from ddlsched.policies.job_queue import JobQueue
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.real.gate.costs import Costs
from ddlsched.real.gate.live_jobs import LiveJob
from ddlsched.units import s_from_ns

__all__ = ["Placements"]

_ABSENT_BYTES = -2
"""Below what is left of a GPU that one job has for itself."""


class Placements:
    """The queue, and what each GPU holds."""

    def __init__(self, cluster: Cluster, policies: CheckedPolicies, costs: Costs) -> None:
        self._cluster, self._policies, self._costs = cluster, policies, costs
        self._gpus = Columns(make_records("gpu", cluster.num_gpus))
        self._gpus.server[:] = cluster.server_of_gpu
        self._gpus.free_bytes[:] = self._empty = np.broadcast_to(cluster.gpu_memory_bytes, cluster.num_gpus).copy()
        self._residents: dict[int, list[LiveJob]] = {}
        self.queue: list[LiveJob] = []
        self.changed = False

    def arrive(self, job: LiveJob) -> None:
        """Let a job wait for GPUs."""
        self.queue.append(job)
        self.changed = True

    def leave(self, job: LiveJob) -> None:
        """Free the GPUs of a job that is done."""
        for gpu in job.gpus:
            self._residents[gpu].remove(job)
            self._gpus.num_residents[gpu] -= 1
            taken = sum(other.job.gpu_memory_bytes for other in self._residents[gpu])
            self._gpus.free_bytes[gpu] = self._empty[gpu] - taken
        self.changed = True

    def shut(self, gpus: list[int]) -> None:
        """Let nobody have GPUs: their server is not there, or somebody else has them."""
        self._gpus.free_bytes[gpus] = _ABSENT_BYTES

    def stops(self, running: list[LiveJob], now_ns: int) -> list[LiveJob]:
        """Return those of the running jobs that the order stops for the queue."""
        if not self._policies.order_stops or not self.queue or not running:
            return []
        queue = self._job_queue(self._in_order(now_ns))
        jobs = {job.number: job for job in sorted(running, key=lambda job: job.number)}
        stopped = self._policies.stops([job.view for job in jobs.values()], queue, self.view(now_ns))
        return [jobs[number] for number in stopped]

    def decide(self, now_ns: int) -> list[LiveJob]:
        """Ask the placement policy about the queued jobs, in the queue's order; return those that were placed."""
        self.changed = False
        placed, queue = [], self._in_order(now_ns)
        for job, chosen in self._starts(queue, self.view(now_ns)):
            self.put(job, chosen, now_ns)
            placed.append(job)
        self.queue = [job for job in queue if job not in placed]
        return placed

    def _starts(self, queue: list[LiveJob], view: ClusterView) -> Iterator[tuple[LiveJob, list[int]]]:
        """Yield who starts and where; a policy that goes job by job is asked for those that GPUs have room for."""
        if self._policies.placement_has_rounds:
            jobs = {job.number: job for job in queue}
            if queue:
                for number, chosen in self._policies.place_round(self._job_queue(queue), view):
                    yield jobs[number], chosen
            return
        for job in queue:
            if len(self._eligible(job.job.gpu_memory_bytes)) >= job.job.num_gpus:
                gpus = self._policies.place(job.view, view)
                if gpus is not None:
                    yield job, gpus

    def _job_queue(self, queue: list[LiveJob]) -> JobQueue:
        views = {job.number: job.view for job in queue}
        by_number = [views.get(number) for number in range(max(views) + 1)]
        return JobQueue(np.array(list(views), np.int64), by_number)  # type: ignore[arg-type]

    def _in_order(self, now_ns: int) -> list[LiveJob]:
        jobs = {job.number: job for job in self.queue}
        views = {number: job.view for number, job in jobs.items()}
        keys = {number: self._policies.key(view, s_from_ns(now_ns)) for number, view in views.items()}
        order = self._policies.sort(list(jobs), keys, views, s_from_ns(now_ns))  # type: ignore[arg-type]
        return [jobs[number] for number in order]

    def put(self, job: LiveJob, gpus: list[int], now_ns: int) -> None:
        """Let a job have GPUs."""
        servers = tuple(dict.fromkeys(int(self._cluster.server_of_gpu[gpu]) for gpu in gpus))
        ring = self._costs.network.ring(servers)
        communication_ns = sum(self._costs.reduce_ns(message, servers) for message in job.messages)
        job.place(gpus, servers, ring, communication_ns, now_ns)
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
        loads = [sum(self._load_of(job, gpu) for job in self._residents.get(gpu, [])) for gpu in gpus.tolist()]
        return np.array(loads, np.int64)

    def _load_of(self, job: LiveJob, gpu: int) -> int:
        servers = len(job.view.servers)
        communication = sum(left * self._costs.load_ns(message, servers) for message, left in job.reduces_left())
        return job.compute_left_ns[gpu] + communication
