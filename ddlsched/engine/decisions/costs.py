"""What a job's collectives put on the network, take alone and count in loads, by a contention model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import PluginError, guarded, label
from ddlsched.network.collectives import Rank
from ddlsched.network.contention import ContentionModel, ring_bytes
from ddlsched.network.topology import Network, RingLinks, flows_of_ring, ring_along
from ddlsched.network.traffic import Pattern, TaskMessage, Way, ring_of
from ddlsched.network.tuple_traffic import SentByTuples, Tuples, TupleTraffic
from ddlsched.units import ns_from_s, s_from_ns
from ddlsched.workload.dag import CollectiveTask, IterationDag


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


_NOTHING = PlannedTransfer((), 0.0, 0.0)


class CommunicationCosts:
    """Times of collectives between GPUs of a cluster.

    Parameters
    ----------
    cluster, network
        Where jobs run, and what is between its servers.
    model
        The contention model, bound to the network.
    load_per_byte_s
        What a byte counts in loads, seconds; by default what it takes alone.
    """

    def __init__(
        self, cluster: Cluster, network: Network, model: ContentionModel, load_per_byte_s: float | None = None
    ) -> None:
        self._cluster, self.network, self.model = cluster, network, model
        self._load_per_byte_s = model.alone_per_byte_s if load_per_byte_s is None else load_per_byte_s
        self._known: dict[Any, Pattern] = {}
        self._wire_bytes: dict[tuple[float, int], float] = {}
        self._server_of_gpu: list[int] = cluster.server_of_gpu.tolist()

    def servers_of(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Return the servers of GPUs, each once."""
        return tuple(dict.fromkeys(map(self._server_of_gpu.__getitem__, gpus)))

    def planned(self, dag: IterationDag, gpus: Sequence[int], way: Way | None = None) -> list[PlannedTransfer]:
        """Return what each collective of an iteration puts on the network, in the order of :func:`collectives_of`.

        Parameters
        ----------
        dag, gpus
                    The job's iteration, and its GPUs in placement order.
        way
            Which path goes from one card to another; by default the topology's own route.
        """
        if self.has_plain_rings(dag):
            return self.rings(dag.messages, self.servers_of(gpus), way)
        traffic, everybody = self.traffic(gpus, way), {None: (range(len(gpus)),)}
        tuples = {name: Tuples.of(members) for name, members in (*everybody.items(), *dag.groups.items())}
        tasks = [task for task in dag.tasks if isinstance(task, CollectiveTask)]
        return [plan for task in tasks for plan in _one_by_one(self.sent(traffic, task, tuples[task.group]))]

    def traffic(self, gpus: Sequence[int], way: Way | None = None) -> TupleTraffic:
        """Return what finds the traffic of a job's collectives."""
        return TupleTraffic(self.network, self._ranks(gpus), self.wire_bytes, self._known, way)

    def sent(self, traffic: TupleTraffic, task: CollectiveTask, tuples: Tuples) -> SentByTuples:
        """Return what a collective puts on links in each tuple of its group."""
        return traffic.of(task.kind, task.algorithm, task.message_bytes, tuples)

    def _ranks(self, gpus: Sequence[int]) -> np.ndarray:
        """Return where workers on GPUs are, a row each."""
        chosen = np.asarray(gpus, np.int64)
        servers = self._cluster.server_of_gpu[chosen]
        return self.network.ranks(servers, chosen - self._cluster.first_gpus[servers])

    def rings(self, messages: Sequence[float], servers: Sequence[int], way: Way | None = None) -> list[PlannedTransfer]:
        """Return what all-reduces of messages over servers put on the network."""
        ring = self._ring(servers, way) if any(messages) else RingLinks((), 0.0)
        return [self._plain(ring, message, len(servers)) for message in messages]

    def planned_one(
        self, dag: IterationDag, place: int, gpus: Sequence[int], way: Way | None = None
    ) -> PlannedTransfer:
        """Return what one collective, by its place among them, puts on the network."""
        if self.has_plain_rings(dag):
            return self.rings([dag.messages[place]], self.servers_of(gpus), way)[0]
        task, workers = collectives_of(dag, len(gpus))[place]
        return _one_by_one(self.sent(self.traffic(gpus, way), task, Tuples.of([workers])))[0]

    def rings_of(self, dag: IterationDag, gpus: Sequence[int]) -> list[tuple[list[int], int]]:
        """Return of each collective that is one ring over servers these, ascending, and its steps; of others none."""
        if self.has_plain_rings(dag):
            servers = sorted(self.servers_of(gpus))
            return [(servers, 2 * (len(servers) - 1))] * len(dag.messages)
        ranks, found = self._ranks(gpus), list[tuple[list[int], int]]()
        for task, workers in collectives_of(dag, len(gpus)):
            own = [Rank(*rank) for rank in ranks[list(workers)].tolist()]
            sent = TaskMessage(task.kind, task.algorithm, task.message_bytes)
            ring = ring_of(self.network, sent, own, self.wire_bytes)
            found.append(([], 0) if ring is None else ([source.server for source, _, _ in ring.flows], ring.steps))
        return found

    def has_plain_rings(self, dag: IterationDag) -> bool:
        """Return whether all collectives are rings over a job's servers, whose inside costs nothing."""
        return self.network.inside is None and dag.only_rings_of_all

    def _plain(self, ring: RingLinks, message_bytes: float, num_servers: int) -> PlannedTransfer:
        if not message_bytes:
            return _NOTHING
        return PlannedTransfer(ring.links, self.wire_bytes(message_bytes, num_servers), ring.latency_s)

    def _ring(self, servers: Sequence[int], way: Way | None) -> RingLinks:
        """Return the ring over servers in ascending order, along the paths that ``way`` gives its flows."""
        if len(servers) < 2 or way is None:
            return self.network.ring(servers)
        ordered = sorted(servers)
        paths = [way((source, 0), (target, 0)) for source, target in flows_of_ring(ordered)]
        return ring_along(ordered, paths, len(ordered))

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the bytes that a message puts on each link of its ring."""
        if (known := self._wire_bytes.get((message_bytes, num_servers))) is not None:
            return known

        def name() -> str:
            return f"contention {label(self.model)}: wire_bytes"

        wire = guarded(name, lambda: ring_bytes(self.model, message_bytes, num_servers))
        if not isinstance(wire, int | float | np.number) or not 0 <= wire < math.inf:
            raise PluginError(f"{name()} answered {wire!r}; expected a finite number of bytes >= 0")
        self._wire_bytes[message_bytes, num_servers] = float(wire)
        return float(wire)

    def latency_s(self, cable_latency_s: float) -> float:
        """Return the time before the first byte."""
        return self.model.latency_s + cable_latency_s

    def alone_ns(self, wire_bytes: float, cable_latency_s: float) -> int:
        """Return what a transfer takes alone."""
        return ns_from_s(self.latency_s(cable_latency_s) + self.model.alone_per_byte_s * wire_bytes)

    def iteration_ns(self, dag: IterationDag, planned: Sequence[PlannedTransfer]) -> int:
        """Return what an iteration's collectives take without contention: of a group's tuples, the longest."""
        longest_ns: dict[str, int] = {}
        for (task, _), plan in zip(collectives_of(dag, 0), planned, strict=True):
            alone_ns = self.alone_ns(plan.wire_bytes, plan.cable_latency_s) if plan.links else 0
            longest_ns[task.name] = max(longest_ns.get(task.name, 0), alone_ns)
        return sum(longest_ns.values())

    def load_ns(self, planned: PlannedTransfer) -> int:
        """Return what a transfer counts in the loads of its GPUs; nothing if it crosses no link."""
        return self.bytes_load_ns(planned.wire_bytes) if planned.links else 0

    def bytes_load_ns(self, wire_bytes: float) -> int:
        """Return what so many bytes on each link count in the load of a GPU."""
        return ns_from_s(self._load_per_byte_s * wire_bytes)

    def all_reduce_s(self, message_bytes: float, num_servers: int) -> float:
        """Return what an all-reduce over the first so many servers takes alone, seconds."""
        ring = self.network.ring(tuple(range(num_servers)))
        wire_bytes = self.wire_bytes(message_bytes, num_servers) / self.network.cards
        return s_from_ns(self.alone_ns(wire_bytes, ring.latency_s))


def _one_by_one(sent: SentByTuples) -> list[PlannedTransfer]:
    """Return what each tuple puts on the network."""
    ends = np.cumsum(sent.counts).tolist()
    rows = zip(ends, sent.counts.tolist(), sent.wire_bytes.tolist(), sent.latency_s.tolist(), strict=True)
    links, shares = sent.links.tolist(), sent.shares.tolist()
    return [
        PlannedTransfer(tuple(links[end - count : end]), wire_bytes, latency_s, tuple(shares[end - count : end]))
        for end, count, wire_bytes, latency_s in rows
    ]


def collectives_of(dag: IterationDag, num_workers: int) -> list[tuple[CollectiveTask, Sequence[int]]]:
    """Return an iteration's collectives, each with the workers that take part, a row for each tuple of a group."""
    everybody = range(num_workers)
    return [
        (task, workers)
        for task in dag.tasks
        if isinstance(task, CollectiveTask)
        for workers in ((everybody,) if task.group is None else dag.groups[task.group])
    ]
