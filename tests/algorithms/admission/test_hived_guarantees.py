"""HiveD's guarantees at the admission door, worked out by hand: cells, and opportunistic jobs that give way."""

from __future__ import annotations

from typing import Any

import pytest

from algorithms.admission.hived import HiveDGuarantees
from ddlsched import Cluster, DataParallelIteration, Disturbances, Job, Queue, Quota, Tenants, Workload, simulate
from ddlsched.errors import InputError

STEP = DataParallelIteration(forward_s=0.4, backward_s=0.6, message_bytes=0)
HALF = {"any": Quota(gpus=4)}
QUEUES = Tenants(queues=(Queue(name="all"), *(Queue(name=name, parent="all", quotas=HALF) for name in "ab")))


def job(job_id: str, queue: str, gpus: int, arrival_s: float, priority: int = 0, iterations: int = 100) -> Job:
    told: dict[str, Any] = {"queue": queue, "priority": priority, "iteration": STEP, "gpu_memory_mb": 1.0}
    return Job(job_id=job_id, num_gpus=gpus, arrival_s=arrival_s, iterations=iterations, **told)


def run(*jobs: Job, servers: int = 1, gpus: int = 8, queues: Tenants = QUEUES, **parameters: Any) -> Any:
    cluster = Cluster(num_servers=servers, gpus_per_server=gpus, exclusive=True)
    free = Disturbances(restart_s=0.0, state_mb=0.0)
    admission = HiveDGuarantees(**parameters)
    return simulate(Workload.of(jobs), cluster, queues=queues, admission=admission, disturbances=free)


@pytest.mark.long
def test_a_guaranteed_job_takes_the_cell_with_the_fewest_opportunistic_jobs() -> None:
    """At 50 s GPUs 4 and 5 are free again: a's cell is the second half, and only the jobs on GPUs 6 and 7 stop."""
    small = [job(f"o{gpu}", "a", 1, 0, -1, 50 if gpu in (4, 5) else 200) for gpu in range(8)]
    result = run(*small, job("g", "a", 4, 60))
    jobs = result.jobs.set_index("job_id")
    assert jobs["start_s"]["g"] == 60
    assert [name for name, count in jobs["restarts"].items() if count] == ["o6", "o7"]
    assert result.gpus_of("g") == (4, 5, 6, 7)
    assert jobs["finish_s"]["o6"] == 160 + 140, "after g"
    assert "a cell that its GPUs are of went back" in str(
        next(stay.ended_by for stay in result.finished.stays if stay.ended_by)
    )


@pytest.mark.long
def test_cells_of_others_are_not_taken_and_there_when_asked_for() -> None:
    """a's second job finds its cell in use; b's starts at once, though a's third, opportunistic one has the rest."""
    result = run(job("a1", "a", 4, 0), job("a2", "a", 4, 1), job("a3", "a", 4, 2, -1), job("b1", "b", 3, 10))
    jobs = result.jobs.set_index("job_id")
    assert jobs["start_s"].to_dict() == {"a1": 0, "a2": 100, "a3": 2, "b1": 10}
    assert jobs["restarts"].to_dict() == {"a1": 0, "a2": 0, "a3": 1, "b1": 0}
    assert (result.finished.refused[0].job, result.finished.refused[0].reason.split(":")[0]) == (1, "cells")


def test_a_job_larger_than_its_cells_is_opportunistic_and_bound_cells_fill_first() -> None:
    """Two cells of 2 of a's hold three jobs of 1 and none of 3; one of 2 waits for a whole cell."""
    jobs = [job("s1", "a", 1, 0), job("l", "a", 3, 1), job("s2", "a", 1, 2), job("s3", "a", 1, 3), job("t", "a", 2, 4)]
    result = run(*jobs, cells="a/2x2")
    assert result.gpus_of("s1") + result.gpus_of("s2") == (0, 1)
    assert result.jobs.set_index("job_id")["start_s"].to_dict() == {"s1": 0, "l": 1, "s2": 2, "s3": 3, "t": 102}


def test_opportunistic_jobs_stop_where_their_queue_would_borrow_too_much() -> None:
    """On GPUs 4 to 7 nobody is, but with g queue a would use 8 GPUs; it may borrow none."""
    strict = Queue(name="a", parent="all", quotas={"any": Quota(gpus=4, borrowing_limit=0)})
    queues = Tenants(queues=(Queue(name="all"), strict, Queue(name="b", parent="all", quotas=HALF)))
    jobs = run(job("o", "a", 4, 0, -1), job("g", "a", 4, 1), job("b", "b", 4, 2), queues=queues).jobs
    assert jobs.set_index("job_id")["start_s"].to_dict() == {"o": 0, "g": 1, "b": 2}
    assert jobs.set_index("job_id")["restarts"].to_dict() == {"o": 1, "g": 0, "b": 0}


@pytest.mark.parametrize(
    ("cells", "fault"),
    [("a/1x3", "expected one of"), ("a/2x8", "more than the 8 GPUs hold"), ("a", "expected tenant/count x GPUs")],
)
def test_cells_that_cannot_be_are_refused(cells: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        run(job("a1", "a", 1, 0), cells=cells)


def test_the_largest_cells_have_a_power_of_two_of_servers() -> None:
    with pytest.raises(InputError, match="top_servers is 3"):
        HiveDGuarantees(top_servers=3)
