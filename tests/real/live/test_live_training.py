"""Real PyTorch training under the live manager: python -m pytest -m torch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from test_live_manager import manager

from ddlsched.real.live.commits import committed_steps

pytestmark = pytest.mark.torch
STEPS = 60


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[float]:
    folder = tmp_path_factory.mktemp("undisturbed")
    live, _ = manager(folder, 1)
    live.store.submit("a", program="mlp", steps=STEPS, max_nodes=1)
    live.run(300)
    return committed_steps(folder / "a")


def test_training_learns(undisturbed) -> None:
    assert len(undisturbed) == STEPS
    assert undisturbed[-1] < 0.5 * undisturbed[0]


def test_loss_goes_on_where_it_was_when_nodes_vanish_and_processes_are_killed(tmp_path: Path, undisturbed) -> None:
    events = []
    live, nodes = manager(tmp_path, 3, events)
    live.store.submit("a", program="mlp", steps=STEPS, max_nodes=3)

    def train_until(step: int) -> None:
        while len(committed_steps(tmp_path / "a")) < step:
            live.turn()

    train_until(10)
    nodes.there = frozenset({"node1"})
    train_until(20)
    nodes.there = frozenset({"node1", "node5"})
    train_until(30)
    live.running["a"].processes[-1].kill()
    live.run(300)
    assert committed_steps(tmp_path / "a") == pytest.approx(undisturbed, rel=1e-4)
    steps = [(event.what, event.step) for event in events if event.what in ("started", "lost a node", "a process died")]
    assert {"lost a node", "a process died"} <= {what for what, _ in steps}
    for (before, at), (after, start) in pairwise(steps):
        if before != "started" and after == "started":
            assert start == at  # it goes on from the step that was committed
