"""Each all-reduce of a job has its own links, bytes and latency."""

from __future__ import annotations

import pytest

from ddlsched import Cluster, IterationDag, Job, Workload, simulate
from ddlsched.engine.decisions.costs import CommunicationCosts, PlannedTransfer
from ddlsched.results.slices import transfer_slices
from ddlsched.workload.dag import AllReduceTask, ComputeTask

ITERATIONS = 50


@pytest.fixture
def planned(monkeypatch):
    """Let the first all-reduce of a job cross servers 0 and 1, the second the links of 2 and 3, after a latency."""

    def plan(self, dag, gpus, way):
        first, second = dag.messages
        return [PlannedTransfer((0, 1), first, 0.0), PlannedTransfer((2, 3), second, 0.25)]

    monkeypatch.setattr(CommunicationCosts, "planned", plan)


def two_reduces(job_id, arrival_s=0.0):
    tasks = (
        ComputeTask(name="compute", duration_ns=500_000_000),
        AllReduceTask(name="first", message_bytes=1e9, after=("compute",)),
        AllReduceTask(name="second", message_bytes=2e9, after=("first",)),
    )
    return Job(
        job_id=job_id,
        arrival_s=arrival_s,
        num_gpus=4,
        iterations=ITERATIONS,
        iteration=IterationDag(tasks),
        gpu_memory_mb=1.0,
    )


def run(*jobs, **given):
    return simulate(
        Workload(jobs),
        Cluster(num_servers=4, gpus_per_server=1),
        placement="first-fit",
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention="max-min:per_byte_s=1e-9",
        **given,
    )


def test_each_has_its_links_bytes_and_latency(planned):
    result = run(two_reduces("a"), timeline=(0.0, 5.0))
    assert result.jobs["jct_s"].tolist() == [pytest.approx(ITERATIONS * (0.5 + 1.0 + 0.25 + 2.0))]
    assert result.links["bytes"].tolist() == pytest.approx([ITERATIONS * 1e9] * 2 + [ITERATIONS * 2e9] * 2)
    assert result.links["utilisation"].tolist() == pytest.approx([1.0 / 3.75] * 2 + [2.25 / 3.75] * 2)


def test_a_job_is_on_the_links_of_all_its_transfers(planned):
    """Two jobs that take turns on the GPUs meet on the links of the second all-reduce only."""
    skipped = run(two_reduces("a"), two_reduces("b", arrival_s=1.0))
    visited = run(two_reduces("a"), two_reduces("b", arrival_s=1.0), timeline=(0.0, 1e9))
    assert skipped.jobs["finish_s"].tolist() == visited.jobs["finish_s"].tolist()
    assert skipped.links["bytes"].tolist() == visited.links["bytes"].tolist()
    assert skipped.links["bytes"].tolist() == pytest.approx([2 * ITERATIONS * 1e9] * 2 + [2 * ITERATIONS * 2e9] * 2)
    assert skipped.jobs["finish_s"].max() > ITERATIONS * 4.5


def test_the_timeline_has_each_ones_links(planned):
    result = run(two_reduces("a"), timeline=(0.0, 5.0))
    links = {(row.task, row.links) for row in transfer_slices(result).itertuples()}
    assert links == {("first", (0, 1)), ("second", (2, 3))}
