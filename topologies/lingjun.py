"""The labels of Alibaba's Lingjun dataset as a network: racks (ASW) in three groups (PSW) under one DSW."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ddlsched.errors import InputError
from ddlsched.network.topology import Node, bytes_per_s_from_gbps
from ddlsched.ranges import Checked, ranged

_GROUPS = {"P8": (179, 29), "P10": (362, 48), "P12": (306, 42)}
"""Hosts and racks of each PSW label."""


def _first_hosts() -> tuple[list[int], list[str]]:
    """Return the first host of each rack, and each rack's name."""
    firsts, racks, first = [], [], 0
    for group, (hosts, count) in _GROUPS.items():
        for rack in range(count):
            firsts.append(first + hosts * rack // count)
            racks.append(f"ASW {group}.{rack + 1}")
        first += hosts
    return firsts, racks


_FIRSTS, _RACKS = _first_hosts()
_MOST_HOSTS = sum(hosts for hosts, _ in _GROUPS.values())


@dataclass(frozen=True, kw_only=True)
class Lingjun(Checked, who="lingjun"):
    """847 hosts in 29, 48 and 42 racks of three groups; smaller clusters take the first of them.

    Published are the labels of each host. They name groups, not single switches, so each is one node of the bandwidth
    of all its switches, and a route is the way up and down the tree. The dataset has no link speeds, no cards and no
    GPUs a host; guessed here are: 800 Gbit/s a host (4 x 200, the Crux paper's testbed), no oversubscription, and racks
    of a group whose sizes differ by at most one (in the dataset they have 2 to 8 hosts).

    Parameters
    ----------
    nic_gbps
        Bandwidth of a host's network cards together, Gbit/s.
    rack_oversubscription
        Bandwidth of 8 hosts, a full rack, over that of a rack's cable to its group.
    group_oversubscription
        Bandwidth of a group's cables to racks over that of its cable to the DSW.
    latency_s
        Of each cable, seconds.

    References
    ----------
    github.com/alibaba/alibaba-lingjun-dataset-2023, topo.csv; Cao et al., "Crux", SIGCOMM 2024.
    """

    nic_gbps: float = ranged(800.0, 0.0, above=True)
    rack_oversubscription: float = ranged(1.0, 0.0, above=True)
    group_oversubscription: float = ranged(1.0, 0.0, above=True)
    latency_s: float = ranged(0.0, 0.0, 1e6)

    def graph(self, num_servers: int) -> nx.Graph[Any]:
        """Return the graph; nodes are ``"ASW P8.1"``, ``"PSW P8"`` and ``"DSW"``.

        Raises
        ------
        InputError
            More servers than the dataset has.
        """
        if num_servers > _MOST_HOSTS:
            raise InputError(f"lingjun: the dataset has {_MOST_HOSTS} hosts, not {num_servers}; give fewer servers")
        nic = bytes_per_s_from_gbps(self.nic_gbps)
        rack_up = 8 * nic / self.rack_oversubscription
        graph: nx.Graph[Any] = nx.Graph()
        for server in range(num_servers):
            rack = _rack(server)
            graph.add_edge(server, rack, bandwidth_bytes_per_s=nic, latency_s=self.latency_s)
            graph.add_edge(rack, _group(rack), bandwidth_bytes_per_s=rack_up, latency_s=self.latency_s)
        for group, (_, racks) in _GROUPS.items():
            if f"PSW {group}" in graph:
                up = rack_up * racks / self.group_oversubscription
                graph.add_edge(f"PSW {group}", "DSW", bandwidth_bytes_per_s=up, latency_s=self.latency_s)
        return graph

    def levels(self, num_servers: int) -> dict[str, list[int]]:
        """Return the rack and pod (its group) of each server."""
        return {
            "rack": [_RACKS.index(_rack(server)) for server in range(num_servers)],
            "pod": [list(_GROUPS).index(_group(_rack(server)).removeprefix("PSW ")) for server in range(num_servers)],
        }

    def route(self, graph: nx.Graph[Any], source: int, target: int) -> Sequence[Node]:
        """Return the way up to the lowest label that both hosts have, and down."""
        up, down = _rack(source), _rack(target)
        if up == down:
            return source, up, target
        if _group(up) == _group(down):
            return source, up, _group(up), down, target
        return source, up, _group(up), "DSW", _group(down), down, target


def _rack(server: int) -> str:
    return _RACKS[bisect_right(_FIRSTS, server) - 1]


def _group(rack: str) -> str:
    return f"PSW {rack.removeprefix('ASW ').partition('.')[0]}"
