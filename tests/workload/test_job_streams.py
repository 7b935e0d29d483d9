"""Streams drawn from a mix or a trace: their load, their arrivals, their seeds, and what is refused."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job
from tiers import tried

import ddlsched
from ddlsched.comparisons.alone import alone_s
from ddlsched.errors import InputError
from ddlsched.workload.generators import streams
from ddlsched.workload.generators.elastic_mix import elastic_mix
from ddlsched.workload.generators.microsoft import MODELS
from ddlsched.workload.generators.monkeytree_mix import MODELS as MIXED_MODELS
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix
from ddlsched.workload.generators.streams import gpu_seconds, stream, trace_window
from ddlsched.workload.workload_files import draws_from_seed, workload_of, write_workload

CLUSTER = ddlsched.Cluster()


def arrivals_of(workload) -> np.ndarray:
    return np.array([job.arrival_s for job in workload])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Jobs whose iterations say when they came: one every 10 s for 10,000 s."""
    jobs = ddlsched.microsoft_160(seed=3, scale=0.01).jobs
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    came = [
        ddlsched.Job(
            job_id=f"job-{n}",
            arrival_s=10.0 * n,
            num_gpus=1,
            iterations=n + 1,
            iteration=jobs[0].iteration,
            gpu_memory_mb=1.0,
        )
        for n in range(1001)
    ]
    write_workload(ddlsched.Workload.of(came), path)
    return path


def test_the_published_mix_arrives_within_20_minutes():
    jobs, rng = ddlsched.microsoft_160(seed=3), np.random.default_rng(3)
    rng.permutation(160)
    rng.integers(len(MODELS), size=160)
    assert [job.iterations for job in jobs] == rng.integers(1000, 6000, size=160, endpoint=True).tolist()
    assert arrivals_of(jobs) == pytest.approx(np.sort(rng.uniform(0.0, 20 * 60.0, size=160)), abs=1e-8)
    assert Counter(job.num_gpus for job in jobs) == {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}


@pytest.mark.parametrize(("drawn", "window"), [(min, (0, 2, 7.0)), (max, (2, 4, 9.5))])
def test_a_window_begins_anywhere_that_it_fits(drawn, window):
    rng = mock.Mock(uniform=drawn)
    assert streams._timed("a.csv", np.array([7.0, 8.0, 9.5, 10.0, 11.0]), 1.5, rng) == window


def test_a_mix_for_16_gpus_has_jobs_of_16():
    assert max(job.num_gpus for job in monkeytree_mix(seed=1, jobs=20, gpus=16, most_gpus=16)) == 16


def test_gpu_seconds_are_the_time_alone_times_the_gpus():
    workload = ddlsched.microsoft_160(seed=1, scale=0.01)
    alone = alone_s(workload, CLUSTER, "linear") * np.array([job.num_gpus for job in workload])
    assert [gpu_seconds(job) for job in workload] == pytest.approx(alone, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("load", "arrivals"),
    tried(itertools.product([0.3, 0.9], ["poisson", "diurnal:day_s=20000"]), lambda place: place in (1, 2)),
)
def test_as_much_arrives_as_the_load_says(arrivals, load):
    kind, _, more = arrivals.partition(":")
    options = f"load={load},num_jobs=4000,scale=0.1,arrivals={kind}{',' + more if more else ''}"
    ratios = []
    for seed in range(6):
        workload = workload_of(f"stream:{options}", seed)
        ratios.append(sum(map(gpu_seconds, workload)) / arrivals_of(workload)[-1] / 64 / load)
    assert np.mean(ratios) == pytest.approx(1.0, rel=0.05)


@pytest.mark.long
def test_a_day_has_its_swing():
    workload = stream(seed=1, num_jobs=20_000, scale=0.01, arrivals="diurnal", day_s=50_000.0, swing=0.8)
    phase = arrivals_of(workload) / 500.0 % 1.0
    assert np.mean(np.sin(2 * np.pi * phase)) == pytest.approx(0.4, abs=0.02)  # the mean of sin (1 + 0.8 sin)


@pytest.mark.parametrize(("day_s", "swing"), [(3.0, 0.8), (8.0, 0.3), (100.0, 0.0)])
def test_at_each_arrival_the_rate_of_a_day_has_come_as_far_as_a_steady_one(day_s: float, swing: float) -> None:
    """The integral of 1 + swing sin from 0 to there is the time of the steady process, but for the grid's 1/1000."""
    times = np.array([0.0, 0.5, 1.7, 4.0, 9.3])
    there = streams._diurnal(times, day_s, swing)
    w = 2 * np.pi / day_s
    assert there + swing / w * (1 - np.cos(w * there)) == pytest.approx(times, abs=1e-4 * day_s)


