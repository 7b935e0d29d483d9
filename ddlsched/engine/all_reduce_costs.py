"""What all-reduces take without contention, and what counts in loads; refuses more of it than the clock holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddlsched.engine.routes import Routes
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError, PluginError, guarded, label
from ddlsched.network.collectives import Rank
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Ring
from ddlsched.network.traffic import Way, traffic_of
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s, s_from_ns
from ddlsched.workload.dag import CollectiveTask

__all__ = ["Costs", "PlannedTransfer"]


class PlannedTransfer(NamedTuple):
    """What one collective puts on the network while its job has its GPUs.

    Parameters
    ----------
    links
        Numbers of the links that it crosses, an entry a crossing; none on one server whose inside costs nothing.
    wire_bytes
        Bytes that it moves over each of them, unless ``shares`` says otherwise.
    cable_latency_s
        Of the cables, seconds; the contention model's comes on top.
    shares
        If not empty: bytes on each of the links / ``wire_bytes``.
    """

    links: tuple[int, ...]
    wire_bytes: float
    cable_latency_s: float
    shares: tuple[float, ...] = ()


class Costs:
    """Times of a run's all-reduces under its contention model.

    Raises
    ------
    InputError
        More service with communication than the clock holds.
    """

    def __init__(
        self, state: RunState, routes: Routes, contention: ContentionModel, load_per_byte_s: float | None
    ) -> None:
        self._state, self._routes, self._contention = state, routes, contention
        self._load_per_byte_s = contention.alone_per_byte_s if load_per_byte_s is None else load_per_byte_s
        for number, job in enumerate(state.workload):
            if job.num_gpus > 1:
                wire = [self.wire_bytes(message, job.num_gpus) for message in job.dag.messages]
                self.check_service(number, sum(self.reduce_ns(w, 0.0) for w in wire))
                self.check_service(number, sum(self.load_ns(w) for w in wire))

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the bytes that a message puts on each link of its ring."""

        def name() -> str:
            return f"contention {label(self._contention)}: wire_bytes"

        wire = guarded(name, lambda: self._contention.wire_bytes(message_bytes, num_servers))
        if not isinstance(wire, int | float | np.number) or not 0 <= wire < math.inf:
            raise PluginError(f"{name()} answered {wire!r}; expected a finite number of bytes >= 0")
        return float(wire)

    def planned(self, number: int, chosen: list[int], servers: tuple[int, ...]) -> list[PlannedTransfer]:
        """Return what each of a job's collectives puts on the network if the job has these GPUs, in placement order."""
        way = self._routes.of_job(number)
        if self.has_plain_rings(number):
            messages = self._state.workload[number].dag.messages
            ring = self._routes.ring(servers, way) if messages else Ring((), 0.0)
            return [self._plain(ring, message, len(servers)) for message in messages]
        ranks = [self._rank(gpu) for gpu in chosen]
        return [
            self._planned(task, [ranks[worker] for worker in workers], way)
            for task, workers in self._collectives(number)
        ]

    def planned_anew(self, number: int, place: int, chosen: Sequence[int], servers: tuple[int, ...]) -> PlannedTransfer:
        """Return what one of a job's collectives, by its place among them, puts on the network along paths of now."""
        way = self._routes.asked(number)
        if self.has_plain_rings(number):
            return self._plain(
                self._routes.ring(servers, way), self._state.workload[number].dag.messages[place], len(servers)
            )
        task, workers = self._collectives(number)[place]
        return self._planned(task, [self._rank(chosen[worker]) for worker in workers], way)

    def has_plain_rings(self, number: int) -> bool:
        """Return whether all of a job's collectives are rings over its servers, whose inside costs nothing."""
        return self._state.network.inside is None and self._state.workload[number].dag.only_rings_of_all

    @property
    def beyond_plain_rings(self) -> str:
        """The transfers of no such rings, as messages name them; nothing if there are none."""
        if self._state.network.inside is not None:
            return "about all transfers, as the inside of servers takes time"
        if not all(job.dag.only_rings_of_all for job in self._state.workload):
            return "about transfers of jobs that do not only all-reduce over all their workers"
        return ""

    def _plain(self, ring: Ring, message_bytes: float, num_servers: int) -> PlannedTransfer:
        return PlannedTransfer(ring.links, self.wire_bytes(message_bytes, num_servers), ring.latency_s)

    def _collectives(self, number: int) -> list[tuple[CollectiveTask, Sequence[int]]]:
        """Return a job's collectives, each with the workers that take part, a row for each tuple of a group."""
        job = self._state.workload[number]
        everybody = range(self._state.jobs.num_gpus.item(number))
        return [
            (task, workers)
            for task in job.dag.tasks
            if isinstance(task, CollectiveTask)
            for workers in ((everybody,) if task.group is None else job.dag.groups[task.group])
        ]

    def _rank(self, gpu: int) -> Rank:
        server = self._state.server_of_gpu[gpu]
        return self._state.network.rank(server, gpu - self._state.cluster.first_gpus.item(server))

    def _planned(self, task: CollectiveTask, ranks: list[Rank], way: Way) -> PlannedTransfer:
        network, message_bytes = self._state.network, task.message_bytes
        traffic = traffic_of(network, task.kind, task.algorithm, ranks, message_bytes, self.wire_bytes, way)
        return PlannedTransfer(traffic.links, traffic.wire_bytes, traffic.latency_s, traffic.shares)

    def latency_s(self, cable_latency_s: float) -> float:
        """Return the time before the first byte."""
        return self._contention.latency_s + cable_latency_s

    def reduce_ns(self, wire_bytes: float, cable_latency_s: float) -> int:
        """Return what an all-reduce takes alone."""
        return ns_from_s(self.latency_s(cable_latency_s) + self._contention.alone_per_byte_s * wire_bytes)

    def iteration_ns(self, number: int, planned: list[PlannedTransfer]) -> int:
        """Return what the collectives of an iteration take without contention: of a group's tuples, the longest."""
        longest_ns: dict[int, int] = {}
        first = self._state.jobs.first_transfer.item(number)
        first_task = self._state.jobs.first_task.item(number)
        for transfer, plan in enumerate(planned, first):
            part = first_task + self._state.transfers.task.item(transfer)
            task = self._state.tasks.dag_task.item(part)
            alone_ns = self.reduce_ns(plan.wire_bytes, plan.cable_latency_s) if plan.links else 0
            longest_ns[task] = max(longest_ns.get(task, 0), alone_ns)
        return sum(longest_ns.values())

    def load_ns(self, wire_bytes: float) -> int:
        """Return what an all-reduce counts in the load of a GPU."""
        return ns_from_s(self._load_per_byte_s * wire_bytes)

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return what an all-reduce over the first so many servers takes alone, seconds."""
        ring = self._state.network.ring(tuple(range(num_servers)))
        wire_bytes = self.wire_bytes(message_bytes, num_servers) / self._state.network.cards
        return s_from_ns(self.reduce_ns(wire_bytes, ring.latency_s))

    def check_service(self, number: int, iteration_ns: int) -> None:
        """Refuse a job whose service with so much communication in each iteration the clock cannot hold."""
        jobs = self._state.jobs
        communication_ns = iteration_ns * jobs.iterations.item(number) * jobs.num_gpus.item(number)
        self.refuse_service(number, jobs.service_ns.item(number) + communication_ns)

    def refuse_service(self, number: int, service_ns: int) -> None:
        """Raise InputError for more service than the clock holds."""
        if service_ns > MAX_NS:
            workload = self._state.workload
            raise InputError(
                f"{workload.where(number)}: job {workload[number].job_id!r} has more compute and communication x GPUs "
                f"(or load by load_per_byte_s) than the clock holds; expected at most {MAX_NS / NS_PER_S:.4g} s in all"
            )
