"""Room for who waits: those that run move over if all of them find room, and long ones stop for a while."""

from __future__ import annotations

import pytest

import ddlsched
from algorithms.ordering.make_room import MakeRoom
from ddlsched import Cluster, DataParallelIteration, Disturbances, Job, Workload
from ddlsched.errors import InputError

TOPOLOGY = "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=4"
PRICE_S = 2.0


def job(name: str, gpus: int, arrival_s: float, run_s: int) -> Job:
    """Return a job of so many iterations of a second, which take nine on several servers."""
    iteration = DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=1e10)
    return Job(
        job_id=name, arrival_s=arrival_s, num_gpus=gpus, iterations=run_s, iteration=iteration, gpu_memory_mb=1.0
    )


def finish_s(jobs: list[Job], servers: int, gpus: int, **order: float) -> dict[str, float]:
    """Return when each job ends."""
    result = ddlsched.simulate(
        Workload.of(jobs),
        Cluster(num_servers=servers, gpus_per_server=gpus, exclusive=True, topology=TOPOLOGY),
        placement="near-enough",
        order=MakeRoom(**order),
        contention="max-min",
        disturbances=Disturbances(restart_s=PRICE_S, state_mb=0.0),
    )
    return dict(zip(result.jobs["job_id"], result.jobs["finish_s"].tolist(), strict=True))


PAIRS = [job(f"{name}{server}", 1, 0, run_s) for server in range(4) for name, run_s in (("short", 10), ("long", 100))]
"""After 10 s each of four servers of two GPUs has one job."""


def test_a_job_moves_so_that_one_that_waits_has_a_server_to_itself():
    found = finish_s([*PAIRS, job("wide", 2, 20, 10)], 4, 2, least_run_s=5.0)
    assert found.pop("wide") == 30.0
    assert sorted(found.values()) == [10.0] * 4 + [100.0] * 3 + [100.0 + PRICE_S]


def test_nobody_moves_soon_after_a_start_or_where_there_is_no_room_for_it():
    assert finish_s([*PAIRS, job("wide", 2, 20, 10)], 4, 2, least_run_s=1e6)["wide"] == 110.0
    full = [job(str(number), 1, 0, 100) for number in range(8)]
    assert finish_s([*full, job("wide", 2, 20, 10)], 4, 2, least_run_s=5.0)["wide"] == 110.0


def test_a_rack_is_cleared_of_the_jobs_with_the_fewest_gpus():
    """Five servers' worth of jobs: the one of two GPUs stays, that of one leaves the other rack."""
    jobs = [job("pair", 2, 0, 100), job("leaves", 2, 1, 5), job("fills", 2, 2, 5), job("one", 1, 3, 100)]
    found = finish_s([*jobs, job("rack", 4, 20, 10)], 4, 2, least_run_s=5.0)
    assert found["rack"] == 20.0 + 10 * 9
    assert (found["pair"], found["one"]) == (100.0, 103.0 + PRICE_S)


@pytest.mark.parametrize(("long_s", "first_s", "short_s"), [(50.0, 100.0 + 10 + PRICE_S, 70.0), (1e6, 100.0, 110.0)])
def test_only_a_long_job_stops_for_a_while(long_s, first_s, short_s):
    found = finish_s([job("first", 1, 0, 100), job("short", 1, 60, 10)], 1, 1, least_run_s=5.0, long_s=long_s)
    assert found == {"first": first_s, "short": short_s}


def test_a_job_that_has_waited_much_of_its_run_time_stops_no_more():
    """At 80 s it has run 68 s and waited 12."""
    jobs = [job("first", 1, 0, 100), job("second", 1, 60, 10), job("third", 1, 80, 10)]
    found = {share: finish_s(jobs, 1, 1, least_run_s=5.0, long_s=50.0, most_delay=share) for share in (0.2, 0.1)}
    assert found[0.2] == {"first": 120.0 + 2 * PRICE_S, "second": 70.0, "third": 90.0}
    assert found[0.1] == {"first": 110.0 + PRICE_S, "second": 70.0, "third": 120.0 + PRICE_S}


def test_a_long_job_does_not_stop_for_one_that_has_run_a_quarter_as_long():
    """Both are long at 100 s; the one that waits has run 60 s of its own."""
    jobs = [job("first", 1, 0, 100), job("second", 1, 60, 10)]
    found = finish_s(jobs, 1, 1, least_run_s=5.0, long_s=5.0)
    assert found["second"] == 70.0  # and the first does not take its GPU back before it ends
    assert found["first"] == 110.0 + PRICE_S


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InputError, match="make-room: long_s is -1"):
        MakeRoom(long_s=-1.0)


def test_who_waited_long_for_a_start_stops_as_any_long_job_does():
    """The wide job starts when the others end at 100 s; at 160 s it has run 60 s, no stop had it wait."""
    full = [job(str(number), 1, 0, 100) for number in range(2)]
    jobs = [*full, job("wide", 2, 1, 200), job("short", 1, 160, 10)]
    assert finish_s(jobs, 1, 2, least_run_s=5.0, long_s=50.0, most_delay=0.1)["short"] == 170.0
