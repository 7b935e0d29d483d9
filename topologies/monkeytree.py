"""The network that MonkeyTree was evaluated on: 16 racks of 64 GPUs under 16 spines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import bytes_per_s_from_gbps
from ddlsched.ranges import Checked, ranged
from topologies.leaf_spine import TwoTiers


@dataclass(frozen=True, kw_only=True)
class MonkeyTree(TwoTiers, Checked, who="monkeytree"):
    """Racks of 8 servers of 8 GPUs; every rack has one cable to every spine. Give the cluster 8 GPUs a server.

    A rack has a card a GPU, 64 x 400 Gbit/s, and 16 x 400 Gbit/s up: 4:1. A server has one link here, that of one
    card, since a job's one ring enters and leaves each of its servers by one; jobs have whole servers there, so that no
    other ring crosses it. What waits for several links a server: jobs of several rings (up to 8, with tensor
    parallelism), without which a rack's 8 servers send at most 8 rings up.

    A transfer to server d of another rack takes spine d mod ``spines``, unless a path policy (``--path``) chooses.

    Parameters
    ----------
    racks
        From 1 to 1024.
    servers_per_rack
        From 1 to 1024.
    spines
        Spine switches, from 1 to 1024.
    nic_gbps
        Bandwidth of a card, and of a cable to a spine, Gbit/s.
    latency_s
        Of each cable, seconds.

    References
    ----------
    Zabreyko, Wang, Ghobadi, "MonkeyTree", arXiv 2602.08296.
    """

    racks: int = ranged(16, 1, 1024)
    servers_per_rack: int = ranged(8, 1, 1024)
    spines: int = ranged(16, 1, 1024)
    nic_gbps: float = ranged(400.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    tier: ClassVar[str] = "rack"

    @property
    def _servers_below(self) -> int:
        return self.servers_per_rack

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; racks are nodes ``"rack i"``, spines ``"spine i"``.

        Raises
        ------
        InputError
            More servers than the racks hold.
        """
        holds = self.racks * self.servers_per_rack
        if num_servers > holds:
            raise InputError(f"monkeytree: {self.racks} racks hold {holds} servers, not {num_servers}; give more racks")
        cable = bytes_per_s_from_gbps(self.nic_gbps)
        return self._cabled(num_servers, cable, cable)
