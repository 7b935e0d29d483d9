"""The k-ary fat-tree of commodity switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import bytes_per_s_from_gbps
from ddlsched.ranges import check_fields, ranged
from topologies.clos import Shape, ThreeTiers


@dataclass(frozen=True, kw_only=True)
class FatTree(ThreeTiers):
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4 places for servers.

    Routes are destination-based, as in the paper's two-level tables: a transfer to place p of its edge
    switch goes over aggregation switch p and, between pods, over core switch (edge number of the target).

    Parameters
    ----------
    k
        Ports of a switch, even, at most 256; 0 takes the smallest that holds the servers.
    nic_gbps
        Bandwidth of each server's network card, Gbit/s.
    oversubscription
        Bandwidth of an edge switch's servers over that of its cables upwards; the tiers above add none.
    latency_s
        Of each cable, seconds.

    References
    ----------
    Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network architecture", SIGCOMM 2008.
    """

    k: int = ranged(0, 0, 256)
    nic_gbps: float = ranged(10.0, 0.0, above=True)
    oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)
    tier: ClassVar[str] = "edge"

    def __post_init__(self) -> None:
        check_fields(self, "fat-tree")
        if self.k % 2:
            raise InputError(f"fat-tree: k is {self.k}; expected an even number, or 0 for the smallest that fits")

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph.

        Raises
        ------
        InputError
            More servers than k^3/4.
        """
        half = self._shape(num_servers).cores
        if num_servers > 2 * half**3:
            raise InputError(f"fat-tree: k={2 * half} holds {2 * half**3} servers, not {num_servers}; give a larger k")
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        return self._cabled(num_servers, nic, nic / self.oversubscription, nic / self.oversubscription)

    def _shape(self, num_servers: int) -> Shape:
        sizes = range(1, num_servers + 1)
        half = self.k // 2 or next(half for half in sizes if 2 * half**3 >= num_servers)
        return Shape(half, half, half, half)
