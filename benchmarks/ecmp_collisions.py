"""How often ECMP puts flows on one path, beside the computed odds: ``ecmp_collisions.py``.

Each of n jobs sends from a server of the first leaf to one of the second, over s spines; a cable to a spine is as fast
as a card, so that a ring takes as many times as long as there are flows on its busiest cable. Counted are the bytes on
the cables of whole runs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import prod

import numpy as np
from benchmark_tables import Table, say

import ddlsched
from ddlsched.policies.views import ClusterView, JobView
from topologies.leaf_spine import LeafSpine

CASES = ((4, 8), (8, 8), (8, 16), (8, 32), (8, 64), (16, 16), (32, 32), (64, 16))
MESSAGE_BYTES = 1e9


@dataclass(frozen=True, kw_only=True)
class AcrossLeaves:
    """Job i on server i of either leaf."""

    def place(self, job: JobView, cluster: ClusterView) -> list[int]:
        """Return the two GPUs."""
        return [job.number, cluster.num_gpus // 2 + job.number]


def flows_on_spines(flows: int, spines: int, seed: int) -> np.ndarray:
    """Return how many of the flows from the first leaf ECMP puts on each spine, by its bytes."""
    iteration = ddlsched.DataParallelIteration(forward_s=0.0, backward_s=1.0, message_bytes=MESSAGE_BYTES)
    jobs = [
        ddlsched.Job(job_id=str(n), arrival_s=0.0, num_gpus=2, iterations=1, iteration=iteration, gpu_memory_mb=1.0)
        for n in range(flows)
    ]
    topology = LeafSpine(servers_per_leaf=flows, spines=spines, oversubscription=flows / spines)
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=2 * flows, gpus_per_server=1, topology=topology),
        placement=AcrossLeaves(),
        communication="bounded-overlap:limit=1000",
        contention="max-min",
        path="ecmp",
        seed=seed,
    )
    links = result.links.set_index("link")["bytes"]
    return np.array([round(links[f"leaf 0 to spine {spine}"] / MESSAGE_BYTES) for spine in range(spines)])


def computed_share(flows: int, spines: int) -> float:
    """Return the probability that two of the flows share a spine."""
    return 1.0 - prod(1.0 - flow / spines for flow in range(flows))


def computed_most(flows: int, spines: int, draws: int = 20_000) -> float:
    """Return the mean of the largest count, of as many independent draws."""
    counts = np.random.default_rng(0).multinomial(flows, [1.0 / spines] * spines, size=draws)
    return float(counts.max(axis=1).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="runs of each case")
    seeds = range(parser.parse_args().seeds)
    rows = []
    for flows, spines in CASES:
        say(f"{flows} flows on {spines} spines")
        counts = [flows_on_spines(flows, spines, seed).max() for seed in seeds]
        shared = f"{100 * computed_share(flows, spines):.1f} %", f"{100 * np.mean(np.array(counts) > 1):.1f} %"
        most = f"{computed_most(flows, spines):.2f}", f"{np.mean(counts):.2f}"
        rows.append([f"{flows} on {spines}", *shared, *most])
    columns = ("flows on paths", "two share one, computed", "in runs", "mean most on one, computed", "in runs")
    note = (
        f"{len(seeds)} seeds each, so that a share of one half is known to about {100 / len(seeds) ** 0.5:.0f} points."
    )
    print(Table(title="ECMP: flows that share a path", columns=columns, rows=rows, notes=[note]))


if __name__ == "__main__":
    main()
