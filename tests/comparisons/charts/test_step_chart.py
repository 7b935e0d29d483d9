"""The picture of an iteration: its rows, and that what it draws is what was done."""

from __future__ import annotations

import numpy as np
import pytest

from ddlsched import AllReduceTask, Cluster, CollectiveTask, ComputeTask, IterationDag, Job, Workload, simulate
from ddlsched.comparisons.charts.training_charts import step_chart
from ddlsched.errors import InputError
from ddlsched.results.result import Result

MS = 1_000_000


def run(dag: IterationDag, *, iterations: int = 2) -> Result:
    job = Job(job_id="a", arrival_s=0.0, num_gpus=4, iterations=iterations, iteration=dag, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=1, gpus_per_server=4, topology="star:nvlink_gbps=32,nic_gbps=8")
    return simulate(Workload.of([job]), cluster, contention="max-min", order="fifo", timeline=True)


def pipeline() -> IterationDag:
    """Two stages: 3 ms, a send of 4 MB (1 ms), 5 ms."""
    tasks = (
        ComputeTask(name="one 0", duration_ns=3 * MS, group="first"),
        CollectiveTask(name="send 0", kind="send", message_bytes=4e6, group="next", after=("one 0",)),
        ComputeTask(name="two 0", duration_ns=5 * MS, group="second", after=("send 0",)),
    )
    return IterationDag(tasks, {"first": ((0, 1),), "second": ((2, 3),), "next": ((0, 2), (1, 3))})


def bars(result: Result, iteration: int) -> list[tuple[float, float]]:
    """Return left end and width of every bar that is drawn."""
    (axes,) = step_chart(result, "a", iteration=iteration).axes
    found = [(bar.get_x(), bar.get_width()) for bar in axes.patches if bar.get_width() > 0]
    return sorted((round(left, 5), round(width, 5)) for left, width in found)


@pytest.mark.long
def test_bars_are_what_was_done() -> None:
    """A row a stage; the send is in both. The second iteration is drawn from its own begin."""
    expected = [(0.0, 3.0), (3.0, 1.0), (3.0, 1.0), (4.0, 5.0)]
    result = run(pipeline())
    assert bars(result, 0) == bars(result, 1) == expected
    (axes,) = step_chart(result, "a").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["worker 0", "worker 2"]


def test_a_row_has_what_its_worker_computes_above_what_it_sends() -> None:
    """Rows go down from 0: bars of 0.4 begin 0.42 above the middle and 0.02 below it."""
    (axes,) = step_chart(run(pipeline()), "a").axes
    found = sorted((bar.get_x(), bar.get_y(), bar.get_height()) for bar in axes.patches if bar.get_width() > 0)
    expected = [(0.0, -0.42, 0.4), (3.0, 0.02, 0.4), (3.0, 1.02, 0.4), (4.0, 0.58, 0.4)]
    assert np.array(found) == pytest.approx(np.array(expected))
    assert axes.get_ylim() == pytest.approx((1.55, -0.55))
    assert axes.get_yticks().tolist() == [0, 1]
    assert axes.figure.get_size_inches() == pytest.approx([7.0, 4 * 0.34 + 1.3])


def test_a_job_without_groups_has_one_row() -> None:
    dag = IterationDag(
        (ComputeTask(name="w", duration_ns=MS), AllReduceTask(name="r", message_bytes=4e6, after=("w",)))
    )
    # 2 x 3/4 x 4 MB through a port of 4 MB a millisecond.
    assert bars(run(dag), 0) == [(0.0, 1.0), (1.0, 1.5)]


def test_an_iteration_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="job 'a': iteration 2 is not in the run's timeline; expected one that is"):
        step_chart(run(pipeline()), "a", iteration=2)
