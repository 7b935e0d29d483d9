"""Tables of causes, what is drawn from them, and what it does to jobs: by hand and beside the reference simulator."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_by_hand import data_parallel_job
from reference_simulator import reference_simulate
from scipy.stats import poisson
from tiers import examples

import ddlsched
from ddlsched.cluster.capacity_changes import CapacityChange, DrawnChanges, FailurePlaces, Strike
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import PRESETS, FailureCause, read_causes
from ddlsched.errors import InputError
from topologies.star import Star

HEADER = "cause,per,per_1000_days,takes,noticed_s,repair_s,shape,warned,least_gpus,lemon_share,lemon_times,slowdown"


def test_a_server_that_a_gpu_took_is_down_until_it_comes_back() -> None:
    """Times near the end of the clock: where nothing came back, this would end at once and not never."""
    cause = FailureCause(cause="gpu", per="gpu", mtbf_s=1e8, takes="server", repair_s=1e7)
    changes = list(DrawnChanges([cause], FailurePlaces(range(0, 5, 2)), np.random.default_rng(0)).changes())
    for server in (0, 1):
        fails = [change.fails for change in changes if change.server == server]
        assert fails == [n % 2 == 0 for n in range(len(fails))]
        assert len(fails) > 200


def test_published_tables_are_read() -> None:
    assert PRESETS == ("acme", "llama3-16k", "rsc-1", "rsc-2")
    llama = read_causes("llama3-16k")
    days = {"gpu": 16_384 * 54, "server": 2048 * 54}
    counts = {cause.cause: days[cause.per] * 86_400 / cause.mtbf_s for cause in llama}
    assert sum(counts.values()) == pytest.approx(419 + 47, rel=1e-5)
    assert counts["faulty-gpu"] == pytest.approx(148, rel=1e-5)


@pytest.mark.long
def test_llama_3_is_interrupted_as_often_by_each_cause_as_published() -> None:
    """54 days of 16,384 GPUs: each count is within the 99 % interval of a Poisson distribution, and so are the sums."""
    causes, end_ns = read_causes("llama3-16k"), round(54 * 86_400e9)
    places = FailurePlaces(range(0, 16_385, 8))
    changes = itertools.takewhile(
        lambda change: change.time_ns < end_ns, DrawnChanges(causes, places, np.random.default_rng(0)).changes()
    )
    late = {cause.cause for cause in causes if cause.hangs}  # the server goes when it is noticed
    found = Counter(
        each.cause for each in changes if isinstance(each, Strike) or (each.fails and each.cause not in late)
    )
    published = {c.cause: (16_384 if c.per == "gpu" else 2048) * 54 * 86_400 / c.mtbf_s for c in causes}
    for cause, mean in published.items():
        assert poisson.ppf(0.005, mean) <= found[cause] <= poisson.ppf(0.995, mean)
    planned = found["planned-maintenance"]
    assert poisson.ppf(0.005, 47) <= planned <= poisson.ppf(0.995, 47)
    assert poisson.ppf(0.005, 419) <= found.total() - planned <= poisson.ppf(0.995, 419)


def test_a_slow_gpu_may_be_noticed_within_a_second() -> None:
    cause = FailureCause(cause="slow", per="gpu", takes="server", mtbf_s=1e6, noticed_s=0.5, slowdown=2.0)
    assert cause.slows


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,gpu,1,job,never,,,,,,", None),
        ("a,gpu,0,,,,,,,,", "column per_1000_days: 0 is no rate"),
        ("a,rack,1,server,,,,,,,", "takes is 'server'; expected job, or no less than a rack"),
        ("a,server,1,,soon,,,,,,", "column noticed_s: 'soon' is no number"),
        ("a,server,1,,5,,,1,,,", "is warned of"),
        ("a,server,1,,,,,2,,,", "column warned: '2' is out of range"),
        ("a,server,1,,,,,,8,,", "least_gpus is 8"),
        ("a,server,1,,,,99,,,,", "shape is 99.0"),
        ("a,server,1,,,,,,,,0.5", "lemon_times is 0.5"),
        ("a,rack,1,,never,,,,,,,2", "slowdown is 2.0; expected it per gpu or server"),
    ],
)
def test_a_table_says_where_it_is_wrong(tmp_path, row, said) -> None:
    path = tmp_path / "causes.csv"
    path.write_text(f"{HEADER}\n{row}{',' * (HEADER.count(',') - row.count(','))}\n")
    if said is None:
        assert read_causes(str(path))[0].noticed_s == inf
        return
    with pytest.raises(InputError, match=r"causes\.csv") as told:
        read_causes(str(path))
    assert said in str(told.value)


def test_a_misspelt_table_names_the_nearest() -> None:
    with pytest.raises(InputError, match="rsc-1"):
        read_causes("rsc1")


def drawn(cause, places, count, seed=0):
    return list(itertools.islice(DrawnChanges([cause], places, np.random.default_rng(seed)).changes(), count))


def test_a_rack_goes_and_comes_as_one() -> None:
    rack = FailureCause(cause="power", per="rack", mtbf_s=1000.0, takes="rack", repair_s=10.0)
    changes = drawn(rack, FailurePlaces(range(5), racks=[[0, 2], [1, 3]]), 400)
    for one, other in zip(changes[::2], changes[1::2], strict=True):
        assert (one.time_ns, one.fails) == (other.time_ns, other.fails)
        assert [one.server, other.server] in ([0, 2], [1, 3])


def test_a_unit_of_a_level_goes_as_one_and_must_hold_what_fails() -> None:
    places = FailurePlaces(range(9), racks=[[0, 1], [2, 3], [4, 5], [6, 7]], levels={"pod": [0, 0, 0, 0, 1, 1, 1, 1]})
    pod = FailureCause(cause="power", per="rack", mtbf_s=1000.0, takes="pod", repair_s=10.0)
    first = next(DrawnChanges([pod], places, np.random.default_rng(0)).changes())
    assert first.server in (0, 4)
    assert len({change.server for change in drawn(pod, places, 8) if change.fails}) in (4, 8)
    with pytest.raises(InputError, match="takes a rack; none holds a whole pod"):
        drawn(FailureCause(cause="a", per="pod", takes="rack"), places, 1)
    with pytest.raises(InputError, match="no level 'cpu'; expected gpu, server, job, or rack, pod"):
        drawn(FailureCause(cause="a", per="cpu", takes="job"), places, 1)


@pytest.mark.long
def test_lemons_have_their_multiple_of_the_rate_and_the_mean_stays() -> None:
    cause = FailureCause(cause="node", per="server", mtbf_s=1000.0, repair_s=1e-3, lemon_share=0.1, lemon_times=20.0)
    changes = drawn(cause, FailurePlaces(range(1001)), 40_000)
    failed = np.bincount([change.server for change in changes if change.fails], minlength=1000)
    lemons = np.random.default_rng(0).random(1000) < 0.1
    assert failed[lemons].mean() / failed[~lemons].mean() == pytest.approx(20, rel=0.1)
    span_s = changes[-1].time_ns / 1e9
    expected_s = 1000 * 2.9 / (lemons.sum() * 20 + (~lemons).sum())
    assert span_s / failed.sum() == pytest.approx(expected_s, rel=0.03)


def test_times_to_failure_may_be_weibull() -> None:
    cause = FailureCause(cause="worn", per="server", mtbf_s=100.0, repair_s=1e-9, shape=3.0)
    times = [change.time_ns for change in drawn(cause, FailurePlaces(range(2)), 8000) if change.fails]
    gaps_s = np.diff(times) / 1e9
    assert gaps_s.mean() == pytest.approx(100, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(0.3634, rel=0.05)  # of a Weibull distribution of shape 3


def test_what_never_comes_back_fails_once() -> None:
    cause = FailureCause(cause="gone", per="server", mtbf_s=10.0, repair_s=inf)
    changes = drawn(cause, FailurePlaces(range(4)), 100)
    assert sorted(change.server for change in changes) == [0, 1, 2]


def run(*causes, jobs, until_s=None, **given):
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2)
    disturbances = Disturbances(failures=causes, **given)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs), cluster, placement="first-fit", disturbances=disturbances, until_s=until_s
    )


def test_a_job_hangs_until_it_is_noticed_and_starts_again_where_it_was() -> None:
    """Struck once within its 100 s; the next failure is long after its end."""
    cause = FailureCause(cause="software", per="job", mtbf_s=40.0, takes="job", noticed_s=7.0)
    job = data_parallel_job("a", gpus=2, iterations=100, forward_s=0.0, backward_s=1.0)
    result = run(cause, jobs=[job], restart_s=3.0, checkpoint_iterations=10)
    failures = result.finished.failures
    assert failures
    row = result.jobs.iloc[0]
    assert row["restarts"] == len(failures)
    assert row["jct_s"] == pytest.approx(100 + row["lost_s"] + row["restart_s"])
    assert row["queueing_s"] == 0
    assert all(failure.lost_ns < 10e9 + 10e9 for failure in failures)
    assert {stay.gpus for stay in result.finished.stays} == {(0, 1)}


def test_what_nobody_notices_stops_nobody() -> None:
    cause = FailureCause(cause="silent", per="gpu", mtbf_s=20.0, takes="job", noticed_s=inf)
    job = data_parallel_job("a", gpus=2, iterations=100, forward_s=0.0, backward_s=1.0)
    result = run(cause, jobs=[job])
    assert result.jobs["jct_s"].tolist() == [100.0]
    assert {(failure.cause, failure.hang_ns) for failure in result.finished.failures} == {("silent", None)}


SLOW = FailureCause(cause="slow", per="gpu", mtbf_s=1e4, noticed_s=inf, repair_s=1e-3, slowdown=3.0)


def struck_at_s(places, **given):
    """Return when, of which GPU, and when its server goes, of the first failures by a slow GPU."""
    changes = itertools.islice(DrawnChanges([SLOW], places, np.random.default_rng(0), **given).changes(), 30)
    return [(type(each).__name__, each.time_ns / 1e9) for each in changes]


@pytest.mark.long
def test_a_slow_gpu_that_nobody_looks_for_stays_slow() -> None:
    """On two servers of one GPU: the tasks of a job of both that begin later take three times as long."""
    job = data_parallel_job("a", gpus=2, iterations=20_000, forward_s=0.0, backward_s=1.0)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        ddlsched.Cluster(num_servers=2, gpus_per_server=1),
        placement="first-fit",
        disturbances=Disturbances(failures=(SLOW,)),
        seed=0,
    )
    hit_s = [failure.time_ns / 1e9 for failure in result.finished.failures]
    quick = math.ceil(hit_s[0])  # iterations that began before
    assert result.jobs["jct_s"].tolist() == [quick + 3.0 * (20_000 - quick)]
    assert {failure.hang_ns for failure in result.finished.failures} == {None}


@pytest.mark.long
def test_a_check_finds_a_slow_gpu_whose_server_is_repaired() -> None:
    """Every 100 s: its server goes then, the job starts again at the old speed 1 ms later on average."""
    kinds = struck_at_s(FailurePlaces(range(3)), check_ns=100 * 10**9)
    struck = [time_s for kind, time_s in kinds if kind == "Strike"]
    gone = [time_s for kind, time_s in kinds[1::3]]
    assert gone == [100 * math.ceil(time_s / 100) for time_s in struck[: len(gone)]]
    job = data_parallel_job("a", gpus=2, iterations=20_000, forward_s=0.0, backward_s=1.0)
    result = run(SLOW, jobs=[job], health="repeated-failures:count=99,check_s=100")
    lost_s = [
        (100 - failure.time_ns / 1e9 % 100) * 2 / 3 for failure in result.finished.failures if failure.hang_ns is None
    ]
    assert lost_s
    assert result.jobs["jct_s"][0] == pytest.approx(20_000 + sum(lost_s), abs=4 * len(lost_s))


def test_a_cause_of_gpus_strikes_one_the_first_too() -> None:
    cause = FailureCause(cause="gpu", per="gpu", mtbf_s=10.0, takes="job", noticed_s=1.0)
    struck = {tuple(each.gpus) for each in drawn(cause, FailurePlaces(range(0, 6, 2)), 100) if isinstance(each, Strike)}
    assert struck == {(gpu,) for gpu in range(max(struck)[0] + 1)}


def test_a_server_goes_when_the_hang_is_noticed() -> None:
    cause = FailureCause(cause="gpu", per="gpu", mtbf_s=300.0, noticed_s=7.0, repair_s=20.0)
    changes = drawn(cause, FailurePlaces(range(0, 6, 2)), 400)
    strikes = [change for change in changes if isinstance(change, Strike)]
    goes = {
        (change.time_ns, change.server) for change in changes if isinstance(change, CapacityChange) and change.fails
    }
    late = [strike for strike in strikes if (strike.time_ns + 7_000_000_000, strike.gpus[0] // 2) in goes]
    assert len(late) > 0.8 * len(strikes)  # the others' server went down for another GPU meanwhile, or has yet to


CAUSES = st.lists(
    st.builds(
        lambda per, takes, noticed_s, number, mtbf_s, shape, slowdown: FailureCause(
            cause=f"{per}-{number}",
            per=per,
            takes="job" if per == "job" else "rack" if per == "rack" else takes,
            noticed_s=noticed_s,
            mtbf_s=mtbf_s,
            shape=shape,
            repair_s=3.0,
            slowdown=slowdown if per in ("gpu", "server") and takes != "job" and noticed_s > 0 else 1.0,
        ),
        st.sampled_from(["gpu", "server", "rack", "job"]),
        st.sampled_from(["job", "server", "rack"]),
        st.sampled_from([0.0, 1.5, 4.0, inf]),
        st.integers(0, 9),
        st.sampled_from([15.0, 60.0]),
        st.sampled_from([1.0, 2.0]),
        st.sampled_from([1.0, 1.7, 4.0]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda cause: cause.cause,
)


@pytest.mark.long
@settings(max_examples=examples(25, by_default=8), deadline=None)
@given(CAUSES, st.integers(0, 5), st.sampled_from([1, 3]), st.sampled_from([0.0, 2.0]), st.sampled_from([12, 60]))
def test_jobs_hang_fail_slow_down_and_restart_as_in_the_reference_simulator(
    causes, seed, commits, restart_s, iterations
) -> None:
    jobs = [
        data_parallel_job(
            name, gpus=gpus, iterations=iterations, forward_s=0.4, backward_s=0.6, message_bytes=2e8, arrival_s=s
        )
        for name, gpus, s in (("a", 3, 0.0), ("b", 1, 1.0), ("c", 2, 2.5), ("d", 4, 6.0))
    ]
    given_both = {
        "placement": "first-fit",
        "order": "srsf",
        "communication": "bounded-overlap:limit=2",
        "contention": "linear",
        "disturbances": Disturbances(failures=tuple(causes), checkpoint_iterations=commits, restart_s=restart_s),
        "until_s": 150.0,
        "seed": seed,
    }
    workload, cluster = ddlsched.Workload.of(jobs), ddlsched.Cluster(num_servers=3, gpus_per_server=2)
    engine = ddlsched.simulate(workload, cluster, **given_both)
    expected = reference_simulate(workload, cluster, topology=Star(), **given_both).jobs
    records = engine.finished.state.jobs
    for number, job in enumerate(jobs):
        outcome = expected[job.job_id]
        assert records.finish_ns[number] == outcome.finish_ns
        assert records.lost_ns[number] == outcome.lost_ns
        assert records.restarts[number] == outcome.restarts
        assert records.restarting_ns[number] == outcome.phases_ns[5]
        assert records.queueing_ns[number] == outcome.phases_ns[0]


@pytest.mark.parametrize(("noticed_s", "hangs"), [(0.0, False), (0.5, True), (2.0, True)])
def test_a_job_hangs_where_its_failure_is_noticed_later(noticed_s: float, hangs: bool) -> None:
    assert FailureCause(cause="node", per="server", mtbf_s=1000.0, noticed_s=noticed_s, repair_s=1.0).hangs == hangs
