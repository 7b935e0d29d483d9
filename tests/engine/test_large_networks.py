"""Networks of many links, where most links sleep and refused transfers wait on one, against the reference simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from reference_simulator import reference_simulate
from runs_of_settings import assert_agrees
from tiers import tried

import ddlsched
from algorithms.path.ecmp import Ecmp, Sglb
from algorithms.path.least_congested import LeastCongested
from ddlsched.engine.loop.sharing.small_components import MOST_LINKS
from ddlsched.network.contention import Linear, MaxMin
from ddlsched.network.weighted_shares import Mltcp, StrictLevels
from topologies.clos import Clos
from topologies.star import Star

MODELS = (MaxMin(), MaxMin(latency_s=1e-4), Mltcp(message_parts=2), StrictLevels(by="gpus", first=4.0))
PATHS = (None, Ecmp(), LeastCongested(), Sglb())
NUM_SERVERS = 40


def jobs(seed: int) -> ddlsched.Workload:
    """Jobs of 2 to 24 GPUs whose transfers take about as long as their computing, some in buckets."""
    rng = np.random.default_rng(seed)
    return ddlsched.Workload.of(
        [
            ddlsched.Job(
                job_id=f"j{n}",
                arrival_s=float(rng.choice([0.0, 0.1, 0.35])),
                num_gpus=int(rng.choice([2, 3, 5, 8, 16, 24])),
                iterations=int(rng.integers(2, 9)),
                iteration=ddlsched.DataParallelIteration(
                    forward_s=float(rng.choice([0.01, 0.03])),
                    backward_s=float(rng.choice([0.02, 0.05])),
                    message_bytes=float(rng.choice([5e7, 1e8, 2.5e8])),
                    buckets=int(rng.choice([1, 1, 3])),
                ),
                gpu_memory_mb=1.0,
            )
            for n in range(14)
        ]
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", tried(range(16), lambda seed: seed % 5 == 0))
def test_the_engine_agrees_with_the_reference(seed: int) -> None:
    topology = Clos(servers_per_rack=4, racks_per_pod=2, rack_oversubscription=2.0, nic_gbps=10.0)
    cluster = ddlsched.Cluster(num_servers=NUM_SERVERS, gpus_per_server=2, topology=topology, exclusive=seed % 2 == 0)
    policies = {
        "placement": ("first-fit", "lwf:kappa=1")[seed % 2],
        "order": "srsf",
        "communication": "bounded-overlap:limit=99",
        "contention": MODELS[seed % 4],
        "path": PATHS[seed // 4],
    }
    result = ddlsched.simulate(jobs(seed), cluster, seed=seed, **policies)
    assert len(result.links) > MOST_LINKS
    assert_agrees(result, reference_simulate(jobs(seed), cluster, topology=topology, seed=seed, **policies))


@dataclass(frozen=True, kw_only=True)
class LargeOnesAlone:
    """Lets a transfer of more than ``most_bytes`` start on free links only, others beside two more."""

    refusal_lasts: ClassVar[bool] = True
    most_bytes: float = 9e7

    def admit(self, transfer: Any, network: Any) -> bool:
        return network.most_on_links_of(transfer) < (1 if transfer.message_bytes > self.most_bytes else 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", tried(range(8), lambda seed: seed % 7 == 0))
@pytest.mark.parametrize("communication", ["bounded-overlap:limit=1", "bounded-overlap:limit=2", LargeOnesAlone()])
def test_refused_transfers_start_when_they_do_in_the_reference(seed: int, communication: Any) -> None:
    cluster = ddlsched.Cluster(num_servers=16, gpus_per_server=3, exclusive=seed % 4 < 2)
    policies = {
        "placement": ("first-fit", "lwf:kappa=1")[seed % 2],
        "order": ("srsf", "fifo")[seed // 2 % 2],
        "communication": communication,
        "contention": Linear(),
    }
    result = ddlsched.simulate(jobs(seed), cluster, seed=seed, **policies)
    assert result.finished.state.run[0].refused_by_link
    assert result.jobs.network_wait_s.sum() > 0
    assert_agrees(result, reference_simulate(jobs(seed), cluster, topology=Star(), seed=seed, **policies))
