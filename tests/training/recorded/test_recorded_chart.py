"""A recorded step's picture shows each phase where the rank computed, and its waits as gaps."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from ddlsched.comparisons.charts.style import PALETTE
from ddlsched.training.recorded.alone import Card, timed_alone
from ddlsched.training.recorded.rank_steps import RankCommunication, WallTime
from ddlsched.training.recorded.recorded_chart import recorded_chart
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

MS = 1_000_000


def test_the_measured_step_has_its_phases_and_its_waits() -> None:
    """2 ms forward, 3 backward, 4 of waiting for what was sent after 4 ms, 1 of the optimiser."""
    clock = WallTime(0, 10 * MS)
    for name, at_ms in (("forward", 0), ("backward", 2), ("optimizer", 9)):
        clock.phase(name, at_ms * MS)
    clock.communicate(RankCommunication("all-reduce", 1000), 4 * MS, (5 * MS, 9 * MS), (4 * MS, 9 * MS))
    dag = IterationDag((ComputeTask(name="forward-1", duration_ns=MS), AllReduceTask(name="r", message_bytes=1000.0)))
    figure = recorded_chart(timed_alone(dag, 2, Card(gbps=10, latency_us=0)), clock.step())
    bars = [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in figure.axes[0].patches]
    assert bars == [
        (0, 2, PALETTE["sky"].lower()),
        (2, 3, PALETTE["blue"].lower()),
        (9, 1, PALETTE["teal"].lower()),
        (4, 5, PALETTE["orange"].lower()),
    ]


@pytest.mark.long
def test_each_task_that_waits_for_another_has_an_arrow_from_it() -> None:
    forward = ComputeTask(name="forward-1", duration_ns=MS)
    tasks = (forward, AllReduceTask(name="r", message_bytes=1000.0, after=("forward-1",)))
    clock = WallTime(0, 10 * MS)
    clock.phase("forward", 0)
    figure = recorded_chart(timed_alone(IterationDag(tasks), 2, Card(gbps=10, latency_us=0)), clock.step())
    (arrow,) = (line for axes in figure.axes for line in axes.lines)
    assert list(arrow.get_xdata()) == [1.0, 1.0]
