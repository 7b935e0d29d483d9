"""Tables and chart of tenants, and why their jobs waited."""

from __future__ import annotations

import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Preemption, Queue, Quota, Result, Tenants, Workload, simulate
from ddlsched.results.explanation import explain
from ddlsched.results.tenants import gpus_over_time, tenant_table

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
