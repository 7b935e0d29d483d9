"""Random mixes of jobs that contend, on small clusters of several networks; a seed is a mix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.network.topology import Network
from ddlsched.real.testbed.cabling import scaled
from ddlsched.real.testbed.fidelity import Mix
from ddlsched.real.testbed.measuring import Pinned
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

SCALE = 0.01
"""10 Gbit/s become 100 Mbit/s."""
LEAVES = "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=2"
CLUSTERS = {
    "star-4": (4, "star"),
    "star-6": (6, "star"),
    "star-8": (8, "star"),
    "leaves-4": (4, LEAVES),
    "leaves-8": (8, LEAVES),
}
CALIBRATED = "star-4"
"""On which jobs alone and pairs are measured; every card is alike."""
MOST_JOBS = 6
GPUS_PER_SERVER = 2
"""With processor slots: jobs that share a GPU compute one at a time, as they do in a simulation."""
POLICIES: dict[str, dict[str, Any]] = {
    "free overlap": {"communication": "bounded-overlap:limit=1000", "order": "srsf"},
    "SRSF(1)": {"communication": "bounded-overlap:limit=1", "order": "srsf"},
    "AdaDUAL": {"communication": "adadual", "order": "srsf"},
    "preemptive by time": {"communication": "preemptive:by=time", "order": "srsf"},
    "Block-SRTF": {"scheduler": "block-srtf"},
}
"""All but the last, which places jobs itself, run them where the mix has them."""
BASELINE = "free overlap"


@dataclass(frozen=True)
class Draw:
    """What mixes are drawn from.

    Parameters
    ----------
    alone_s
        Least and most time that a job takes alone, seconds.
    message_mb
        Least and most of an all-reduce, MB; drawn evenly by logarithm, as is the next.
    compute_ratio
        Compute over communication of an iteration alone.
    """

    alone_s: tuple[float, float] = (5.0, 9.0)
    message_mb: tuple[float, float] = (0.2, 2.4)
    compute_ratio: tuple[float, float] = (0.2, 3.0)


FULL = Draw()
QUICK = Draw(alone_s=(1.5, 2.5))


def cluster_of(name: str) -> Cluster:
    """Return a cluster by its name."""
    servers, topology = CLUSTERS[name]
    return scaled(Cluster(num_servers=servers, gpus_per_server=GPUS_PER_SERVER, topology=topology), SCALE)


def held_out(seed: int) -> bool:
    """Return whether a mix is for judging models, and not for choosing them."""
    return seed % 2 == 1


def seed_of(name: str) -> int:
    """Return the seed of a mix by its name."""
    return int(name.removeprefix("seed-"))


def cluster_name(seed: int) -> str:
    """Return the cluster of a mix; held-out mixes are spread over all as the others are."""
    return list(CLUSTERS)[seed // 2 % len(CLUSTERS)]


def mix_of(seed: int, policies: tuple[str, ...], draw: Draw = FULL) -> Mix:
    """Return the mix of a seed under some policies."""
    rng = np.random.default_rng([2311, seed])
    cluster = cluster_of(cluster_name(seed))
    network = Network(cluster.topology, cluster.num_servers)
    late = bool(rng.random() < 0.5)
    jobs, where = [], {}
    for number in range(rng.integers(2, MOST_JOBS + 1)):
        servers = sorted(rng.choice(cluster.num_servers, rng.integers(2, 5), replace=False).tolist())
        job = job_of(f"job-{number}", len(servers), network.nic_bytes_per_s, rng, draw, late and number > 0)
        jobs.append(job)
        where[job.job_id] = tuple(servers)
    given = {name: {**POLICIES[name], "slots": True} for name in policies}
    for chosen in given.values():
        if "scheduler" not in chosen:
            chosen["placement"] = Pinned(servers=where)
    return Mix(name=f"seed-{seed}", workload=Workload.of(jobs), cluster=cluster, policies=given)


def job_of(name: str, servers: int, bytes_per_s: float, rng: np.random.Generator, draw: Draw, late: bool) -> Job:
    """Return a job on so many servers, whose cards carry so much; ``late`` if it may arrive after the first."""
    message_bytes = round(1e6 * _log_uniform(rng, draw.message_mb))
    reduce_s = message_bytes * 2 * (servers - 1) / servers / bytes_per_s
    compute_s = reduce_s * _log_uniform(rng, draw.compute_ratio)
    alone_s = rng.uniform(*draw.alone_s)
    buckets = int(rng.integers(2, 5)) if rng.random() < 0.2 else 1
    return Job(
        job_id=name,
        arrival_s=round(rng.uniform(0, alone_s / 2), 3) if late else 0.0,
        num_gpus=servers,
        iterations=max(round(alone_s / (compute_s + reduce_s)), 3),
        iteration=DataParallelIteration(
            forward_s=round(compute_s / 3, 6),
            backward_s=round(compute_s * 2 / 3, 6),
            message_bytes=message_bytes,
            buckets=buckets,
        ),
        gpu_memory_mb=100.0,
    )


def _log_uniform(rng: np.random.Generator, ends: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(ends))))
