"""CPU seconds of runs that ask for much, each after a short one that compiles: ``cpu_seconds.py [--only PART ...]``.

``queue``: placements that know the queue, on a stream of 1.5 times what 64 exclusive GPUs can do, which leaves about a
third of its jobs waiting. ``elastic``: nodes that come and go, on which nearly every change resizes jobs. ``traced``:
100 jobs of iterations as recorded ones have, of 601 tasks, on 1,024 GPUs; half of them share their network cards.
``networks``: the jobs of the 64-GPU experiment where switches are links, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from benchmark_tables import Table, say, timed

import ddlsched
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, ThroughputCurve
from ddlsched.workload.generators.microsoft import microsoft_160
from experiments.arena.steady_stream import CLUSTER, CONTENTION, steady_stream

Run = Callable[[int], ddlsched.Result]
"""Simulates with so many jobs or iterations."""


def queue(placement: str, jobs: int) -> ddlsched.Result:
    """Return the run of a stream."""
    workload = steady_stream(seed=1, num_jobs=jobs, load=1.5)
    given = {"order": "fifo", "communication": "bounded-overlap:limit=2", "contention": CONTENTION}
    return ddlsched.simulate(workload, CLUSTER, placement=placement, **given)


NODES, CONCURRENT, HOURS = 1024, 10, 10
IDLE_S, BUSY_S = 1200.0, 13_000.0


@dataclass(frozen=True, kw_only=True)
class EqualShare:
    """The first jobs share the nodes equally: nearly every change of capacity resizes some."""

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return equal shares."""
        first = jobs[:CONCURRENT]
        share = capacity.num_gpus // max(len(first), 1)
        return {view.job_id: Allocation(min(share, view.job.max_gpus)) for view in first} if share else {}


def idle_nodes(rng: np.random.Generator) -> CapacityTrace:
    """Return nodes that are idle now and then, exponentially distributed, for some hours."""
    presences = [(0, 1e6, 1e7)]
    for node in range(NODES):
        time_s = rng.exponential(BUSY_S)
        while time_s < 3600 * HOURS:
            end_s = time_s + 1 + rng.exponential(IDLE_S)
            presences.append((node, time_s, end_s))
            time_s = end_s + 1 + rng.exponential(BUSY_S)
    return CapacityTrace.of(presences)


TRACE = idle_nodes(np.random.default_rng(1))
INSTANTS = len({time_s for presence in TRACE.presences for time_s in (presence.join_s, presence.leave_s)})