def test_arrivals_are_whole_nanoseconds() -> None:
    times = arrivals_of(stream(seed=1, num_jobs=50))
    assert times.tolist() == np.round(times, 9).tolist()


def test_a_seed_gives_the_same_jobs_and_another_gives_others():
    assert draws_from_seed("stream:load=0.5")
    one, again, other = (stream(seed=seed, num_jobs=50) for seed in (1, 1, 2))
    assert one == again
    assert arrivals_of(one).tolist() != arrivals_of(other).tolist()
    assert (np.diff(arrivals_of(one)) >= 0).all()


def test_a_window_holds_what_arrived_in_it_and_its_clock_starts_there(trace):
    starts = []
    for seed in range(20):
        window = trace_window(seed=seed, file=str(trace), length_s=500.0)
        assert len(window) == 50
        assert ((arrivals_of(window) >= 0) & (arrivals_of(window) < 500)).all()
        assert np.diff([job.iterations for job in window]).tolist() == [1] * 49
        starts.append(window.jobs[0].iterations)
    assert len(set(starts)) > 10


def test_a_window_as_long_as_the_trace_begins_with_it(trace):
    """1,001 jobs 10 s apart: the last arrives when the window has ended."""
    window = trace_window(seed=5, file=str(trace), length_s=10_000.0)
    assert arrivals_of(window).tolist() == [10.0 * number for number in range(1000)]


def test_resampling_keeps_the_arrivals_and_draws_the_jobs(trace):
    kept, drawn = (trace_window(seed=5, file=str(trace), length_s=500.0, resample=way) for way in (False, True))
    assert arrivals_of(kept).tolist() == arrivals_of(drawn).tolist()
    numbers = {job.iterations for job in drawn}
    assert numbers < {job.iterations for job in kept}


def test_a_window_is_stretched_to_a_load(trace):
    window = trace_window(seed=5, file=str(trace), length_s=500.0, load=0.5, gpus=8)
    as_it_was = trace_window(seed=5, file=str(trace), length_s=500.0)
    stretch = sum(map(gpu_seconds, as_it_was)) / (500 * 8 * 0.5)
    assert arrivals_of(window) == pytest.approx(arrivals_of(as_it_was) * stretch)


def test_a_window_of_jobs_holds_neighbours_however_they_come(trace):
    windows = [workload_of(f"trace:file={trace},num_jobs=30", seed) for seed in range(10)]
    for window in windows:
        assert np.diff([job.iterations for job in window]).tolist() == [1] * 29
        assert arrivals_of(window).tolist() == [10.0 * n for n in range(30)]
    assert len({window.jobs[0].iterations for window in windows}) > 5
    stretched = workload_of(f"trace:file={trace},num_jobs=30,load=0.5,gpus=8", 3)
    work_s = sum(map(gpu_seconds, windows[3]))
    assert arrivals_of(stretched)[-1] == pytest.approx(work_s / (0.5 * 8))


def test_a_stream_is_drawn_from_a_file(trace):
    workload = workload_of(f"stream:of={trace},num_jobs=40", 1)
    assert len(workload) == 40
    assert {job.num_gpus for job in workload} == {1}
    assert ddlsched.simulate(workload, until_s=100.0).summary()["jobs"] == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stream:load=0", "load is 0"),
        ("stream:arrivals=weekly", "expected poisson or diurnal"),
        ("stream:swing=2", "swing is 2"),
        ("stream:num_jobs=0", "num_jobs is 0"),
        ("stream:of=none.csv", "none.csv"),
        ("trace:file=FILE,length_s=1e6", "up to the trace's 10000"),
        ("trace:file=FILE,length_s=10000.01", "up to the trace's 10000"),
        ("trace:file=FILE,length_s=0", "expected seconds above 0"),
        ("trace:file=FILE,length_s=2", "expected a longer length_s"),
        ("trace:file=FILE,length_s=500,load=3", "load is 3"),
        ("trace:file=FILE,num_jobs=2000", "from 1 to the trace's 1001"),
        ("trace:file=FILE,num_jobs=0", "num_jobs is 0"),
        ("trace:file=FILE,num_jobs=1,load=0.5", "arrive at once"),
        ("trace:file=FILE", "length_s is None, num_jobs None; expected one of the two"),
        ("trace:file=FILE,num_jobs=5,length_s=5", "expected one of the two"),
    ],
)
def test_what_cannot_be_is_refused(trace, text, message):
    with pytest.raises(InputError, match=message):
        workload_of(text.replace("FILE", str(trace)), 1)


