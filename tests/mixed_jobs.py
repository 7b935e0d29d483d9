"""Jobs, tenants and a cluster of two pods in which much happens at once: for runs whose numbers are kept."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ddlsched import (
    Cluster,
    CollectiveTask,
    ComputeTask,
    DataParallelIteration,
    Disturbances,
    IterationDag,
    Job,
    Preemption,
    Queue,
    Quota,
    Tenants,
    Workload,
)
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.plugins.names import resolve
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve

NUM_JOBS = 36


@cache
def jobs(*, tiers: bool) -> Workload:
    """Jobs of which many are alike in some way; ``tiers``: they ask for levels of the network."""
    rng, made = np.random.default_rng(35), []
    for number in range(NUM_JOBS):
        gpus = int(rng.choice([1, 2, 2, 3, 4, 4, 6, 7, 8, 12]))
        passes = float(rng.choice([0.02, 0.04, 0.1]))
        step: Any = DataParallelIteration(
            forward_s=passes,
            backward_s=2 * passes,
            message_bytes=float(rng.choice([0.0, 1e7, 1e8, 4e8, 4e8])),
            buckets=2,
        )
        iterations = int(rng.choice([3, 12, 12, 30]))
        where = rng.choice(["", "rack", "server", "pod"]) if tiers and gpus in (2, 4) else ""
        made.append(
            Job(
                job_id=f"j{number}",
                arrival_s=float(rng.choice([0.0, 0.0, 0.5, 2.0, rng.uniform(0, 6)])),
                num_gpus=gpus,
                iterations=iterations,
                iteration=step,
                gpu_memory_mb=float(rng.choice([3000.0, 9000.0, 17000.0])),
                model=f"m{number % 4}",
                user=f"u{number % 3}",
                time_limit_s=3 * passes * iterations * float(rng.choice([1.0, 1.5, 4.0])),
                queue="abc"[int(rng.integers(3))],
                priority=int(rng.choice([0, 0, 1, 5, 120])),
                **{"required_levels" if number % 2 else "preferred_levels": str(where)} if where else {},
            )
        )
    return Workload.of(made)


TENANTS = Tenants(
    queues=(
        Queue(name="all"),
        Queue(name="few", parent="all"),
        Queue(name="a", parent="few", quotas={"any": Quota(gpus=8)}, preemption=Preemption(reclaim="any")),
        Queue(
            name="b", parent="few", quotas={"any": Quota(gpus=6, borrowing_limit=6)}, weight=2.0,
            preemption=Preemption(within_queue="lower-priority", reclaim="lower-priority", borrow="lower-priority"),
        ),
        Queue(name="c", parent="all", quotas={"any": Quota(gpus=10, lending_limit=4)}, order="strict"),
    )
)  # fmt: skip
GROUND = Cluster(
    num_servers=8,
    gpus_per_server=4,
    topology="clos:servers_per_rack=2,racks_per_pod=2,nic_gbps=10,rack_oversubscription=2",
)


FAILING = Disturbances(
    server_mtbf_s=40.0,
    server_repair_s=5.0,
    restart_s=0.5,
    state_mb=50.0,
    jitter_cv=0.1,
    straggler_share=0.2,
    checkpoint="fixed:every_s=3",
    recovery="shrink:least_share=0.4",
)
RAILS = replace(GROUND, topology="rail-optimised:hosts_per_unit=2,rails=4,spines=2,rail_gbps=50,nvlink_gbps=400")
CAPACITY = CapacityTrace.of(
    [(s, 0.0 if s < 5 else 3.0, 9.0 if s in (1, 6) else 1e5) for s in range(8)] + [(1, 20.0, 90.0)]
)


@cache
def elastic_jobs() -> Workload:
    rng = np.random.default_rng(53)
    return Workload.of(
        ElasticJob(
            job_id=f"e{number}",
            arrival_s=float(rng.choice([0.0, 4.0, 15.0])),
            samples=int(rng.choice([2_000, 9_000, 30_000])),
            curve=LinearCurve(fixed_s=0.02, sample_s=float(rng.choice([0.005, 0.01]))),
            gpu_batch=int(rng.choice([8, 32])),
            max_gpus=int(rng.choice([1, 2, 4, 8])),
            max_batch=256,
            message_bytes=float(rng.choice([0.0, 99.2e6])),
        )
        for number in range(10)
    )


def sending(algorithm: str) -> Workload:
    """All kinds of collectives, large and small, of jobs that share servers."""
    made = []
    for number, gpus in enumerate((2, 3, 6, 8, 8, 16)):
        tasks = [ComputeTask(name="compute", duration_ns=1_000_000)]
        for place, kind in enumerate(resolve("collective", algorithm).kinds):
            if kind == "send":
                continue
            size = (1e4, 3e7, 1e6)[(number + place) % 3]
            tasks.append(
                CollectiveTask(name=kind, kind=kind, message_bytes=size, algorithm=algorithm, after=(tasks[-1].name,))
            )
        step = IterationDag(tuple(tasks))
        job = Job(job_id=f"s{number}", arrival_s=0.0, num_gpus=gpus, iterations=2, iteration=step, gpu_memory_mb=9000.0)
        made.append(job)
    return Workload.of(made)
