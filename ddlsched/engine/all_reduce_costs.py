"""What all-reduces take without contention, and what counts in loads; refuses more of it than the clock holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ddlsched.engine.routes import Routes
from ddlsched.engine.run_state import RunState
from ddlsched.errors import InputError, PluginError, guarded, label
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Ring
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s, s_from_ns
from ddlsched.workload.dag import AllReduceTask

__all__ = ["Costs", "PlannedTransfer"]


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """What one all-reduce task puts on the network while its job has its GPUs.

    Parameters
    ----------
    links
        Numbers of the links that it crosses, an entry a crossing; none on one server.
    wire_bytes
        Bytes that it moves over each of them.
    cable_latency_s
        Of the cables, seconds; the contention model's comes on top.
    """

    links: tuple[int, ...]
    wire_bytes: float
    cable_latency_s: float


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
                wire = [self.wire_bytes(message, job.num_gpus) for message in self.messages(number)]
                self.check_service(number, sum(self.reduce_ns(w, 0.0) for w in wire))
                self.check_service(number, sum(self.load_ns(w) for w in wire))

    def messages(self, number: int) -> list[float]:
        """Return the message sizes of a job's all-reduces, bytes."""
        return [
            task.message_bytes for task in self._state.workload[number].dag.tasks if isinstance(task, AllReduceTask)
        ]

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the bytes that a message puts on each link of its ring."""
        name = f"contention {label(self._contention)}: wire_bytes"
        wire = guarded(name, lambda: self._contention.wire_bytes(message_bytes, num_servers))
        if not isinstance(wire, int | float | np.number) or not 0 <= wire < math.inf:
            raise PluginError(f"{name} answered {wire!r}; expected a finite number of bytes >= 0")
        return float(wire)

    def planned(self, number: int, servers: tuple[int, ...]) -> list[PlannedTransfer]:
        """Return what each of a job's all-reduces puts on the network if the job has GPUs on these servers."""
        messages = self.messages(number)
        ring = self._routes.ring(number, servers) if messages else Ring((), 0.0)
        return [
            PlannedTransfer(ring.links, self.wire_bytes(message, len(servers)), ring.latency_s) for message in messages
        ]

    def latency_s(self, cable_latency_s: float) -> float:
        """Return the time before the first byte."""
        return self._contention.latency_s + cable_latency_s

    def reduce_ns(self, wire_bytes: float, cable_latency_s: float) -> int:
        """Return what an all-reduce takes alone."""
        return ns_from_s(self.latency_s(cable_latency_s) + self._contention.alone_per_byte_s * wire_bytes)

    def load_ns(self, wire_bytes: float) -> int:
        """Return what an all-reduce counts in the load of a GPU."""
        return ns_from_s(self._load_per_byte_s * wire_bytes)

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return what an all-reduce over the first so many servers takes alone, seconds."""
        ring = self._state.network.ring(tuple(range(num_servers)))
        return s_from_ns(self.reduce_ns(self.wire_bytes(message_bytes, num_servers), ring.latency_s))

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
