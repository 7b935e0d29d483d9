"""What elastic scaling's exact programme takes, and what a change of capacity or size takes in the engine.

``allocation.py`` prints two tables. Times are of the processor; the programme's are the least of five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from benchmark_tables import Table, say

import ddlsched
from algorithms.allocation.elastic_scaling import best_counts
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.simulation import warm_up
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.rescale import ConstantRescaleCost
from ddlsched.workload.scaling_curves import ThroughputCurve

SIZES = ((10, 100, 32), (100, 100, 32), (400, 400, 10), (400, 400, 32), (400, 4000, 32))
NODES, CONCURRENT, JOBS, HOURS = 1024, 10, 60, 10
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


def least_s(function: Callable[[], object]) -> float:
    """Return the least processor time of five calls."""
    times = []
    for _ in range(5):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return min(times)


def programme() -> Table:
    """Return the programme's times on random concave speed-ups."""
    rng = np.random.default_rng(1)
    rows = []
    for jobs, gpus, most in SIZES:
        say(f"{jobs} jobs, {gpus} GPUs")
        gains = np.sort(rng.random((jobs, most)), axis=1)[:, ::-1].cumsum(axis=1)
        values = np.concatenate([np.full((jobs, 1), -np.inf), gains], axis=1)
        seconds = least_s(lambda: best_counts(values, gpus))  # noqa: B023
        rows.append((f"{jobs}", gpus, most, f"{1e3 * seconds:.1f}"))
    return Table(title="The exact programme", columns=("jobs", "GPUs", "most of a job", "ms"), rows=rows)


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


def changes() -> Table:
    """Return what a change of capacity takes, and what a change of a job does, iterations left out."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    curve = ThroughputCurve(num_gpus=sizes, samples_per_s=tuple(100.0 * size**0.9 for size in sizes))
    jobs = [
        ElasticJob(job_id=f"{n}", arrival_s=0.0, samples=10**9, curve=curve, gpu_batch=10**6, max_gpus=64)
        for n in range(JOBS)
    ]
    trace = idle_nodes(np.random.default_rng(1))
    warm_up()
    begin = time.process_time()
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=NODES, gpus_per_server=1),
        allocation=EqualShare(),
        rescale_cost=ConstantRescaleCost(up_s=18, down_s=12),
        capacity=trace,
        until_s=3600.0 * HOURS,
    )
    seconds = time.process_time() - begin
    instants = len({time_s for presence in trace.presences for time_s in (presence.join_s, presence.leave_s)})
    rescales = len(result.finished.rescales)
    figures = (
        instants,
        rescales,
        f"{seconds:.2f}",
        f"{1e3 * seconds / instants:.2f}",
        f"{1e3 * seconds / rescales:.2f}",
    )
    return Table(
        title=f"{NODES:,} nodes that come and go, {CONCURRENT} jobs at a time, {HOURS} h simulated",
        columns=("", "changes of capacity", "of jobs", "s", "ms of capacity", "ms of a job"),
        rows=[("whole run", *figures)],
    )


def main() -> None:
    """Print both tables."""
    print(programme(), "\n")
    print(changes())


if __name__ == "__main__":
    main()
