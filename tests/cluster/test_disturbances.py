"""Jitter, slow GPUs and failures: what is drawn, and what it does to jobs, by hand."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from jobs_by_hand import ServiceSeen, data_parallel_job

import ddlsched
from ddlsched.cluster.capacity_changes import CapacityChange, FailurePlaces
from ddlsched.cluster.disturbances import Disturbances, Outage, jitter_factors, read_outages
from ddlsched.errors import InputError
from ddlsched.results.slices import compute_slices


@pytest.mark.parametrize(("cv", "found"), [(0.05, 0.05), (0.1, 0.09998), (0.5, 0.4995), (1.0, 0.9935)])
def test_jitter_has_mean_one_and_nearly_its_cv(cv, found) -> None:
    factors = jitter_factors(cv)
    assert factors.mean() == pytest.approx(1.0, abs=1e-12)
    assert factors.std() == pytest.approx(found, abs=1e-4)
    assert (np.diff(factors) > 0).all()


job = functools.partial(data_parallel_job, backward_s=1.0)


def simulated(*jobs, servers=1, gpus_per_server=1, seed=0, timeline=False, **disturbances):
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus_per_server)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        cluster,
        placement="first-fit",
        seed=seed,
        timeline=timeline,
        disturbances=Disturbances(**disturbances),
    )


def forward_times_s(seed: int) -> np.ndarray:
    """Return the compute times of 4 workers (columns) in 2000 iterations."""
    result = simulated(
        job(gpus=4, iterations=2000, backward_s=1.0), gpus_per_server=4, seed=seed, timeline=True, jitter_cv=0.3
    )
    slices = compute_slices(result).query("task == 'backward'").sort_values(["iteration", "gpu"])
    return ((slices["end_ns"] - slices["start_ns"]) / 1e9).to_numpy().reshape(2000, 4)


def test_jitter_varies_independently_over_iterations_and_workers() -> None:
    times_s = forward_times_s(seed=1)
    assert times_s.mean() == pytest.approx(1.0, abs=5 * 0.3 / np.sqrt(8000))
    assert times_s.std() == pytest.approx(0.3, rel=0.05)
    worst = 4.5 / np.sqrt(2000)  # of 4.5 standard errors of a correlation of independent values
    assert np.abs(np.corrcoef(times_s.T) - np.eye(4)).max() < worst
    for lag in (1, 2, 3, 16, 256):
        assert abs(np.corrcoef(times_s[lag:, 0], times_s[:-lag, 0])[0, 1]) < worst


def test_jitter_follows_from_the_seed() -> None:
    assert (forward_times_s(seed=1) == forward_times_s(seed=1)).all()
    assert (forward_times_s(seed=1) != forward_times_s(seed=2)).mean() > 0.99


def test_an_iteration_waits_for_its_slowest_worker() -> None:
    times_s = forward_times_s(seed=3)
    result = simulated(job(gpus=4, iterations=2000), gpus_per_server=4, seed=3, jitter_cv=0.3)
    assert result.jobs.loc[0, "jct_s"] == pytest.approx(times_s.max(axis=1).sum(), abs=1e-6)


def test_every_gpu_is_a_straggler_if_the_share_is_one_and_none_if_it_is_zero() -> None:
    two = [job("a"), job("b")]
    slow = simulated(*two, gpus_per_server=2, straggler_share=1.0, straggler_slowdown=2.5)
    assert slow.jobs["jct_s"].tolist() == [2.5, 5.0]  # one behind the other on GPU 0
    assert simulated(*two, gpus_per_server=2).jobs["jct_s"].tolist() == [1.0, 2.0]


def test_the_share_of_stragglers_is_their_probability() -> None:
    slowdowns = Disturbances(straggler_share=0.2).slowdowns(10_000, np.random.default_rng(0))
    assert set(slowdowns) == {1.0, 2.0}
    assert (slowdowns == 2.0).mean() == pytest.approx(0.2, abs=0.02)


def test_a_failure_loses_the_iteration_that_was_running_and_the_job_goes_on_after_the_repair() -> None:
    result = simulated(job(iterations=4), outages=(Outage(server=0, from_s=2.5, to_s=10.0),))
    row = result.jobs.loc[0]
    assert (row.finish_s, row.start_s, row.restarts) == (12.0, 0.0, 1)
    assert (row.queueing_s, row.computing_s, row.lost_s, row.compute_s) == (7.5, 4.5, 0.5, 4.5)
    assert result.placements[["from_s", "to_s"]].to_numpy().tolist() == [[0.0, 2.5], [10.0, 12.0]]


@pytest.mark.parametrize("forward_s", [0.0, 0.25])
def test_work_since_the_last_checkpoint_is_lost_and_a_restart_takes_time(forward_s: float) -> None:
    outages = (Outage(server=0, from_s=5.5, to_s=6.0),)
    split = job(iterations=9, forward_s=forward_s, backward_s=1.0 - forward_s)
    result = simulated(split, outages=outages, checkpoint_iterations=3, restart_s=0.25)
    assert (result.skipped_iterations > 0) == (forward_s > 0.0)  # where a task takes no time, none is
    row = result.jobs.loc[0]
    assert (row.lost_s, row.restart_s, row.finish_s) == (2.5, 0.25, 12.25)


@pytest.mark.parametrize("gpus", [1, 4])
def test_service_used_keeps_what_a_failure_undid(gpus: int) -> None:
    order = ServiceSeen()
    ddlsched.simulate(
        ddlsched.Workload.of([job(gpus=gpus, iterations=9, forward_s=0.25, backward_s=0.75)]),
        ddlsched.Cluster(num_servers=1, gpus_per_server=4),
        order=order,
        disturbances=Disturbances(outages=(Outage(server=0, from_s=5.5, to_s=6.0),), checkpoint_iterations=3),
    )
    # Of 5 iterations and a forward pass three iterations are kept.
    assert order.seen["a"][0] == (0, 0)
    assert order.seen["a"][-1] == (3_000_000_000 * gpus, 5_250_000_000 * gpus)


def test_a_job_moves_to_a_server_that_is_up_and_others_stay() -> None:
    outages = (Outage(server=0, from_s=0.5),)
    result = simulated(job("a"), job("b", gpus=1, memory_mb=32768.0), servers=3, outages=outages)
    assert result.gpus_of("a") == (2,)
    assert result.gpus_of("b") == (1,)
    assert result.jobs["finish_s"].tolist() == [1.5, 1.0]


def test_a_job_that_ends_when_its_server_fails_has_ended() -> None:
    result = simulated(job(), outages=(Outage(server=0, from_s=1.0),))
    assert result.jobs.loc[0, "finish_s"] == 1.0


def test_a_transfer_of_a_failed_job_frees_its_links_for_others() -> None:
    jobs = [job("a", gpus=2, backward_s=0.1, message_bytes=1e9), job("b", gpus=2, backward_s=0.2, message_bytes=1e9)]
    undisturbed = simulated(*jobs, servers=3)
    assert undisturbed.jobs["gpus"].tolist() == [2, 2]
    result = simulated(*jobs, servers=3, outages=(Outage(server=0, from_s=0.5, to_s=0.6),))
    # Both are stopped at 0.5 and start again on servers 1 and 2.
    assert result.jobs["restarts"].tolist() == [1, 1]
    assert {result.gpus_of("a"), result.gpus_of("b")} == {(1, 2)}


def test_without_a_repair_a_run_whose_jobs_cannot_go_on_says_so() -> None:
    with pytest.raises(ddlsched.SimulationError, match="keeps waiting with jobs a"):
        simulated(job(), outages=(Outage(server=0, from_s=0.5),))


@pytest.mark.long
def test_a_job_that_failures_never_let_get_on_is_an_error_unless_the_run_is_cut_off() -> None:
    faults = {"server_mtbf_s": 0.2, "server_repair_s": 0.01, "restart_s": 100.0}
    with pytest.raises(
        ddlsched.SimulationError, match="failures stopped job 'a' 1000 times in a row before it reached"
    ):
        simulated(job(iterations=4), **faults)
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=1)
    options = {"disturbances": Disturbances(**faults), "until_s": 1000.0}
    assert (
        ddlsched.simulate(ddlsched.Workload.of([job(iterations=4)]), cluster, **options).jobs.loc[0, "restarts"] > 1000
    )


def test_outages_may_be_the_name_of_a_table(tmp_path) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("server,from_s,to_s\n0,2.5,10\n")
    assert Disturbances(outages=str(path)) == Disturbances(outages=(Outage(server=0, from_s=2.5, to_s=10.0),))


def test_random_failures_alternate_and_have_their_means() -> None:
    faults = Disturbances(server_mtbf_s=100.0, server_repair_s=10.0)
    changes = list(itertools.islice(faults.capacity_changes(FailurePlaces(range(6)), np.random.default_rng(1)), 20_000))
    assert changes == sorted(changes)
    for server in range(5):
        mine = [change for change in changes if change.server == server]
        assert [change.fails for change in mine] == [n % 2 == 0 for n in range(len(mine))]
        times_s = np.array([0] + [change.time_ns for change in mine]) / 1e9
        up_s, down_s = np.diff(times_s)[::2], np.diff(times_s)[1::2]
        assert up_s.mean() == pytest.approx(100.0, rel=0.12)
        assert down_s.mean() == pytest.approx(10.0, rel=0.12)


def test_a_server_that_comes_back_and_fails_at_the_same_instant_is_down() -> None:
    outages = (Outage(server=0, from_s=1, to_s=2), Outage(server=0, from_s=2, to_s=3))
    changes = list(Disturbances(outages=outages).capacity_changes(FailurePlaces(range(2)), np.random.default_rng(0)))
    assert changes == [
        CapacityChange(10**9, True, 0),
        CapacityChange(2 * 10**9, False, 0),
        CapacityChange(2 * 10**9, True, 0),
        CapacityChange(3 * 10**9, False, 0),
    ]
    assert simulated(job(iterations=2), outages=outages).jobs.loc[0, "finish_s"] == 4.0


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"jitter_cv": -0.1}, "jitter_cv is -0.1; expected a number from 0 to 10"),
        ({"jitter_cv": float("nan")}, "jitter_cv is nan"),
        ({"straggler_share": 1.1}, "straggler_share is 1.1; expected a number from 0 to 1"),
        ({"straggler_slowdown": 0.5}, "straggler_slowdown is 0.5; expected a number from 1"),
        ({"server_mtbf_s": 0.0}, "server_mtbf_s is 0.0; expected seconds from 0.001 to 9.2"),
        ({"jitter_cv": "0.1"}, "jitter_cv is '0.1'; expected a number"),
        ({"outages": [(0, 5.0, 20.0)]}, "expected Outage objects, or a file's name"),
        ({"outages": "none.csv"}, "none.csv: no such file"),
        ({"server_repair_s": float("inf")}, "server_repair_s is inf"),
        ({"checkpoint_iterations": 0}, "checkpoint_iterations is 0; expected a whole number from 1"),
        ({"checkpoint_iterations": 1.5}, "checkpoint_iterations is 1.5"),
        ({"restart_s": -1}, "restart_s is -1; expected seconds from 0"),
        ({"prediction_error": -0.1}, "prediction_error is -0.1; expected a number from 0 to 10"),
        ({"prediction_error": float("nan")}, "prediction_error is nan"),
        ({"server_mtbf_s": 5.0, "outages": (Outage(server=0, from_s=1),)}, "both outages and server_mtbf_s"),
    ],
)
def test_disturbances_that_cannot_be_are_refused(fields, fault) -> None:
    with pytest.raises(ddlsched.InputError, match=fault):
        Disturbances(**fields)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("server,from_s,to_s\n0,1,1\n", r"row 1 \(line 2\): outage: from 1.0 to 1.0 s; expected 0 <= from_s < to_s"),
        ("server,from_s,to_s\nx,1,2\n", r"row 1 \(line 2\), column server: 'x' is no number"),
        ("server,from_s,to_s\n0,1,5\n0,4,6\n", "server 0 is down from 1.0 to 5.0 s and again from 4.0 s"),
        ("server,from_s\n0,1\n", "column 'to_s' is missing"),
        ("", "is empty; expected a header row"),
    ],
)
def test_outages_that_cannot_be_are_refused(tmp_path, text, fault) -> None:
    path = tmp_path / "outages.csv"
    path.write_text(text)
    with pytest.raises(ddlsched.InputError, match=fault):
        read_outages(path)


def test_outages_are_read(tmp_path) -> None:
    path = tmp_path / "outages.csv"
    path.write_text("server,from_s,to_s\n3,1.5,\n0,1,2\n")
    assert read_outages(path) == (Outage(server=3, from_s=1.5), Outage(server=0, from_s=1.0, to_s=2.0))


def test_what_is_no_disturbances_is_refused() -> None:
    with pytest.raises(ddlsched.InputError, match=r"disturbances is .* expected ddlsched.Disturbances"):
        ddlsched.simulate(ddlsched.Workload.of([job()]), disturbances={"jitter_cv": 0.1})


def test_an_outage_of_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(ddlsched.InputError, match="outage of server 1: the cluster's servers are 0 to 0"):
        simulated(job(), outages=(Outage(server=1, from_s=1.0),))


@pytest.mark.parametrize(
    ("given", "draws"),
    [
        ({}, False),
        ({"jitter_cv": 0.1}, True),
        ({"straggler_share": 0.1}, True),
        ({"prediction_error": 0.1}, True),
        ({"server_mtbf_s": 100.0}, True),
        ({"outages": (ddlsched.Outage(server=0, from_s=1.0, to_s=2.0),), "restart_s": 1.0}, False),
    ],
)
def test_what_depends_on_the_seed(given, draws):
    assert ddlsched.Disturbances(**given).draws is draws


@pytest.mark.parametrize("wrong", ["gb_per_s=0", "servers=0", "background_share=1.5"])
def test_a_store_of_checkpoints_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match=f"checkpoint store: {wrong.partition('=')[0]} is {wrong.partition('=')[2]}"):
        Disturbances(checkpoint_to=f"storage:{wrong}")


@pytest.mark.parametrize(("again_s", "server", "overlap"), [(19.0, 1, True), (20.0, 1, False), (19.0, 2, False)])
def test_outages_of_a_server_that_overlap_are_refused(again_s: float, server: int, overlap: bool) -> None:
    outages = (Outage(server=server, from_s=again_s, to_s=30.0), Outage(server=1, from_s=10.0, to_s=20.0))
    if not overlap:
        assert Disturbances(outages=outages).outages == outages
        return
    with pytest.raises(
        InputError, match=r"server 1 is down from 10.0 to 20.0 s and again from 19.0 s; expected outages"
    ):
        Disturbances(outages=outages)


@pytest.mark.parametrize(
    ("given", "moves", "num_bytes"),
    [
        ({}, True, 12_345_679),
        ({"state_share": 0.5}, True, 6_172_840),
        ({"state_share": 0.0}, False, 0),
        ({"state_mb": 0.5}, True, 500_000),
        ({"state_mb": 0.0}, False, 0),
        ({"state_mb": 3.0}, True, 3_000_000),
    ],
)
def test_a_job_takes_along_what_is_told_or_a_part_of_its_memory(
    given: dict[str, float], moves: bool, num_bytes: int
) -> None:
    told = Disturbances(**given)  # type: ignore[arg-type]
    assert (told.moves_state, told.state_bytes(12_345_679)) == (moves, num_bytes)


@pytest.mark.parametrize(
    ("given", "restart_ns"),
    [
        ({}, 0),
        ({"restart_s": 2.0}, 2_000_000_000),
        ({"restart_gpu_s": 0.5}, 1_500_000_000),
        ({"restart_iterations": 2.5}, 18),  # 17.5 to the even one
        ({"restart_s": 1.0, "restart_gpu_s": 1.0, "restart_iterations": 1.0}, 4_000_000_007),
    ],
)
def test_a_restart_takes_a_time_a_time_a_gpu_and_iterations(given: dict[str, float], restart_ns: int) -> None:
    assert Disturbances(**given).restart_ns(3, 7) == restart_ns  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "draws"),
    [
        ({}, False),
        ({"jitter_cv": 0.5}, True),
        ({"straggler_share": 0.5}, True),
        ({"prediction_error": 0.5}, True),
        ({"server_mtbf_s": 5.0}, True),
        ({"outages": (Outage(server=0, from_s=1.0, to_s=2.0),)}, False),
    ],
)
def test_what_is_drawn_depends_on_the_seed(given: dict, draws: bool) -> None:
    assert Disturbances(**given).draws is draws


@pytest.mark.parametrize(("server", "there"), [(0, True), (2, True), (3, False)])
def test_an_outage_is_of_a_server_of_the_cluster(server: int, there: bool) -> None:
    given = Disturbances(outages=(Outage(server=server, from_s=1.0, to_s=2.0),))
    places = SimpleNamespace(num_servers=3)
    changes = lambda: list(given.capacity_changes(places, np.random.default_rng(0)))  # noqa: E731
    if there:
        assert changes() == [CapacityChange(10**9, True, server), CapacityChange(2 * 10**9, False, server)]
        return
    with pytest.raises(InputError, match="outage of server 3: the cluster's servers are 0 to 2"):
        changes()


def test_gpus_are_stragglers_at_random_and_lengths_are_misjudged_within_bounds() -> None:
    told = Disturbances(straggler_share=0.25, straggler_slowdown=3.0, prediction_error=0.5)
    drawn = np.random.default_rng(1).random(1000)
    assert told.slowdowns(1000, np.random.default_rng(1)).tolist() == np.where(drawn < 0.25, 3.0, 1.0).tolist()
    iterations, most = np.array([100, 3, 1, 50]), np.array([10**9, 10**9, 10**9, 60])
    factors = np.exp(0.5 * np.random.default_rng(2).standard_normal(4))
    predicted = np.clip(np.rint(iterations * factors), 1, most / 2)
    found = told.misjudged_iterations(iterations, most, np.random.default_rng(2))
    assert found.tolist() == (predicted - iterations).astype(int).tolist()
    assert (iterations + found).min() >= 1
    assert told.misjudged_iterations(np.array([1]), np.array([1]), np.random.default_rng(2)).tolist() == [0]
