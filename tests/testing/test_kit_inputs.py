"""What the conformance classes hand to a policy is what the engine could hand it, and wrong answers are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from ddlsched.policies.doors import Allocation
from ddlsched.testing import conformance_runs, network_conformance, policy_conformance

ANSWERS = "test_answers_none_or_that_many_fitting_gpus"
PATHS = "test_answers_a_path"
ALLOCATES = "test_answers_what_can_be_carried_out"


def test_example_jobs_tie_in_every_way_and_lack_what_jobs_may_lack() -> None:
    workloads = [conformance_runs.example_workload(seed).jobs for seed in conformance_runs.SEEDS]
    assert all(max(Counter(job.arrival_s for job in jobs).values()) > 1 for jobs in workloads)
    jobs = [job for jobs in workloads for job in jobs]
    forwards, backwards = ({getattr(job.iteration, field) for job in jobs} for field in ("forward_s", "backward_s"))
    assert min(forwards) == 0.0 < min(backwards)
    assert max(forwards | backwards) < 0.1
    assert {job.iteration.message_bytes == 0.0 for job in jobs} == {True, False}
    assert {job.iteration.buckets for job in jobs} == {1, 3}
    assert {job.num_gpus for job in jobs} == set(range(1, 10))
    assert {job.iterations for job in jobs} == set(range(1, 13))


def test_long_and_elastic_example_jobs_meet_from_the_beginning() -> None:
    for seed in conformance_runs.SEEDS:
        long, elastic = conformance_runs.long_workload(seed), conformance_runs.example_elastic_workload(seed)
        assert min(job.iterations for job in long.jobs) >= 20
        assert sum(job.num_gpus for job in long.jobs) > conformance_runs.CLUSTER.num_gpus
        assert max(Counter(job.arrival_s for job in elastic.jobs).values()) > 1
        assert {job.max_gpus for job in elastic.jobs} <= set(range(1, 7))
    assert {job.message_bytes for job in elastic.jobs} == {0.0, 99.2e6}


@dataclass(frozen=True)
class Answering:
    """A policy that gives a made answer, and checks what it is asked."""

    answer: Any

    def place(self, job: Any, cluster: Any) -> Any:
        assert 0 < job.num_gpus <= cluster.num_gpus
        return self.answer([gpu for gpu in range(cluster.num_gpus) if cluster.fits(job, gpu)], job.num_gpus)

    def path(self, flow: Any, loads: Any) -> Any:
        assert flow.source != flow.target
        assert {flow.source, flow.target} <= set(flow.job.servers)
        assert flow.route in range(len(flow.paths))
        assert all(link < len(loads.links) for path in flow.paths for link in path)
        return self.answer(len(flow.paths))

    def allocate(self, jobs: Any, capacity: Any, now_s: float) -> Any:
        held = [gpu for job in jobs for gpu in job.gpus]
        assert sorted([*held, *capacity.free_gpus]) == [*range(capacity.num_gpus)]
        assert all(bool(job.gpus) == bool(job.batch) for job in jobs)
        return self.answer(jobs, capacity)


CHECKS = {
    ANSWERS: policy_conformance.PlacementConformance,
    PATHS: network_conformance.PathConformance,
    ALLOCATES: policy_conformance.AllocationConformance,
}


def fault(check: str, answer: Any) -> bool:
    checks = type("Checks", (CHECKS[check],), {"make": lambda self: Answering(answer)})()
    try:
        getattr(checks, check)()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("check", "answer", "is_fault"),
    [
        (ANSWERS, lambda fitting, number: fitting[:number] if len(fitting) >= number else None, False),
        (ANSWERS, lambda fitting, number: fitting[:number] or None, True),
        (ANSWERS, lambda fitting, number: fitting[:1] * number or None, True),
        (ANSWERS, lambda fitting, number: range(number), True),
        (PATHS, lambda number: 0, False),
        (PATHS, lambda number: number - 1, False),
        (PATHS, lambda number: number, True),
        (PATHS, lambda number: -1, True),
        (ALLOCATES, lambda jobs, capacity: {}, False),
        (ALLOCATES, lambda jobs, capacity: {jobs[0].job_id: Allocation(1)} if jobs else {}, False),
        (ALLOCATES, lambda jobs, capacity: {each.job_id: Allocation(each.job.max_gpus) for each in jobs}, True),
        (ALLOCATES, lambda jobs, capacity: {each.job_id: Allocation(9) for each in jobs[:1]}, True),
    ],
)
def test_wrong_answers_are_found_and_right_ones_are_not(check: str, answer: Any, is_fault: bool) -> None:
    assert fault(check, answer) is is_fault