@pytest.mark.long
def test_the_middle_of_a_stream_counts_and_all_of_it_is_simulated():
    workload = stream(seed=2, num_jobs=50, scale=0.01)
    every, steady = (ddlsched.simulate(workload, steady=steady) for steady in (False, True))
    assert steady.jobs["counted"].tolist() == [10 <= number < 45 for number in range(50)]
    assert steady.jobs["finish_s"].tolist() == every.jobs["finish_s"].tolist()
    assert steady.summary()["jobs"] == 35
    assert steady.summary()["average_jct_s"] == pytest.approx(every.jobs["jct_s"][10:45].mean())
    few = ddlsched.simulate(stream(seed=2, num_jobs=4, scale=0.01), steady=True)
    assert few.jobs["counted"].all()


@pytest.mark.parametrize(
    ("arrivals_s", "counted"),
    [
        ([0] * 20, range(4, 18)),
        ([0] * 8 + [1] * 12, range(4, 18)),
        ([*range(17), 99, 99, 99], range(4, 18)),
        ([9, 9, 9, 0, 0], [0, 1, 2, 4]),
        ([0], [0]),
    ],
    ids=["all at once", "a tie at the start", "a tie at the end", "not in order", "one job"],
)
def test_of_jobs_that_arrive_at_once_the_stated_share_counts(arrivals_s, counted):
    jobs = [data_parallel_job(str(number), arrival_s=at_s, forward_s=1.0) for number, at_s in enumerate(arrivals_s)]
    one_gpu = ddlsched.Cluster(num_servers=1, gpus_per_server=1, exclusive=True)
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), one_gpu, steady=True)
    assert np.flatnonzero(result.jobs["counted"]).tolist() == list(counted)
    assert result.summary()["jobs"] == len(counted)
    assert result.summary()["average_jct_s"] == pytest.approx(result.jobs["jct_s"][list(counted)].mean())


def test_a_steady_part_and_a_warm_up_exclude_each_other():
    with pytest.raises(InputError, match="expected one of the two"):
        ddlsched.simulate(stream(seed=2, num_jobs=20, scale=0.01), steady=True, warmup_s=1.0)


@pytest.mark.long
def test_a_comparison_counts_the_middle_of_its_streams(tmp_path):
    text = "stream:num_jobs=20,scale=0.002"
    compared = ddlsched.compare(text, ["srsf-1"], seeds=2, options={"steady": True}, processes=1, folder=tmp_path)
    assert compared.runs["jobs"].tolist() == [14, 14]


@pytest.mark.long
def test_elastic_jobs_have_the_spread_that_is_told() -> None:
    jobs = elastic_mix(seed=1, gpus=1000, hours=8.0, work_hours=2.0)
    assert len(jobs) == pytest.approx(0.9 * 1000 * 8 / 2, rel=0.05)
    work_h = np.array([job.samples / job.gpu_batch * job.curve.iteration_s(1, job.gpu_batch) for job in jobs]) / 3600
    assert work_h.mean() == pytest.approx(2.0, rel=0.05)
    assert np.log(work_h).std() == pytest.approx(1.0, rel=0.05)
    for told in ([job.curve.sample_s for job in jobs], [job.message_bytes for job in jobs]):
        assert np.log(told).std() == pytest.approx(0.3, rel=0.05)


def test_jobs_that_grow_and_shrink_are_refused(tmp_path):
    elastic = workload_of("elastic-mix:gpus=8", 1)
    write_workload(elastic, tmp_path / "elastic.json")
    with pytest.raises(InputError, match="expected rigid jobs"):
        stream(seed=1, of=str(tmp_path / "elastic.json"))


@pytest.mark.parametrize("make", [streams.gpu_seconds, streams.stream, streams.trace_window])
def test_times_are_those_on_the_servers_of_the_default_cluster(make: Callable[..., object]) -> None:
    assert inspect.signature(make).parameters["gpus_per_server"].default == ddlsched.Cluster().gpus_per_server


def test_sharded_llama_models_differ_in_compute_as_those_of_tensor_parallelism_do() -> None:
    compute_s = {model.name: model.compute_s for model in MIXED_MODELS}
    sharded, split = ([compute_s[f"llama{n}-70b-{kind}"] for n in (2, 3)] for kind in ("fsdp", "tp"))
    assert sharded[1] / sharded[0] == pytest.approx(split[1] / split[0])
