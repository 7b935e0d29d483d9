"""Why jobs waited: by hand, and added up over random runs."""

from __future__ import annotations

import dataclasses
import functools

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from jobs_by_hand import data_parallel_job
from strategies import Setting, settings
from tiers import examples

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.engine.outcome import Window
from ddlsched.results import placed_waits
from ddlsched.results.explanation import explain, stays_of
from ddlsched.results.result import Result

PHASES = ("queueing", "gpu_wait", "network_wait")


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(20, by_default=5))
def test_the_blockers_of_a_phase_add_up_to_the_phase(setting: Setting) -> None:
    plugins = {kind: getattr(setting, kind) for kind in ("placement", "order", "communication", "contention")}
    result = ddlsched.simulate(
        setting.workload,
        dataclasses.replace(setting.cluster, topology=setting.topology),
        disturbances=setting.disturbances,
        until_s=setting.until_s,
        seed=setting.seed,
        timeline=True,
        **plugins,
    )
    for row in result.jobs.itertuples():
        seconds = explain(result, row.job_id).groupby("phase")["seconds"].sum()
        for phase in PHASES:
            assert seconds.get(phase, 0.0) == pytest.approx(getattr(row, f"{phase}_s"), abs=1e-8)


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(5, by_default=2))
def test_blockers_are_the_same_however_few_slices_are_looked_at_at_once(setting: Setting) -> None:
    result = ddlsched.simulate(setting.workload, setting.cluster, communication=setting.communication, timeline=True)
    for row in result.jobs.itertuples():
        whole = seconds_of_blockers(result, row.job_id)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(placed_waits, "_MOST_SLICES", 3)
            assert seconds_of_blockers(result, row.job_id) == pytest.approx(whole, rel=1e-9)


def seconds_of_blockers(result: Result, job_id: str) -> dict[tuple[str, ...], float]:
    return {tuple(map(str, row[:3])): row[3] for row in explain(result, job_id).itertuples(index=False)}


job = functools.partial(data_parallel_job, forward_s=1.0, message_bytes=1e9, memory_mb=600.0)


def simulated(jobs, *, servers=1, gpus_per_server=1, **options) -> Result:
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=gpus_per_server, gpu_memory_mb=1000.0)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs), cluster, placement="first-fit", order="fifo", timeline=True, **options
    )


def rows(result: Result, job_id: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in explain(result, job_id).itertuples(index=False)]


def test_a_job_in_the_queue_waits_for_memory_that_another_holds() -> None:
    result = simulated([job("a", gpus=1), job("b", gpus=1)])
    assert rows(result, "b") == [("queueing", "GPU memory of server 0", "a", 1.0)]
    assert rows(result, "a") == []


def test_a_job_waits_for_its_gpu_that_computes_for_another() -> None:
    result = simulated([job("a", gpus=1, memory_mb=1), job("b", gpus=1, memory_mb=1)])
    assert rows(result, "b") == [("gpu_wait", "GPU 0", "a", 1.0)]


def test_a_job_waits_for_a_link_that_carries_anothers_transfer() -> None:
    jobs = [job("a", gpus=2, memory_mb=1), job("b", gpus=2, memory_mb=1, forward_s=0.5)]
    result = simulated(jobs, servers=2, communication="bounded-overlap:limit=1")
    # a computes until 1 and sends until 1.856; b computes until 1.5 and waits for both servers' links.
    found = rows(result, "b")
    assert [row[:3] for row in found] == [
        ("gpu_wait", "GPU 0", "a"),
        ("gpu_wait", "GPU 1", "a"),
        ("network_wait", "link server 0", "a"),
        ("network_wait", "link server 1", "a"),
    ]
    assert [row[3] for row in found] == pytest.approx([0.5, 0.5, 0.178, 0.178])


@pytest.mark.long
def test_a_job_waits_for_the_repair_of_the_server_that_it_needs() -> None:
    outages = (Outage(server=0, from_s=0.25, to_s=3.0),)
    for memory_mb in (600.0, 1000.0):  # all that a GPU has
        result = simulated([job("a", gpus=1, memory_mb=memory_mb)], disturbances=Disturbances(outages=outages))
        assert rows(result, "a") == [("queueing", "repair of server 0", None, 2.75)]
        assert result.jobs.loc[0, "lost_s"] == 0.25


