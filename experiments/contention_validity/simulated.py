"""Runs of the simulator with given jobs on given servers, as the measurements had them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched import Cluster, simulate
from ddlsched.network.contention import ContentionModel
from ddlsched.policies.doors import ClusterView, JobView
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload

FOREVER = 10**7
"""Iterations of a job that is cut off."""


@dataclass(frozen=True)
class Training:
    """A job: seconds of compute and of communication (alone) of an iteration, and how it communicates.

    Parameters
    ----------
    compute_s, communication_s
        Of one iteration.
    buckets
        Parts in which the gradient is reduced while backward goes on; 1 is after it.
    connections
        Equal parts in which it is reduced at the same time.
    """

    compute_s: float
    communication_s: float
    buckets: int = 1
    connections: int = 1

    def iteration(self, per_byte_s: float) -> DataParallelIteration | IterationDag:
        """Return the iteration; backward takes twice as long as forward."""
        size = self.communication_s / per_byte_s
        if self.connections == 1:
            thirds = self.compute_s / 3
            return DataParallelIteration(
                forward_s=thirds, backward_s=2 * thirds, message_bytes=size, buckets=self.buckets
            )
        parts = [
            AllReduceTask(name=f"part {n}", message_bytes=size / self.connections, after=("compute",))
            for n in range(self.connections)
        ]
        return IterationDag((ComputeTask(name="compute", duration_ns=round(1e9 * self.compute_s)), *parts))


@dataclass(frozen=True, kw_only=True)
class Together:
    """Places the jobs of each group on one GPU of each of the group's two servers.

    Two are enough: on a star every link of a ring carries the same rings.
    """

    group_of: tuple[int, ...]
    slot_of: tuple[int, ...]
    slots: int

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[int]:
        """Return the job's GPUs."""
        first = 2 * self.slots * self.group_of[job.number] + self.slot_of[job.number]
        return [first, first + self.slots]


def run(
    groups: Sequence[Sequence[Training]],
    contention: ContentionModel,
    *,
    per_byte_s: float,
    iterations: int = FOREVER,
    until_s: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate groups of jobs; those of a group share a network, and nothing else.

    Returns
    -------
    tuple
        Of every job, group by group: the compute seconds done on each of its GPUs, and its finish (NaN if cut off).
    """
    slots = max(len(group) for group in groups)
    places = [(number, slot) for number, group in enumerate(groups) for slot in range(len(group))]
    jobs = [
        Job(
            job_id=f"{group}-{slot}",
            arrival_s=0.0,
            num_gpus=2,
            iterations=iterations,
            iteration=groups[group][slot].iteration(per_byte_s),
            gpu_memory_mb=1.0,
        )
        for group, slot in places
    ]
    result = simulate(
        Workload.of(jobs),
        Cluster(num_servers=2 * len(groups), gpus_per_server=slots),
        placement=Together(
            group_of=tuple(group for group, _ in places), slot_of=tuple(slot for _, slot in places), slots=slots
        ),
        order="fifo",
        communication="bounded-overlap:limit=1000",
        contention=contention,
        until_s=until_s,
    )
    return result.jobs["compute_s"].to_numpy(np.float64), result.jobs["finish_s"].to_numpy(np.float64)
