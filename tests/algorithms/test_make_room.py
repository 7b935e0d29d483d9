"""Room for who waits: those that run move over if all of them find room, and long ones stop for a while."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ddlsched
from algorithms.ordering.history import FinishedJobs
from algorithms.ordering.make_room import MakeRoom, _cheapest
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


@pytest.mark.long
def test_a_job_moves_so_that_one_that_waits_has_a_server_to_itself():
    found = finish_s([*PAIRS, job("wide", 2, 20, 10)], 4, 2, least_run_s=5.0)
    assert found.pop("wide") == 30.0
    assert sorted(found.values()) == [10.0] * 4 + [100.0] * 3 + [100.0 + PRICE_S]


@pytest.mark.long
def test_nobody_moves_soon_after_a_start_or_where_there_is_no_room_for_it():
    assert finish_s([*PAIRS, job("wide", 2, 20, 10)], 4, 2, least_run_s=1e6)["wide"] == 110.0
    full = [job(str(number), 1, 0, 100) for number in range(8)]
    assert finish_s([*full, job("wide", 2, 20, 10)], 4, 2, least_run_s=5.0)["wide"] == 110.0


@pytest.mark.long
def test_a_rack_is_cleared_of_the_jobs_with_the_fewest_gpus():
    """Five servers' worth of jobs: the one of two GPUs stays, that of one leaves the other rack."""
    jobs = [job("pair", 2, 0, 100), job("leaves", 2, 1, 5), job("fills", 2, 2, 5), job("one", 1, 3, 100)]
    found = finish_s([*jobs, job("rack", 4, 20, 10)], 4, 2, least_run_s=5.0)
    assert found["rack"] == 20.0 + 10 * 9
    assert (found["pair"], found["one"]) == (100.0, 103.0 + PRICE_S)


@pytest.mark.long
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


def test_all_who_share_a_gpu_stop_for_one_that_needs_its_memory():
    """Two jobs have half of the only GPU's memory each when a third comes for most of it."""
    one, two = (replace(job(name, 1, 0, 100), gpu_memory_mb=16_000.0) for name in ("one", "two"))
    whole = replace(job("whole", 1, 40, 10), gpu_memory_mb=30_000.0)
    cluster, order = Cluster(num_servers=1, gpus_per_server=1), MakeRoom(least_run_s=5.0, long_s=10.0)
    done = ddlsched.simulate(Workload.of([one, two, whole]), cluster, placement="first-fit", order=order).jobs
    assert done["restarts"].tolist() == [1, 1, 0]
    assert done["finish_s"].tolist()[2] == 50.0


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InputError, match="make-room: long_s is -1"):
        MakeRoom(long_s=-1.0)


def test_who_waited_long_for_a_start_stops_as_any_long_job_does():
    """The wide job starts when the others end at 100 s; at 160 s it has run 60 s, no stop had it wait."""
    full = [job(str(number), 1, 0, 100) for number in range(2)]
    jobs = [*full, job("wide", 2, 1, 200), job("short", 1, 160, 10)]
    assert finish_s(jobs, 1, 2, least_run_s=5.0, long_s=50.0, most_delay=0.1)["short"] == 170.0


def test_a_run_time_neither_jumps_with_a_move_nor_is_lost_with_a_failure():
    cluster = Cluster(num_servers=2, gpus_per_server=2, exclusive=True, topology=TOPOLOGY)
    order = MakeRoom().begin(cluster, np.random.default_rng(0))
    seen = SimpleNamespace(number=0, num_gpus=2, compute_ns=10, communication_ns=80, servers=(0, 1))
    run_ns = []
    for seen.attained_service_ns, seen.servers, seen.communication_ns in (
        (200, (0, 1), 80),  # 100 on each GPU, at nine times that
        (200, (0,), 0),
        (220, (0,), 0),
        (220, (), 0),
        (180, (), 0),  # back at its checkpoint
        (200, (0, 1), 80),
    ):
        run_ns.append(order._run_ns(seen))
    assert run_ns == [900.0, 900.0, 910.0, 910.0, 890.0, 980.0]


