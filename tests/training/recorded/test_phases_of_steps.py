"""When the phases of a step begin, from the events of a trace, and how long tasks take together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.training.recorded import alone, kineto


@pytest.mark.parametrize(
    ("backward", "optimizer", "phases"),
    [
        ([], [], [("forward", 100)]),
        ([150], [180], [("forward", 100), ("backward", 1150), ("optimizer", 1180)]),
        ([100], [199], [("forward", 100), ("backward", 1100), ("optimizer", 1199)]),
        ([99], [200], [("forward", 100)]),
        ([99, 120, 130], [50, 250], [("forward", 100), ("backward", 1120)]),
    ],
)
def test_a_phase_begins_with_its_first_event_in_the_step(
    backward: list[int], optimizer: list[int], phases: list[tuple[str, int]]
) -> None:
    """The step is from 100 ns to 200 ns; the clock tells a microsecond more."""
    events: Any = SimpleNamespace(
        backward=[SimpleNamespace(begin_ns=begin) for begin in backward],
        optimizer=[SimpleNamespace(begin_ns=begin) for begin in optimizer],
    )
    clock: Any = SimpleNamespace(reached_ns=lambda begin_ns: begin_ns + 1000)
    step: Any = SimpleNamespace(begin_ns=100, end_ns=200)
    assert kineto._phases(events, clock, step) == phases


def test_tasks_take_together_what_each_takes() -> None:
    run: Any = SimpleNamespace(begins_ns=[0, 5, 9], ends_ns=[5, 9, 20])
    assert [alone.AloneIteration.length_ns(run, numbers) for numbers in ([], [1], [0, 2])] == [0, 4, 16]
