"""Queues of tenants at full size, saturated: tenants_scale.py [--pods 50000] [--nodes 5000] [--admission kueue].

A pod is what a job has on one node, up to 8 GPUs. Jobs of 1 to 64 GPUs come 1.3 times as fast as the cluster works;
three in four have a priority. 20 queues lie in four groups below one root, with quotas in all of the cluster's GPUs,
and reclaim what they lent. Servers, racks of 25 and pods of 25 racks are three levels: a quarter of the jobs requires a
rack, a quarter prefers one. ``--placement first-fit`` looks at no levels, and then jobs ask for none.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import typer
from benchmark_tables import peak_mb

import ddlsched
from ddlsched.results.tenants import gpus_over_time

_SIZES = np.array([1, 2, 4, 8, 16, 32, 64])
_ODDS = np.array([0.3, 0.1, 0.15, 0.25, 0.1, 0.06, 0.04])
_ITERATION_S = 1.0
_RACK = 25
"""Servers of a rack, and racks of a pod."""


def queues(gpus: int, most: int = 20) -> ddlsched.Tenants:
    """Return 20 queues in four groups, whose quotas are all GPUs."""
    rules = ddlsched.Preemption(within_queue="lower-priority", reclaim="any")
    quota = {"any": ddlsched.Quota(gpus=gpus // most)}
    groups = [ddlsched.Queue(name=f"group-{number}", parent="all") for number in range(4)]
    leaves = [
        ddlsched.Queue(name=f"queue-{number}", parent=f"group-{number % 4}", quotas=quota, preemption=rules)
        for number in range(most)
    ]
    return ddlsched.Tenants(queues=(ddlsched.Queue(name="all"), *groups, *leaves))


def jobs_of(pods: int) -> int:
    """Return of how many jobs so many pods are, on average."""
    return round(pods / float((-(-_SIZES // 8) * _ODDS).sum()))


def jobs(count: int, gpus: int, load: float, *, levels: bool = False, seed: int = 0) -> ddlsched.Workload:
    """Return jobs that ask for ``load`` times what the GPUs can do; queues are chosen unevenly."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice(_SIZES, count, p=_ODDS)
    iterations = np.ceil(60 * rng.lognormal(4.0, 1.0, count)).astype(int)
    span_s = float((sizes * iterations).sum()) * _ITERATION_S / (gpus * load)
    arrivals_s = np.sort(rng.uniform(0, span_s, count))
    odds = np.arange(1, 21) / np.arange(1, 21).sum()
    names, priorities = rng.choice(20, count, p=odds), rng.integers(0, 4, count)
    asks = rng.integers(0, 4, count) if levels else np.zeros(count, int)
    step = ddlsched.DataParallelIteration(forward_s=_ITERATION_S / 3, backward_s=_ITERATION_S * 2 / 3, message_bytes=0)
    return ddlsched.Workload.of(
        [
            ddlsched.Job(
                job_id=f"job-{number}",
                arrival_s=float(arrivals_s[number]),
                num_gpus=int(sizes[number]),
                iterations=int(iterations[number]),
                iteration=step,
                gpu_memory_mb=1.0,
                queue=f"queue-{names[number]}",
                priority=int(priorities[number]),
                required_levels="rack" if asks[number] == 1 else None,
                preferred_levels="rack" if asks[number] == 2 else None,
            )
            for number in range(count)
        ]
    )


def main(
    pods: int = 50_000,
    number: Annotated[int, typer.Option("--jobs", help="rather than pods")] = 0,
    nodes: int = 5_000,
    load: float = 1.3,
    admission: str = "kueue",
    placement: str = "kueue-topology",
) -> None:
    """Print CPU seconds, memory, and how many preemptions there were."""
    levels = placement != "first-fit"
    topology = f"clos:servers_per_rack={_RACK},racks_per_pod={_RACK}" if levels else "star"
    cluster = ddlsched.Cluster(num_servers=nodes, gpus_per_server=8, exclusive=True, topology=topology)
    count = number or jobs_of(pods)
    tenants, workload = queues(cluster.num_gpus), jobs(count, cluster.num_gpus, load, levels=levels)
    policies = {"placement": placement, "admission": admission}
    begin_s = time.process_time()
    result = ddlsched.simulate(workload, cluster, queues=tenants, **policies)
    cpu_s = time.process_time() - begin_s
    used, last_s = gpus_over_time(result).sum(axis=1), float(result.jobs["arrival_s"].max())
    spans_s = np.diff(np.append(np.minimum(used.index, last_s), last_s))
    restarts = result.jobs["restarts"]
    print(
        f"{admission}, {placement}: {len(workload)} jobs, {nodes} servers, "
        f"{cpu_s:.1f} s of CPU, {peak_mb():.0f} MB, {restarts.sum():.0f} preemptions of "
        f"{(restarts > 0).sum()} jobs, at most {restarts.max():.0f} of one, until the last job came "
        f"{used @ spans_s / last_s / cluster.num_gpus:.2f} of the GPUs in use"
    )


if __name__ == "__main__":
    typer.run(main)
