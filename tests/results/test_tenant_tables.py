"""Tables and chart of tenants, and why their jobs waited."""

from __future__ import annotations

import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Preemption, Queue, Quota, Result, Tenants, Workload, simulate
from ddlsched.results.explanation import explain
from ddlsched.results.tenants import free_gpus_over_time, gpus_over_time, tenant_table

STEP = DataParallelIteration(forward_s=1.0, backward_s=0.0, message_bytes=0)


@pytest.fixture(scope="module")
def result() -> Result:
    """Eight GPUs: b uses all from 0 to 100 s; a comes at 10 with 4, which b gives up; two more of a wait."""
    rows = [("b1", "b", 4, 0), ("b2", "b", 4, 0), ("a1", "a", 4, 10), ("a2", "a", 8, 20), ("a3", "a", 8, 30)]
    jobs = [
        Job(job_id=n, arrival_s=t, num_gpus=g, iterations=100, iteration=STEP, gpu_memory_mb=1, queue=q)
        for n, q, g, t in rows
    ]
    queues = Tenants(
        queues=(
            Queue(name="all"),
            Queue(name="a", parent="all", quotas={"any": Quota(gpus=4)}, preemption=Preemption(reclaim="any")),
            Queue(name="b", parent="all", quotas={"any": Quota(gpus=4)}),
        )
    )
    cluster = Cluster(num_servers=1, gpus_per_server=8, exclusive=True)
    return simulate(Workload.of(jobs), cluster, queues=queues, timeline=True)


@pytest.mark.long
def test_what_each_tenant_had(result: Result) -> None:
    table = tenant_table(result)
    assert table.index.tolist() == ["a", "b"]
    assert table["preemptions"].tolist() == [0, 1]
    assert table["gpu_hours"].sum() == pytest.approx((2 * 4 + 4 + 2 * 8) * 100 / 3600, rel=0.01)
    gpus = gpus_over_time(result)
    assert gpus.loc[0.0].tolist() == [0, 8]
    assert gpus.loc[10.0].tolist() == [4, 4]
    assert gpus.iloc[-1].tolist() == [0, 0]
    assert (gpus.sum(axis=1) <= 8).all()


@pytest.mark.long
def test_waits_add_up_and_name_who_borrowed(result: Result) -> None:
    jobs = result.jobs.set_index("job_id")
    for name in ("b1", "a2", "a3"):
        blockers = explain(result, name)
        queueing = blockers[blockers["phase"] == "queueing"]
        assert queueing["seconds"].sum() == pytest.approx(jobs.loc[name, "queueing_s"])
    assert "quota: a has used its own" in explain(result, "a2")["waited_for"].tolist()
    assert explain(result, "b1")["waited_for"].tolist()[0].startswith(("preempted", "quota"))


def test_the_chart_has_an_area_a_tenant(result: Result) -> None:
    (axes,) = result.plot.tenants().axes
    assert [area.get_label() for area in axes.collections] == ["a", "b"]


def test_the_chart_of_jobs_has_a_bar_a_tenant_for_each_number(result: Result) -> None:
    table = tenant_table(result)
    for axes, column in zip(result.plot.tenant_jobs().axes, ("wait_s", "jct_s", "preemptions"), strict=True):
        assert [bar.get_width() for bar in axes.patches] == table[column].tolist()


def test_free_gpus_on_servers_that_jobs_use_are_fragments() -> None:
    """Two servers of 4: a has 3 GPUs to 10 s and b 4 to 20 s, then c has 6 to 30 s."""
    cluster = Cluster(num_servers=2, gpus_per_server=4, exclusive=True)
    jobs = [
        Job(job_id=n, arrival_s=0, num_gpus=g, iterations=k, iteration=STEP, gpu_memory_mb=1, queue="q")
        for n, g, k in (("a", 3, 10), ("b", 4, 20), ("c", 6, 10))
    ]
    result = simulate(Workload.of(jobs), cluster, placement="lwf:kappa=1", order="fifo")
    table = free_gpus_over_time(result)
    assert table.index.tolist() == pytest.approx([0, 10, 20, 30], abs=1e-6)
    assert table["free"].tolist() == [1, 4, 2, 8]
    assert table["fragments"].tolist() == [1, 0, 2, 0]
    free, fragments = result.plot.fragmentation().axes[0].collections
    assert (free.get_label(), fragments.get_label()) == ("free", "of these beside jobs on their server")


def test_all_gpus_are_free_before_the_first_job() -> None:
    late = Job(job_id="a", arrival_s=5, num_gpus=1, iterations=1, iteration=STEP, gpu_memory_mb=1)
    cluster = Cluster(num_servers=2, gpus_per_server=4)
    table = free_gpus_over_time(simulate(Workload.of([late]), cluster))
    assert table["free"].tolist() == [8, 7, 8]
    waiting = simulate(Workload.of([late]), cluster, until_s=1)
    assert free_gpus_over_time(waiting)["free"].tolist() == [8]
    assert waiting.plot.fragmentation().axes


def test_a_tenant_that_never_had_a_gpu_has_none() -> None:
    common = {"arrival_s": 0, "num_gpus": 4, "iterations": 9, "iteration": STEP, "gpu_memory_mb": 1}
    jobs = [Job(job_id=name, queue=name, **common) for name in "qr"]
    result = simulate(Workload.of(jobs), Cluster(num_servers=1, gpus_per_server=4, exclusive=True), until_s=0.5)
    assert gpus_over_time(result)["r"].tolist() == [0] * len(gpus_over_time(result))
