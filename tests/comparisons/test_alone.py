"""Times of jobs alone: those of runs in which each job is the only one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.comparisons.alone import alone_s
from ddlsched.plugins.names import names
from ddlsched.workload.job import Workload


@pytest.mark.parametrize("topology", ["star", "rail-optimised:nvlink_gbps=3600"])
@pytest.mark.parametrize("algorithm", names("collective"))
def test_a_data_parallel_job_alone_takes_what_its_run_takes(algorithm: str, topology: str) -> None:
    cluster = ddlsched.Cluster(num_servers=3, gpus_per_server=8, topology=topology)
    for gpus in (2, 6, 8, 24):
        job = data_parallel_job(gpus=gpus, forward_s=0.01, backward_s=0.02, message_bytes=1e8, iterations=10)
        job = replace(job, iteration=replace(job.iteration, algorithm=algorithm))  # type: ignore[type-var]
        run = ddlsched.simulate(Workload.of([job]), cluster, placement="first-fit", contention="max-min")
        assert run.jobs["jct_s"].tolist() == alone_s(run.workload, cluster, "max-min").tolist()
