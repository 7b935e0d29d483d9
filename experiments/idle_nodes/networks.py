"""What the network does to jobs whose gradients cross it, on a part of the nodes and at several times."""

from __future__ import annotations

from itertools import product

import pandas as pd
from beyond import MOST_JOBS
from inputs import Inputs
from on_engine import Watched
from parallel import Workers

from algorithms.allocation.count_programme import CountProgramme, LinkAware
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, LinearCurve
from ddlsched.workload.job import Workload

NETWORKS = {
    "star": "star",
    "leaf-spine 4:1": "leaf-spine:servers_per_leaf=16,oversubscription=4",
    "leaf-spine 16:1": "leaf-spine:servers_per_leaf=16,oversubscription=16",
}
CHOICES = {"counts alone": CountProgramme(lookahead_s=120.0), "link-aware": LinkAware(lookahead_s=120.0)}
NODES, WINDOWS = 128, 24


def topology(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return the samples/s of ten jobs whose gradients cross the network, by network, choice of nodes, and window.

    The windows share the whole trace among them; those in which no node is idle are left out.
    """
    nodes = inputs.all_nodes.of_nodes(0, NODES)
    window_s = float(nodes.idle_to_s.max()) / WINDOWS
    parts = {n: nodes.since(n * window_s).between(0.0, window_s) for n in range(WINDOWS)}
    settings = list(product([n for n, idle in parts.items() if len(idle)], NETWORKS, CHOICES))
    calls = [(parts[window], network, choice, window_s) for window, network, choice in settings]
    rates = workers.do("topology", samples_per_s, calls)
    rows = [
        {"window": window, "begin_h": window * window_s / 3600, "network": network, "nodes_by": choice}
        for window, network, choice in settings
    ]
    return pd.DataFrame(rows).assign(samples_per_s=rates)


def samples_per_s(idle: IdleTrace, network: str, choice: str, until_s: float) -> float:
    """Return the rate over one window."""
    curve = LinearCurve(fixed_s=0.1, sample_s=0.01)
    jobs = [
        ElasticJob(
            job_id=f"t{j}", arrival_s=0.0, samples=10**8, curve=curve, gpu_batch=64, max_gpus=32, message_bytes=100e6
        )
        for j in range(MOST_JOBS)
    ]
    watched = Watched(policy=CHOICES[choice])
    simulate(
        Workload(jobs),
        Cluster(num_servers=NODES, gpus_per_server=1, topology=NETWORKS[network]),
        allocation=watched,
        communication="bounded-overlap:limit=1000000",
        contention="max-min",
        rescale_cost=ConstantRescaleCost(up_s=18.0, down_s=12.0),
        capacity=idle.capacity(),
        until_s=until_s,
    )
    return watched.seen["trained"] / watched.seen["until_s"]
