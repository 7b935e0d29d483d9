"""How often ECMP puts flows on one path, beside the computed odds; counted are the bytes on cables of whole runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

import ddlsched
from ddlsched.policies.views import ClusterView, JobView
from topologies.leaf_spine import LeafSpine

MESSAGE_BYTES = 1e9


@dataclass(frozen=True, kw_only=True)
class AcrossLeaves:
    """Job i on server i of either leaf."""

    def place(self, job: JobView, cluster: ClusterView) -> list[int]:
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


@pytest.mark.slow
def test_ecmp_collides_as_often_as_computed() -> None:
    """Of 4 flows on 8 spines two share one in 59 % of cases."""
    assert computed_share(4, 8) == pytest.approx(1 - 8 * 7 * 6 * 5 / 8**4) == pytest.approx(0.590, abs=5e-4)
    counts = [flows_on_spines(4, 8, seed) for seed in range(100)]
    assert all(count.sum() == 4 for count in counts)
    shared = np.mean([count.max() > 1 for count in counts])
    assert shared == pytest.approx(0.590, abs=3 * (0.59 * 0.41 / 100) ** 0.5)
    assert np.mean([count.max() for count in counts]) == pytest.approx(computed_most(4, 8), abs=0.2)
