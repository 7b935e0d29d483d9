"""
A network of your own
=====================

Two racks with one cable between them, thinner and thinner. The class can also lie in a file:
``--topology net.py:TwoRacks:between_gbps=10``.
"""

from dataclasses import dataclass

import networkx as nx

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure


@dataclass(frozen=True, kw_only=True)
class TwoRacks:
    """Servers 0, 2, ... are in one rack, 1, 3, ... in the other."""

    between_gbps: float

    def graph(self, num_servers):
        graph = nx.Graph()
        for server in range(num_servers):
            graph.add_edge(server, f"rack {server % 2}", bandwidth_bytes_per_s=10e9 / 8, latency_s=0.0)
        graph.add_edge("rack 0", "rack 1", bandwidth_bytes_per_s=self.between_gbps * 1e9 / 8, latency_s=0.0)
        return graph

    def route(self, graph, source, target):
        return nx.shortest_path(graph, source, target)


jobs = ddlsched.microsoft_160(seed=1, scale=0.01)
gbps = [40, 20, 10, 5]
runs = [ddlsched.simulate(jobs, topology=TwoRacks(between_gbps=each), contention="max-min") for each in gbps]
means_s = [run.summary()["average_jct_s"] for run in runs]
print(dict(zip(gbps, means_s, strict=True)))

with in_style():
    figure, axes = new_figure(2.0)
    axes.bar([f"{each} Gbit/s" for each in gbps], means_s, color=PALETTE["blue"])
    axes.set_ylabel("Average JCT (s)")