def test_a_jobs_stays_are_its_own() -> None:
    result = simulated([job("a", gpus=1), job("b", gpus=1)])
    stays = [stays_of(result, name)[["from_s", "to_s"]].values.tolist() for name in "ab"]
    assert stays == [[[0.0, 1.0]], [[1.0, 2.0]]]


class Later:
    """Places nothing before 2 s."""

    def place(self, job, cluster):
        return [0] if cluster.now_s >= 2 else None

    def wake_s(self, now_s):
        return 2.0


def test_a_job_waits_because_a_policy_chose_so() -> None:
    cluster = ddlsched.Cluster(num_servers=1, gpus_per_server=1)
    result = ddlsched.simulate(ddlsched.Workload.of([job("a", gpus=1)]), cluster, placement=Later(), timeline=True)
    ((phase, why, who, seconds),) = rows(result, "a")
    assert (phase, who, seconds) == ("queueing", None, 2.0)
    assert "placement policy chose" in why


def test_an_unknown_job_and_a_run_without_a_timeline_are_refused() -> None:
    with pytest.raises(ddlsched.UnknownNameError, match="no job is named 'job-a'"):
        explain(simulated([job("a", gpus=1)]), "job-a")
    plain = ddlsched.simulate(ddlsched.Workload.of([job("a", gpus=1)]))
    with pytest.raises(ddlsched.InputError, match="timeline does not hold its whole life"):
        explain(plain, "a")


@pytest.mark.long
@given(settings())
@hypothesis_settings(max_examples=examples(10, by_default=3))
def test_a_record_of_one_job_alone_explains_it_as_a_whole_record_does(setting: Setting) -> None:
    plugins = {kind: getattr(setting, kind) for kind in ("placement", "order", "communication", "contention")}
    run = functools.partial(
        ddlsched.simulate,
        setting.workload,
        dataclasses.replace(setting.cluster, topology=setting.topology),
        disturbances=setting.disturbances,
        seed=setting.seed,
        until_s=setting.until_s,
        **plugins,
    )
    whole = run(timeline=True)
    for job_id in whole.jobs["job_id"]:
        alone = run(timeline=Window(job_id=job_id))
        assert len(alone.finished.slices) <= len(whole.finished.slices)
        pd.testing.assert_frame_equal(explain(alone, job_id), explain(whole, job_id))


def test_two_buckets_of_a_job_on_a_link_hold_it_once() -> None:
    jobs = [job("a", gpus=2, memory_mb=1, buckets=4), job("b", gpus=2, memory_mb=1, forward_s=0.5)]
    result = simulated(jobs, servers=2, communication="bounded-overlap:limit=1")
    waited_s = explain(result, "b").groupby("phase")["seconds"].sum()
    assert waited_s["network_wait"] == pytest.approx(result.jobs.loc[1, "network_wait_s"])


def test_a_record_of_one_job_explains_no_other() -> None:
    jobs = ddlsched.Workload.of([job("a", gpus=1), job("b", gpus=1)])
    result = ddlsched.simulate(jobs, timeline=Window(job_id="a"))
    with pytest.raises(ddlsched.InputError, match="'b': the run's timeline does not hold its whole life"):
        explain(result, "b")
    with pytest.raises(ddlsched.UnknownNameError, match="no job is named 'c'"):
        ddlsched.simulate(jobs, timeline=Window(job_id="c"))


@pytest.mark.long
def test_a_job_waits_for_the_link_that_carries_its_own_checkpoint() -> None:
    """Saved at 4 s: one server's state is there at 5 s, the other's at 6 s; the all-reduce is ready at 5.5 s."""
    disturbances = Disturbances(
        checkpoint="fixed:every_s=1.5", checkpoint_to="storage:background_share=0.25", state_mb=1250.0
    )
    result = simulated(
        [job("a", gpus=2, iterations=3, message_bytes=1.25e9)],
        servers=3,
        communication="bounded-overlap:limit=1",
        contention="max-min",
        disturbances=disturbances,
    )
    ((phase, _, who, seconds),) = rows(result, "a")
    assert (phase, who, seconds) == ("network_wait", "a", pytest.approx(0.5, abs=1e-3))
