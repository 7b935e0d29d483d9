from __future__ import annotations

import pytest

from algorithms.allocation.count_programme import CountProgramme, LinkAware
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from ddlsched.workload.job import Workload


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "leaf_mates"), [(LinkAware(lookahead_s=1000.0), True), (CountProgramme(lookahead_s=1000.0), False)]
)
def test_a_growing_job_stays_on_its_leaf(policy, leaf_mates) -> None:
    job = ElasticJob(
        job_id="a",
        arrival_s=0.0,
        samples=100_000,
        curve=LinearCurve(fixed_s=0.0, sample_s=0.01),
        gpu_batch=50,
        max_gpus=4,
        message_bytes=1e6,
    )
    held = []

    class Watching:
        def begin(self, cluster, rng):
            self.asked = policy.begin(cluster, rng)
            return self

        def allocate(self, jobs, capacity, now_s):
            held.extend(view.gpus for view in jobs if view.gpus)
            return self.asked.allocate(jobs, capacity, now_s)

    late = [(node, 100.0, 1e6) for node in (0, 1, 6, 7)] + [(node, 200.0, 1e6) for node in (2,)]
    simulate(
        Workload([job]),
        Cluster(num_servers=8, gpus_per_server=1, topology="leaf-spine:servers_per_leaf=4,oversubscription=4"),
        allocation=Watching(),
        capacity=CapacityTrace.of([(4, 0.0, 1e6), (5, 0.0, 1e6), *late]),
    )
    assert held[0] == (4, 5)
    assert (held[-1] == (4, 5, 6, 7)) is leaf_mates


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="most_jobs is 0"):
        LinkAware(most_jobs=0)
