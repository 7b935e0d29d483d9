"""Switches add up what ranks send, and copy what goes to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from algorithms.collective import by_server, gates_of
from ddlsched.network.collectives import Message, Phase, Rank
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class InNetwork(Checked, who="in-network"):
    """Reduction in the network: every card sends the message once and gets it once, however many ranks.

    The tree is that of the routes to the first rank's server and back, so that a link between switches carries the
    message once in each direction it is used. Inside servers the GPUs' switch does the same (NVLS), on both sides of
    a server's cards; each card takes an equal part. There a GPU's own part of an all-reduce goes to the switch and
    comes back as well: a port moves (n + 1) / n of the message. That switches can do it is assumed.

    Parameters
    ----------
    port_share
        Share of a port's bandwidth that this reaches: its bytes count as so many more. A fit to 5 to 8 H100, of the
        data sheet's 3600 Gbit/s; Blackwell's reach 0.597, 72 GPUs less (``experiments/collectives/bus_bandwidth.py``).
        Where links are given as rings reach them, as `estimate` has them, it is as much more.

    References
    ----------
    Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COM-HPC 2016. Klenk, Jiang, Thorson, Dennison,
    "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor Collectives", ISCA 2020.
    """

    port_share: float = ranged(0.686, 0.0, 1.0, above=True)
    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("all-reduce", "broadcast")

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return what goes up to the first rank's server and down again, inside servers and between them."""
        root, servers = ranks[0], by_server(ranks, ranks[0].server)
        lanes, up = gates_of(servers), list[Phase]()
        part, whole = message.bytes / len(lanes), kind == "all-reduce"
        by_port = {number: part / self.port_share * (1 + whole / len(own)) for number, own in servers.items()}
        for number, lane in enumerate(lanes):  # which have trees of their own, and go at once
            hubs = [root if kind == "broadcast" and gate.server == root.server else gate for gate in lane]
            inside = [(rank, hub, by_port[hub.server]) for hub in hubs for rank in servers[hub.server] if rank != hub]
            outside = [(gate, lane[0], part) for gate in lane[1:]]
            up += [Phase(flows, int(number == 0 and bool(flows)), merged=True) for flows in (inside, outside)]
        down = [phase._replace(flows=[(b, a, sent) for a, b, sent in phase.flows]) for phase in up]
        return [*up, *down] if whole else down
