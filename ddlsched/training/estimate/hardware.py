"""GPUs, the networks between them, and memory beside their own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.collectives import Span
from ddlsched.training.estimate.layers import Operation, Work

if TYPE_CHECKING:
    from ddlsched.network.topology import Inside, Topology

Precision: TypeAlias = Literal["half", "single", "fp8", "mxfp8", "nvfp4"]
"""Of matrix products: fp16 or bf16; fp32 (TF32 where the GPU has it); 8 bits with a scale a tensor, or a scale for each
32 numbers; 4 bits with a scale for each 16."""


NARROW_HEAD, WIDE_HEAD = 64, 128
"""Numbers of a head of attention."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How far a GPU stays below its data sheet; the default is the plain roofline.

    Parameters
    ----------
    matrix
        Share of the peak that an endlessly large matrix product reaches.
    half_flops
        Size of a matrix product, in operations, that reaches half of that share. Between, the share reached is
        ``matrix * flops / (flops + half_flops)``.
    memory
        Share of the memory's bandwidth.
    kernel_s
        Least time of a kernel: from one launch to the next.
    gap_s
        Lost with every kernel, beside its work.
    launch_s
        The host's time to launch a kernel or a collective. The host runs ahead, so a pass over a part of the model
        takes no less than its launches, and no more for those that end before the GPU has done its work.
    crowded
        How many times as long launches take where eight GPUs or more split a matrix: their hosts wait for each other.
    collective_s
        Lost with every collective of more than one GPU, and every send between stages, beside its steps.
    odd
        How many times as long a product takes whose matrix has an odd number of columns: tensor cores load 16 bytes at
        once if columns are aligned to them, else fewer.
    by_precision
        ``matrix`` for some precisions, by name; of their own peak.
    attention
        Share of the peak in half precision that fused attention reaches, all pairs of tokens counted, also those that a
        causal mask leaves out; None: ``matrix``.
    narrow
        How fast that is with heads of 64 numbers or fewer, of 128: tensor cores wait for the softmax.
    casting
        How often the bytes of a product are moved to bring its operands into 8 or 4 bits.
    experts, expert_rows
        Share of ``matrix`` that products of experts reach if each has endlessly many tokens, and the tokens of an
        expert that reach half of it.
    expert_s, sorting
        Lost in each pass over a layer of experts, waiting for how many tokens each gets; and how often each pass reads
        and writes the tokens to sort them.
    exposed
        Share of the collectives within the model, and within a node, that no other kernel hides.
    scattered
        Share of the bandwidth between nodes that an all-to-all reaches.
    taken
        Share of its own time that data parallelism's communication takes from the computation that hides it.
    """

    matrix: Amount = 1.0
    half_flops: Amount = 0.0
    memory: Amount = 1.0
    kernel_s: Amount = 0.0
    gap_s: Amount = 0.0
    launch_s: Amount = 0.0
    crowded: Amount = 1.0
    collective_s: Amount = 0.0
    odd: Amount = 1.0
    by_precision: Mapping[str, Amount] = field(default_factory=dict)
    attention: Amount | None = None
    narrow: Amount = 1.0
    casting: Amount = 0.0
    experts: Amount = 1.0
    expert_rows: Amount = 0.0
    expert_s: Amount = 0.0
    sorting: Amount = 1.0
    exposed: Amount = 1.0
    scattered: Amount = 1.0
    taken: Amount = 0.0

    def at_clock(self, factor: float) -> Efficiency:
        """Return the shares of a GPU of the same kind whose clock is so many times as high."""
        return dataclasses.replace(
            self,
            matrix=self.matrix * factor,
            by_precision={name: share * factor for name, share in self.by_precision.items()},
            attention=None if self.attention is None else self.attention * factor,
        )

    def slowed_s(self, computing_s: Amount) -> Amount:
        """Return how long computation takes beside gradients that are sent as long; if all is taken, without end."""
        return computing_s / np.maximum(1 - np.asarray(self.taken), 1e-9)

    def share(self, work: Work, precision: Precision, rows: Amount) -> Amount:
        """Return the share of the peak that products of a kind reach; ``rows`` are those of an operation."""
        matrix = self.by_precision.get(precision, self.matrix)
        if work == "attention" and self.attention is not None:
            wide = np.clip((np.asarray(rows) - NARROW_HEAD) / (WIDE_HEAD - NARROW_HEAD), 0, 1)
            return self.attention * (self.narrow + (1 - self.narrow) * wide)
        return matrix * self.experts * rows / (rows + self.expert_rows) if work == "experts" else matrix


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator, by its vendor's figures.

    Parameters
    ----------
    name
        For tables.
    peak_flops_per_s
        Of dense matrix products, by precision.
    memory_bytes, memory_bytes_per_s
        Size and bandwidth of its own memory; 1 GB is 1e9 bytes.
    link_bytes_per_s
        Of its links to the GPUs of its node, all together, one direction.
    power_w
        At full load.
    price_per_hour
        US dollars an hour.
    host_bytes_per_s
        To the host's memory, one direction.
    efficiency
        How far it stays below these figures.
    """

    name: str
    peak_flops_per_s: Mapping[str, Amount]
    memory_bytes: Amount
    memory_bytes_per_s: Amount
    link_bytes_per_s: Amount
    power_w: Amount = 0.0
    price_per_hour: Amount = 0.0
    host_bytes_per_s: Amount = 32e9
    efficiency: Efficiency = field(default_factory=Efficiency)

    def peak(self, precision: Precision) -> Amount:
        """Return the peak of a precision, operations a second.

        Raises
        ------
        InputError
            The GPU has no such matrix products.
        """
        if precision not in self.peak_flops_per_s:
            known = ", ".join(self.peak_flops_per_s)
            raise InputError(f"{self.name} multiplies no matrices in {precision}; expected one of {known}")
        return self.peak_flops_per_s[precision]


