"""Placement and failures: where jobs go, and what a run of the experiment counts."""

from __future__ import annotations

import pytest
from experiment_scripts import scripts_of

import ddlsched

(run,) = scripts_of("failures", "run")


def test_a_job_is_spread_over_racks() -> None:
    cluster = ddlsched.Cluster(num_servers=8, gpus_per_server=8, topology="leaf-spine:servers_per_leaf=4,spines=1")
    step = ddlsched.DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=0)
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=16, iterations=1, iteration=step, gpu_memory_mb=1)
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement=run.SpreadOverRacks())
    assert {gpu // 8 for gpu in result.finished.gpus[0]} == {0, 4}


@pytest.mark.long
def test_goodput_is_less_with_failures_that_cost_something() -> None:
    offered = sum(job.num_gpus * job.iterations * 9 for job in run.workload("small", 0))
    assert offered / (run.DAYS * run.DAY_S * 256) >= 0.9
    assert 0.5 < run.goodput("small", "first fit", "queue", None, 0) < 0.95
