"""Tiresias that stops jobs, by hand."""

from __future__ import annotations

import pytest

import ddlsched
from algorithms.allocation.tiresias import PreemptiveTiresias
from ddlsched import Cluster, Workload
from ddlsched.errors import InputError
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, LinearCurve


def job(name: str, gpus: int, *, iterations: int, arrival_s: float = 0.0) -> ElasticJob:
    """Return a job of a fixed size with iterations of 1 s."""
    return ElasticJob(
        job_id=name,
        arrival_s=arrival_s,
        samples=gpus * iterations,
        curve=LinearCurve(fixed_s=1.0, sample_s=0.0),
        gpu_batch=1,
        min_gpus=gpus,
        max_gpus=gpus,
    )


def ran(jobs: list[ElasticJob], *, gpus: int = 1, resume_s: float = 0.0, **parameters: float):
    """Return the table of jobs, by name."""
    return ddlsched.simulate(
        Workload.of(jobs),
        Cluster(num_servers=1, gpus_per_server=gpus),
        allocation=PreemptiveTiresias(**parameters),
        rescale_cost=ConstantRescaleCost(resume_s=resume_s),
    ).jobs.set_index("job_id")


@pytest.mark.parametrize(("resume_s", "long_ends_s"), [(0.0, 12.75), (3.0, 15.75)])
def test_a_new_job_stops_one_that_has_had_its_threshold(resume_s, long_ends_s):
    """At 2.75 s the long job has ended 2 iterations; the third, under way, is lost."""
    jobs = [job("long", 1, iterations=10), job("short", 1, iterations=2, arrival_s=2.75)]
    found = ran(jobs, resume_s=resume_s, threshold_gpu_s=2.5, queues=2)
    assert found["finish_s"].to_dict() == {"long": long_ends_s, "short": 4.75}
    assert found["restarts"].to_dict() == {"long": 1, "short": 0}


def test_within_a_queue_nobody_stops_another():
    jobs = [job("long", 1, iterations=10), job("short", 1, iterations=2, arrival_s=2.75)]
    found = ran(jobs, threshold_gpu_s=100.0)
    assert found["finish_s"].to_dict() == {"long": 10.0, "short": 12.0}


def test_it_wakes_when_a_job_has_had_its_threshold():
    """Both wait for the GPU from 0 on: the first has it for 4 s, then the second to its end, then the first again."""
    jobs = [job("first", 1, iterations=10), job("second", 1, iterations=3)]
    found = ran(jobs, threshold_gpu_s=4.0, queues=2)
    assert found["finish_s"].to_dict() == {"first": 13.0, "second": 7.0}


def test_service_counts_gpus_too():
    """Two GPUs for 2 s are the threshold of 4 GPU-seconds, where one would need 4 s."""
    jobs = [job("wide", 2, iterations=10), job("other", 2, iterations=1)]
    assert ran(jobs, gpus=2, threshold_gpu_s=4.0, queues=2)["finish_s"].to_dict() == {"wide": 11.0, "other": 3.0}


def test_a_job_that_does_not_fit_lets_a_smaller_one_pass():
    jobs = [job("one", 1, iterations=5), job("two", 2, iterations=1), job("small", 1, iterations=1)]
    found = ran(jobs, gpus=2, threshold_gpu_s=100.0)
    assert found["start_s"].to_dict() == {"one": 0.0, "two": 5.0, "small": 0.0}


@pytest.mark.parametrize(("field", "value"), [("threshold_gpu_s", 0.0), ("queues", 0)])
def test_bad_parameters_are_named(field, value):
    with pytest.raises(InputError, match=field):
        PreemptiveTiresias(**{field: value})