def clock(gpu: Gpu, other: Gpu) -> float:
    """Return how many times as high a GPU's clock is as that of another of its family with another power limit.

    Power grows with the clock and the square of the voltage, which grows with the clock.
    """
    return float((gpu.power_w / other.power_w) ** (1 / 3))


@dataclass(frozen=True, kw_only=True)
class MemoryExpansion:
    """Memory beside the GPUs' own: behind CXL, in the host, or in a pool.

    Parameters
    ----------
    capacity_bytes, bytes_per_s
        Of one device.
    shared_by
        GPUs that share the device: 1, those of a node, or all (a pool).
    """

    capacity_bytes: Amount
    bytes_per_s: Amount
    shared_by: Amount = 1

    @property
    def capacity_per_gpu(self) -> Amount:
        """Bytes for each GPU."""
        return self.capacity_bytes / self.shared_by

    @property
    def bytes_per_s_per_gpu(self) -> Amount:
        """Bandwidth for each GPU when all of them use it."""
        return self.bytes_per_s / self.shared_by


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A cluster of equal GPUs.

    Parameters
    ----------
    gpu
        Each of them.
    tiers
        Of the network, innermost first.
    expansion
        Memory beside the GPUs' own, if there is any.
    overhead_w
        Power of the rest of the cluster, for each GPU.
    power_usage_effectiveness
        Power of the building over that of the cluster.
    """

    gpu: Gpu
    tiers: tuple[Span, ...]
    expansion: MemoryExpansion | None = None
    overhead_w: Amount = 0.0
    power_usage_effectiveness: Amount = 1.0

    @property
    def num_gpus(self) -> Amount:
        """GPUs of all tiers."""
        return np.prod([tier.size for tier in self.tiers], axis=0)

    def with_efficiency(self, efficiency: Efficiency) -> Machine:
        """Return the same cluster with GPUs of another efficiency."""
        return dataclasses.replace(self, gpu=dataclasses.replace(self.gpu, efficiency=efficiency))


def operations_s(
    operation: Operation, gpu: Gpu, *, precision: Precision = "half", bytes_per_s: Amount = None
) -> Amount:
    """Return the time of an operation, seconds: the longest of computing, moving and least time; and its gaps.

    ``bytes_per_s`` stands in for the bandwidth of the GPU's own memory. With the default efficiency this is the
    roofline: operations / min(bandwidth x operations / bytes, peak).
    """
    efficiency = gpu.efficiency
    if operation.work in ("attention", "output") and precision != "single":
        precision = "half"
    bandwidth = gpu.memory_bytes_per_s if bytes_per_s is None else bytes_per_s
    passes = efficiency.sorting if operation.work == "dispatch" else 1.0
    moving_s = passes * operation.traffic_bytes / (bandwidth * efficiency.memory)
    started = np.where(np.asarray(operation.flops) > 0, operation.kernels, 0)
    flops = operation.flops * (1 + operation.odd * (efficiency.odd - 1))
    reached = gpu.peak(precision) * efficiency.share(operation.work, precision, operation.rows)
    computing_s = (flops + started * efficiency.half_flops) / reached
    cast = operation.work in ("matrix", "experts") and precision not in ("half", "single")
    casting_s = np.where(started > 0, efficiency.casting * moving_s, 0.0) if cast else 0.0
    longest_s = np.maximum(np.maximum(moving_s, computing_s), operation.kernels * efficiency.kernel_s)
    lost_s = efficiency.expert_s if operation.work == "dispatch" else efficiency.gap_s
    return longest_s + casting_s + operation.kernels * lost_s


def tiers_of_topology(
    topology: Topology | str, *, num_servers: int, gpus_per_server: int, gpu: Gpu
) -> tuple[Span, ...]:
    """Return the tiers of a cluster in a network of the simulator's.

    The GPUs of a server are one tier, at the GPU's own links, or at the ports that the topology states if these are
    slower. The servers under one switch are the next, at their network cards' bandwidth, shared by the server's GPUs.
    The switches are the next, at what their cables to other switches leave for each GPU below them. Pods, switches with
    the same ones above them, are the last if the cables of these leave less; what goes from pod to pod takes the
    switches' cables, too.

    Where NVLink joins servers (``nvl72``), they have a GPU a card and are counted anew; the tier inside is then a
    domain's: of as few as hold equally many servers each.

    Parameters
    ----------
    topology
        An instance, or a name such as ``"leaf-spine:servers_per_leaf=4"``.
    num_servers, gpus_per_server
        Counts.
    gpu
        For the bandwidth inside a server.

    Raises
    ------
    InputError
        The switches, pods or domains do not have equally many servers.
    """
    from ddlsched.network.topology import Network, bytes_per_s_from_gbps
    from ddlsched.plugins.names import resolve

    plan = resolve("topology", topology)
    name = topology if isinstance(topology, str) else type(plan).__name__
    states: Inside | None = getattr(plan, "inside", None)
    servers, each, sharing, link = [*range(num_servers)], 1, gpus_per_server, gpu.link_bytes_per_s
    link_latency_s = 0.0 if states is None else states.latency_s
    if states is not None:
        if states.servers > 1:
            servers, each, gpus_per_server = _in_domains(name, num_servers * gpus_per_server, states)
        sharing, link = max(gpus_per_server, states.cards), min(link, bytes_per_s_from_gbps(states.gpu_gbps))
    last = servers[-1]
    network, graph = Network(plan, last + 1, name=name), plan.graph(last + 1)
    cards = [[network.node((server, card)) for card in range(network.cards)] for server in range(last + 1)]
    ends = {node for own in cards for node in own}
    switch_of = {node: next(iter(graph.adj[node])) for server in servers for node in cards[server]}
    below, first = Counter(switch_of.values()), Counter(switch_of[cards[server][0]] for server in servers)
    above = {switch: frozenset(graph.adj[switch]) - ends - {*below} for switch in below}
    in_pod: Counter[frozenset[Any]] = Counter()
    for switch, count in below.items():
        in_pod[above[switch]] += count

    def upward(switches: Iterable[Any], down: Container[Any]) -> float:
        cables = (cable for switch in switches for cable in graph.adj[switch].items())
        return float(sum(data["bandwidth_bytes_per_s"] for node, data in cables if node not in down))

    own = {node: graph.edges[node, switch]["bandwidth_bytes_per_s"] for node, switch in switch_of.items()}
    shares = {switch: upward([switch], ends) / count for switch, count in below.items()}
    pod_shares = {pod: upward(pod, below) / count for pod, count in in_pod.items()}
    left = {node: min(own[node], shares[switch]) for node, switch in switch_of.items()}
    far = {node: min(left[node], pod_shares[above[switch]]) for node, switch in switch_of.items()}
    speeds = [min(sum(of[node] for node in cards[server]) for server in servers) / sharing for of in (own, left, far)]
    pods: Counter[Any] = Counter(above[switch] for switch in first)
    if not 0 < speeds[2] < (1 - 1e-9) * speeds[1]:
        pods = Counter([len(first)])
    under, uneven = divmod(first.most_common(1)[0][1], each)
    for what, counts in (("switches", first), ("pods", pods)):
        if uneven or len({*counts.values()}) > 1:
            raise InputError(
                f"topology {name}: {len(servers)} servers do not fill its {len(counts)} {what} evenly; "
                "expected equally many under each"
            )
    tiers, span = [Span(each * gpus_per_server, link, link_latency_s)], each
    for size, speed in zip((under, len(first) // len(pods), len(pods)), speeds, strict=True):
        latency_s = network.ring(sorted({0, servers[span * (size - 1)]})).latency_s / 2
        carries = len(tiers) == 2 and len(pods) > 1  # from pod to pod the racks' cables lead, too
        tiers.append(Span(size, speed, latency_s, carries))
        span *= size
    return (*tiers[:2], *(tier for tier in tiers[2:] if tier.size > 1))


def _in_domains(name: str, num_gpus: int, states: Inside) -> tuple[list[int], int, int]:
    """Return the servers that GPUs fill, how many in each of as few NVLink domains as can be, and GPUs of a server."""
    gpus, most = min(states.cards, num_gpus), states.servers
    servers, left = divmod(num_gpus, gpus)
    each = max(size for size in range(1, most + 1) if servers % size == 0)
    if left or (servers > most >= 2 * each):
        raise InputError(
            f"topology {name}: {num_gpus} GPUs do not fill NVLink domains of {most} servers of {gpus} evenly; expected "
            f"equally many servers in each, more than half of {most}, such as {servers // most + 1} times {most * gpus}"
        )
    return [start + server for start in range(0, servers // each * most, most) for server in range(each)], each, gpus