def elastic(jobs: int) -> ddlsched.Result:
    """Return the run of jobs that are resized."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    curve = ThroughputCurve(num_gpus=sizes, samples_per_s=tuple(100.0 * size**0.9 for size in sizes))
    given = {"arrival_s": 0.0, "samples": 10**9, "curve": curve, "gpu_batch": 10**6, "max_gpus": 64}
    return ddlsched.simulate(
        ddlsched.Workload.of([ElasticJob(job_id=f"{number}", **given) for number in range(jobs)]),
        ddlsched.Cluster(num_servers=NODES, gpus_per_server=1),
        allocation=EqualShare(),
        rescale_cost=ConstantRescaleCost(up_s=18, down_s=12),
        capacity=TRACE,
        until_s=3600.0 * HOURS,
    )


FORWARD, BACKWARD, REDUCES = 250, 250, 100
ALONE, SHARING = 50, 50
GPUS_PER_SERVER = 8


def iteration(task_s: float) -> IterationDag:
    """Return a chain of compute tasks, every few of whose second half let an all-reduce go, and a step after all."""
    tasks: list[ComputeTask | AllReduceTask] = []
    for n in range(FORWARD + BACKWARD):
        after = (f"c{n - 1}",) if n else ()
        tasks.append(ComputeTask(name=f"c{n}", duration_ns=round(1e9 * task_s), after=after))
    for n in range(REDUCES):
        last = FORWARD + (n + 1) * BACKWARD // REDUCES - 1
        tasks.append(AllReduceTask(name=f"r{n}", message_bytes=1e7, after=(f"c{last}",)))
    ends = (f"c{FORWARD + BACKWARD - 1}", *(f"r{n}" for n in range(REDUCES)))
    return IterationDag((*tasks, ComputeTask(name="step", duration_ns=2_000_000, after=ends)))


@dataclass
class InPairs:
    """Gives each of the first jobs two whole servers, and four of the others two servers together."""

    def place(self, job: ddlsched.JobView, cluster: ddlsched.ClusterView) -> Sequence[int]:
        """Return half of the GPUs on each of two servers."""
        late = max(job.number - ALONE, 0)
        pair = job.number if job.number < ALONE else ALONE + late // 4
        half = job.num_gpus // 2
        first = 2 * pair * GPUS_PER_SERVER + (late % 4) * half
        return [*range(first, first + half), *range(first + GPUS_PER_SERVER, first + GPUS_PER_SERVER + half)]


def traced(limit: int, iterations: int) -> ddlsched.Result:
    """Return the run of jobs of four lengths of tasks, those that have their servers for themselves first."""
    dags = [iteration(task_s) for task_s in (4e-4, 5e-4, 6e-4, 7e-4)]
    given = {"arrival_s": 0.0, "iterations": iterations, "gpu_memory_mb": 1.0}
    sizes = [2 * GPUS_PER_SERVER] * ALONE + [GPUS_PER_SERVER // 2] * SHARING
    jobs = [
        ddlsched.Job(job_id=str(n), num_gpus=size, iteration=dags[n % len(dags)], **given)
        for n, size in enumerate(sizes)
    ]
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=128, gpus_per_server=GPUS_PER_SERVER, topology="star:nic_gbps=100"),
        placement=InPairs(),
        order="srsf",
        communication=f"bounded-overlap:limit={limit}",
        contention="max-min",
    )


def switched(topology: str, jobs: int) -> ddlsched.Result:
    """Return the run of so many of the 160 jobs, whose GPUs others share, too."""
    workload = ddlsched.Workload.of([*microsoft_160(seed=1)][:jobs])
    given = {"order": "srsf", "communication": "bounded-overlap:limit=2", "contention": CONTENTION}
    return ddlsched.simulate(workload, ddlsched.Cluster(topology=topology), placement="lwf:kappa=1", **given)


PLACEMENTS = ("first-fit", "in-order", "easy-backfill", "conservative-backfill")
PARTS: dict[str, dict[str, tuple[Run, int, int]]] = {
    "queue": {f"3,000 jobs, {placement}": (partial(queue, placement), 20, 3000) for placement in PLACEMENTS},
    "elastic": {f"{INSTANTS:,} changes of capacity, 60 jobs": (elastic, 1, 60)},
    "traced": {f"1,000 iterations, at most {most:,} overlap": (partial(traced, most), 1, 1000) for most in (1, 1000)},
    "networks": {
        f"160 jobs, {name}": (partial(switched, name), 20, 160) for name in ("star", "fat-tree", "leaf-spine")
    },
}
"""Of each part the runs: what simulates, and how many jobs or iterations compile, and are measured."""


def row(part: str, name: str, run: Run, few: int, many: int) -> list[Any]:
    """Return what a run takes, and what came out."""
    say(f"{part}: {name}")
    run(few)
    result, wall_s, cpu_s = timed(partial(run, many))
    change_ms = 1e3 * cpu_s / INSTANTS if part == "elastic" else None
    return [part, name, wall_s, cpu_s, change_ms, result.skipped_iterations]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    rows = [row(part, name, *run) for part in parser.parse_args().only for name, run in PARTS[part].items()]
    columns = ("part", "run", "wall, s", "CPU, s", "ms a change of capacity", "skipped iterations")
    print(Table(title="What runs take", columns=columns, rows=rows))


if __name__ == "__main__":
    main()