def test_like_jobs_that_took_longer_than_it_has_run_say_what_a_job_has_left():
    took = {0: 10.0, 1: 20.0, 2: 100.0}
    finished = FinishedJobs(lambda job: [(), (job.model,)], lambda job: took[job.number])
    for number, model in enumerate("aab"):
        finished.look(SimpleNamespace(number=number, model=model, iterations_left=1, servers=(0,)), 0.0)
    for view in finished._unfinished.values():
        view.iterations_left = 0
    waits = SimpleNamespace(number=3, model="a", iterations_left=1, servers=())
    finished.look(waits, 1.0)
    assert finished.left_ns(waits) == ((130 / 3) + 30) / 3
    assert finished.left_ns(waits, 15.0) == ((((5 + 85) / 2) + 5) / 2 + 15) / 2
    assert finished.left_ns(waits, 50.0) == 50.0


def test_jobs_of_other_models_are_not_taken_for_alike():
    """Like the first that waits took 400 s, like the second one: for it alone the long one stops."""
    past = [replace(job(f"past{number}", 1, number, 1), model="brief") for number in range(5)]
    past.append(replace(job("past", 1, 5, 400), model="lengthy"))
    waiting = [replace(job("lengthy", 1, 420, 400), model="lengthy"), replace(job("brief", 1, 480, 1), model="brief")]
    found = finish_s([*past, job("long", 1, 411, 1000), *waiting], 1, 1, least_run_s=5.0, long_s=50.0, patience=0.0)
    assert found["brief"] == 481.0


def test_the_one_long_job_is_found_behind_many_smaller_ones():
    jobs = [job("wide", 2, 0, 100), *(job(f"single{number}", 1, 60, 1000) for number in range(4))]
    waiting = [job("short", 1, 125, 10), job("too", 1, 125, 10)]
    assert finish_s([*jobs, *waiting], 6, 1, least_run_s=5.0, long_s=100.0)["short"] == 135.0
    found = finish_s([*jobs, waiting[0]], 6, 1, least_run_s=5.0, long_s=100.0)
    assert found["short"] > 135.0  # for one GPU two are not given up


@pytest.mark.parametrize("seed", range(30))
def test_the_compiled_search_finds_what_a_look_at_every_unit_does(seed):
    """Free GPUs cost nothing, those of jobs that may stop as many as these have, the others of a unit no part of it."""
    rng = np.random.default_rng(seed)
    below, parts, units = (int(rng.integers(1, 5)) for _ in range(3))
    unit, wanted, jobs = below * parts, int(rng.integers(1, parts + 1)), int(rng.integers(1, 9))
    all_gpus, num_gpus = unit * units, rng.integers(1, 5, jobs)
    gpus, places = rng.integers(0, all_gpus, 2 * jobs), np.sort(rng.integers(0, jobs, 2 * jobs))
    free = np.flatnonzero(rng.random(all_gpus) < 0.7)
    cost = dict.fromkeys(free.tolist(), 0) | {gpu: num_gpus[place] for gpu, place in zip(gpus, places, strict=True)}
    found = []
    for number in range(units):
        whole = [range(first, first + below) for first in range(number * unit, number * unit + unit, below)]
        costs = [(sum(map(cost.__getitem__, part)), part.start) for part in whole if all(gpu in cost for gpu in part)]
        if len(costs) >= wanted:
            chosen = {first for _, first in sorted(costs)[:wanted]}
            who = {
                place for gpu, place in zip(gpus.tolist(), places.tolist(), strict=True) if gpu - gpu % below in chosen
            }
            found.append((sum(cost for cost, _ in sorted(costs)[:wanted]), number, who))
    expected = [who for _, _, who in sorted(found)[:4]]
    rows = _cheapest(free, gpus, places, num_gpus, (all_gpus, unit, below, wanted))
    assert [set(np.flatnonzero(row).tolist()) for row in rows] == expected
