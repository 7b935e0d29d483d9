"""Ties of ``preemptive:by=bytes``: equal messages are equal, whatever floats leave of a byte."""

from __future__ import annotations

import pytest

import ddlsched
from ddlsched.network.contention import Linear
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

PER_BYTE_S = 1e-9


def sending(name: str, message_bytes: float, forward_s: float) -> Job:
    iteration = DataParallelIteration(forward_s=forward_s, backward_s=0.001, message_bytes=message_bytes)
    return Job(job_id=name, arrival_s=0, num_gpus=2, iterations=1, iteration=iteration, gpu_memory_mb=1)


class OneGpuAServer:
    """Every job has a GPU of each server."""

    def place(self, job: JobView, cluster: ClusterView) -> list[int]:
        return [gpu for gpu in range(cluster.num_gpus) if gpu % 2 == int(job.job_id == "late")]


@pytest.mark.parametrize("started_s", [0.0063, 0.0126, 0.0224, 0.0413])
def test_a_transfer_that_has_as_many_bytes_left_as_another_is_before_it_by_its_number(started_s: float) -> None:
    """``late`` becomes ready when ``early``, of the smaller number, has just as many bytes left: nothing pauses.

    Of 1e-9 s a byte floats make 999999999.9999999 bytes a second, so that more than as many are left.
    """
    left = 10_000_000.0
    early = sending("early", left + started_s / PER_BYTE_S, 0.0)
    late = sending("late", left, started_s)
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=1)
    result = ddlsched.simulate(
        Workload.of([early, late]),
        cluster,
        placement=OneGpuAServer(),
        order="fifo",
        communication="preemptive:by=bytes",
        contention=Linear(latency_s=0.0, per_byte_s=PER_BYTE_S, penalty_per_byte_s=0.0),
    )
    early_end_s = 0.001 + started_s + left * PER_BYTE_S
    assert result.jobs.finish_s.tolist() == pytest.approx([early_end_s, early_end_s + left * PER_BYTE_S], abs=3e-9)
