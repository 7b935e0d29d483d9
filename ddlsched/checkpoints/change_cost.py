"""How long a change of parallelism takes: the bytes of its plan over the links that they share, and the restart.

A plan moves what a host lacks; how much that is depends on which new rank is put where (:func:`staying`). Ranks packed
in their order, as launchers put them, often land on devices with another stage's state (Megatron numbers data-parallel
neighbours before stages, so doubling dp shifts every later stage).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.division import divided
from ddlsched.checkpoints.plan import NoReplicaError, ReshardPlan, plan, refuse_differences
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Tensor
from ddlsched.deferred import nx
from ddlsched.errors import InputError
from ddlsched.network.topology import Node, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddlsched.workload.elastic_job import Rescale

_DEVICE_BONUS = 1e-3
"""What a byte that need not leave its device counts, beside one that need not leave its host."""


def staying(old: TensorCollection, new: TensorCollection, lost: Collection[int] = ()) -> TensorCollection:
    """Return the new collection with its ranks on the same devices, but so that most of their state is there already.

    Tensor-parallel groups stay whole: they exchange places with each other, on blocks of devices as ``new`` has them,
    and within a block ranks keep their order. The assignment is the best one for groups that need their state apart;
    that groups on one host may share what they fetch is left out of account.

    Parameters
    ----------
    old
        The job as it runs.
    new
        The resized job, on the devices that it may use.
    lost
        Old ranks whose state is gone.

    Raises
    ------
    InputError
        The collections do not hold the same tensors.
    """
    from scipy.optimize import linear_sum_assignment

    tp = new.parallelism.tp
    blocks = [range(first, first + tp) for first in range(0, new.num_ranks, tp)]
    on_device, on_host = _present_bytes(old, new, frozenset(lost))
    gains = np.array([[_gain(new, group, block, on_device, on_host) for block in blocks] for group in blocks])
    groups, chosen = linear_sum_assignment(gains, maximize=True)
    places = list(range(new.num_ranks))
    for group, block in zip(groups.tolist(), chosen.tolist(), strict=True):
        for rank, place in zip(blocks[group], blocks[block], strict=True):
            places[rank] = place
    allocation = StoredRegion(
        devices=tuple(new.allocation.devices[place] for place in places),
        hosts=tuple(new.allocation.hosts[place] for place in places),
    )
    return new.resized(new.parallelism, stages=new.stages, allocation=allocation)


def _gain(new: TensorCollection, group: Sequence[int], block: Sequence[int], on_device: Any, on_host: Any) -> float:
    """Return what putting a group's ranks on a block's devices saves, bytes."""
    devices, hosts = new.allocation.devices, new.allocation.hosts
    near = sum(on_host[hosts[place]][rank] for rank, place in zip(group, block, strict=True))
    same = sum(on_device[devices[place]][rank] for rank, place in zip(group, block, strict=True))
    return float(near + _DEVICE_BONUS * same)


def _present_bytes(
    old: TensorCollection, new: TensorCollection, lost: frozenset[int]
) -> tuple[dict[int, NDArray[np.float64]], dict[int, NDArray[np.float64]]]:
    """Return, by device and by host, how many bytes of each new rank's state are there."""
    refuse_differences(old, new)
    zeros = np.zeros(new.num_ranks)
    on_device: dict[int, NDArray[np.float64]] = defaultdict(zeros.copy)
    on_host: dict[int, NDArray[np.float64]] = defaultdict(zeros.copy)
    for tensor in new.tensors:
        before, after = old.shards(old.by_name[tensor.name]), new.shards(tensor)
        for cell in divided(tuple(shard.layout for shard in before), tuple(shard.layout for shard in after)):
            size = cell.box.num_elements * DTYPE_BYTES[tensor.dtype]
            wanted = sorted({rank for holding in cell.new for rank in after[holding.shard].ranks})
            sources = {rank for holding in cell.old for rank in before[holding.shard].ranks} - lost
            for rank in sources:
                on_device[old.allocation.devices[rank]][wanted] += size
            for host in {old.allocation.hosts[rank] for rank in sources}:
                on_host[host][wanted] += size
    return on_device, on_host


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a job is resized.

    Parameters
    ----------
    topology
        Of the hosts' network; its cables are shared by what crosses them in the same direction.
    host_bytes_per_s
        Rate of copies between devices of one host, all of them together.
    storage_bytes_per_s
        Rate at which all hosts together read a stored checkpoint; none given: only their network cards limit them.
    restart_s
        From the end of the transfer to the next step: processes, communicators, compilation.
    """

    topology: Topology
    host_bytes_per_s: float
    storage_bytes_per_s: float = inf
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("host_bytes_per_s", "storage_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"site: {name} is {getattr(self, name)!r}; expected a number > 0")
        if not 0 <= self.restart_s < inf:
            raise InputError(f"site: restart_s is {self.restart_s!r}; expected seconds from 0")


@dataclass(frozen=True, kw_only=True)
class ReconfigurationTime:
    """What a change of parallelism takes.

    Parameters
    ----------
    network_s
        Of the cable that is busy longest; how many seconds it carries bytes.
    host_s
        Of the host that copies most between its devices.
    restart_s
        The site's.
    busiest
        The cable, as ``0 to switch``; empty if nothing crosses the network.
    """

    network_s: float
    host_s: float
    restart_s: float
    busiest: str

    @property
    def transfer_s(self) -> float:
        """Until all state is in place: what a host receives it hands on as it comes, so the longer of both counts."""
        return max(self.network_s, self.host_s)

    @property
    def total_s(self) -> float:
        """Transfer and restart."""
        return self.transfer_s + self.restart_s


def reconfiguration_s(change: ReshardPlan, site: Site) -> ReconfigurationTime:
    """Return the time of a plan at a site.

    The network's part is bytes over bandwidth of its busiest cable. No schedule is faster, and one that keeps that
    cable busy is as fast.

    Raises
    ------
    InputError
        The topology does not hold so many hosts.
    """
    loads, graph = link_bytes(change, site.topology)
    seconds = {cable: count / graph.edges[cable]["bandwidth_bytes_per_s"] for cable, count in loads.items()}
    busiest = max(seconds, key=lambda cable: seconds[cable], default=None)
    copied = _copied_within_hosts(change)
    return ReconfigurationTime(
        network_s=0.0 if busiest is None else seconds[busiest],
        host_s=max(copied.values(), default=0) / site.host_bytes_per_s,
        restart_s=site.restart_s,
        busiest="" if busiest is None else f"{busiest[0]} to {busiest[1]}",
    )


def link_bytes(change: ReshardPlan, topology: Topology) -> tuple[Mapping[tuple[Node, Node], int], nx.Graph[Any]]:
    """Return the bytes over each directed cable of a plan, and the topology's graph.

    Returns
    -------
    loads
        By the cable's nodes, in the direction of the bytes; cables that carry none are left out.
    graph
        Of as many servers as the plan's highest host needs.
    """
    hosts = (*change.old.allocation.hosts, *change.new.allocation.hosts)
    graph = topology.graph(max(hosts) + 1)
    loads: Counter[tuple[Node, Node]] = Counter()
    for (source, target), count in change.bytes_between_hosts.items():
        for cable in pairwise(topology.route(graph, source, target)):
            loads[cable] += count
    return loads, graph


def _copied_within_hosts(change: ReshardPlan) -> Counter[int]:
    """Return the bytes that devices of a host copy from each other."""
    hosts = change.new.allocation.hosts
    found: Counter[int] = Counter()
    for (_, target, way), num_bytes in change.bytes_between_ranks.items():
        if way in ("host", "relayed"):
            found[hosts[target]] += num_bytes
    return found


@dataclass(frozen=True, kw_only=True)
class ReplicaRule:
    """The rule that gives a job as many replicas, of tp x pp GPUs each, as its GPUs make."""

    tp: int = 1
    pp: int = 1

    def __call__(self, gpus: int) -> StoredParallelism:
        """Return the parallelism of a number of GPUs.

        Raises
        ------
        InputError
            They do not make whole replicas.
        """
        if gpus < 1 or gpus % (self.tp * self.pp):
            raise InputError(f"{gpus} GPUs: expected a multiple of tp x pp = {self.tp * self.pp}")
        return StoredParallelism(tp=self.tp, pp=self.pp, dp=gpus // (self.tp * self.pp))


@dataclass(frozen=True, kw_only=True)
class PlannedRescaleCost:
    """The rescale cost of elastic jobs that train one model: the time of the plan from one size to the other.

    A model of this kind is called with a :class:`~ddlsched.workload.elastic_job.Rescale`. A job's devices are taken to
    be packed on as few hosts as can be, before and after, the first ones to stay when it shrinks, and its ranks to be
    put where most of their state is (:func:`staying`). A job that was stopped, or whose lost GPUs held the only replica
    of something, reads its checkpoint from storage.

    Parameters
    ----------
    tensors
        The job's state, as :func:`~ddlsched.checkpoints.tensor_models.job_tensors` gives it.
    parallelism_of
        The parallelism of a number of GPUs, such as :class:`ReplicaRule`.
    site
        Bandwidths and restart.
    gpus_per_host
        GPUs of a host.
    start_s
        Of the first start.
    """

    tensors: Sequence[Tensor]
    parallelism_of: Callable[[int], StoredParallelism]
    site: Site
    gpus_per_host: int = 8
    start_s: float = 0.0
    _known: dict[tuple[int, int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, change: Rescale) -> float:
        """Return the seconds that a change takes."""
        if change.is_first:
            return self.start_s
        if change.to_gpus == change.from_gpus and not change.added_gpus:
            return 0.0  # only the batch changes
        return self.seconds(change.from_gpus, change.to_gpus, change.lost_gpus)

    def seconds(self, from_gpus: int, to_gpus: int, lost_gpus: int = 0) -> float:
        """Return the seconds from one number of GPUs (0: stopped) to another; the last ``lost_gpus`` are gone."""
        key = (from_gpus, to_gpus, lost_gpus)
        if key not in self._known:
            self._known[key] = self._seconds(*key)
        return self._known[key]

    def _seconds(self, from_gpus: int, to_gpus: int, lost_gpus: int) -> float:
        new = self._collection(to_gpus)
        if from_gpus:
            old = self._collection(from_gpus)
            lost = range(max(from_gpus - lost_gpus, 0), old.num_ranks)
            try:
                return reconfiguration_s(plan(old, staying(old, new, lost), lost=lost), self.site).total_s
            except NoReplicaError:
                pass
        return self._from_storage(new)

    def _collection(self, gpus: int) -> TensorCollection:
        to = self.parallelism_of(gpus)
        allocation = StoredRegion.packed(to.num_ranks, self.gpus_per_host)
        return TensorCollection(tensors=tuple(self.tensors), parallelism=to, allocation=allocation)

    def _from_storage(self, new: TensorCollection) -> float:
        """Return the seconds in which each host reads what its ranks hold, once, and restarts."""
        hosts = new.allocation.hosts
        wanted: Counter[int] = Counter()
        for tensor in new.tensors:
            for layout, ranks in new.shards(tensor):
                for host in {hosts[rank] for rank in ranks}:
                    wanted[host] += layout.num_elements * DTYPE_BYTES[tensor.dtype]
        graph = self.site.topology.graph(max(hosts) + 1)
        cards = {host: float(next(iter(graph.adj[host].values()))["bandwidth_bytes_per_s"]) for host in wanted}
        slowest = max(count / cards[host] for host, count in wanted.items())
        return max(slowest, wanted.total() / self.site.storage_bytes_per_s) + self.site.restart_s
