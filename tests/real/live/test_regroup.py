"""Groups that change around processes that stay, with a script as a user writes it: python -m pytest -m torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from test_live_manager import AllToTheFirst, Nodes

from ddlsched.real.live.commits import committed_state, committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parents[3] / "tests" / "torch_training" / "elastic_training.py"
STEPS = 600
BATCH = 32  # of the script


class Run:
    """A job of the script under a manager, step by step."""

    def __init__(
        self, folder: Path, nodes: int, script: Path = SCRIPT, hang_s: float = 60.0, steps: int = STEPS
    ) -> None:
        self.folder, self.events = folder, []
        self.nodes = Nodes(nodes)
        self.live = LiveManager(folder, self.nodes, AllToTheFirst(), 1, self.events.append, hang_s)
        self.live.store.submit("a", program=str(script), steps=steps, max_nodes=4)

    def processes(self) -> dict[str, int]:
        job = self.live.running["a"]
        return {node: process.pid for node, process in zip(job.nodes, job.processes, strict=True)}

    def until_group_of(self, ranks: int, then_steps: int = 5) -> None:
        """Go on until a group of that size has done some steps."""
        while not (self.live.running and len(self.live.running["a"].group) == ranks):
            assert self.live.turn()
        self.until_step(self.steps() + then_steps)

    def until_step(self, step: int) -> None:
        while self.steps() < step:
            assert self.live.turn()

    def steps(self) -> int:
        return len(committed_steps(self.folder / "a"))

    def what(self) -> list[str]:
        return [event.what for event in self.events if event.what != "step"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[float]:
    run = Run(tmp_path_factory.mktemp("undisturbed"), 1)
    run.live.run(120)
    return committed_steps(run.folder / "a")


def trained_on(folder: Path) -> list[int]:
    """Return how often each sample has entered the weights that were committed last, in the order of training."""
    import torch

    times = torch.load(committed_state(folder / "a", STEPS), weights_only=True)["seen"]["times"]
    order = torch.randperm(len(times), generator=torch.Generator().manual_seed(1))
    return times[order].tolist()


def test_processes_that_stay_keep_training_through_every_change(tmp_path: Path, undisturbed) -> None:
    slow, script = tmp_path / "slow", tmp_path / "slow.py"
    slow.touch()  # Steps take long while processes start, however long that takes, and are quick afterwards.
    script.write_text(SCRIPT.read_text().replace("sleep(pause_s)", f"sleep(0.5 * os.path.exists({str(slow)!r}))"))
    run = Run(tmp_path, 1, script)
    run.until_group_of(1)
    first = run.processes()
    run.nodes.there = frozenset({"node0", "node1", "node2"})
    run.until_group_of(3)
    grown = run.processes()
    assert grown["node0"] == first["node0"]
    run.nodes.there = frozenset({"node1", "node2"})  # The process that commits goes, with its node.
    run.until_group_of(2)
    assert run.processes() == {node: grown[node] for node in ("node1", "node2")}
    run.live.running["a"].processes[1].kill()
    run.until_group_of(1)
    assert run.processes()["node1"] == grown["node1"]
    assert run.steps() < STEPS
    slow.unlink()
    run.live.run(120)
    assert run.what().count("started") == 1
    assert {"lost a node", "a process died", "regrouped"} <= set(run.what())
    assert committed_steps(tmp_path / "a") == pytest.approx(undisturbed, rel=1e-4)
    times = trained_on(tmp_path)
    assert set(times[: BATCH * STEPS]) == {1}  # Each sample of the steps, once.
    assert set(times[BATCH * STEPS :]) == {0}


def test_a_group_grows_without_losing_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSE_S", "0.05")
    run = Run(tmp_path, 1, steps=2_000)  # a hundred seconds: the other process has started long before its end
    run.until_group_of(1)
    run.nodes.there = frozenset({"node0", "node1"})
    run.until_group_of(2)
    steps = [event.step for event in run.events if event.what == "step"]
    assert steps == list(range(1, len(steps) + 1))  # None is done twice.
    run.live.close()


def test_a_member_that_dies_as_its_group_forms_does_not_hold_the_others(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)

    def kill_one(event: LiveEvent) -> None:
        run.events.append(event)
        if event.what == "started":
            run.live.watch = run.events.append
            run.live.running["a"].processes[1].kill()

    run.live.watch = kill_one
    run.until_group_of(3, then_steps=0)
    others = {node: pid for node, pid in run.processes().items() if node != "node1"}
    run.until_step(5)
    assert {node: pid for node, pid in run.processes().items() if node in others} == others
    run.live.run(120)
    assert set(trained_on(tmp_path)[: BATCH * STEPS]) == {1}


def test_a_stopped_member_is_ended_and_the_others_go_on_without_starting_again(tmp_path: Path, undisturbed) -> None:
    run = Run(tmp_path, 3)
    run.until_group_of(3)
    before = run.processes()
    os.kill(before["node0"], signal.SIGSTOP)  # The one that commits.
    run.live.hang_s = 2.0
    while "a process hangs" not in run.what():
        assert run.live.turn()
    run.live.hang_s = 60.0
    run.until_group_of(2)
    assert [run.processes()[node] for node in ("node1", "node2")] == [before["node1"], before["node2"]]
    run.live.run(120)
    assert committed_steps(tmp_path / "a") == pytest.approx(undisturbed, rel=1e-4)
    assert set(trained_on(tmp_path)[: BATCH * STEPS]) == {1}


def test_members_killed_at_random_moments_lose_and_repeat_no_sample(tmp_path: Path, undisturbed) -> None:
    run = Run(tmp_path, 3)
    rng = np.random.default_rng(int(os.environ.get("FUZZ", "1")))
    kills = 0
    while run.live.turn():
        if run.events[-1].what == "step" and kills < 12 and rng.random() < 0.1:
            run.live.running["a"].group[rng.integers(len(run.live.running["a"].group))].process.kill()
            kills += 1
    run.live.close()
    assert kills == 12
    assert committed_steps(tmp_path / "a") == pytest.approx(undisturbed, rel=1e-4)
    times = trained_on(tmp_path)
    assert set(times[: BATCH * STEPS]) == {1}
    assert set(times[BATCH * STEPS :]) == {0}


def test_an_error_of_the_script_ends_the_job_and_is_in_the_log(tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(SCRIPT.read_text().replace("loss.backward()", "raise RuntimeError('mine')"))
    run = Run(tmp_path, 2, faulty)
    run.live.run(120)
    assert run.what()[-1] == "failed"
    assert "RuntimeError: mine" in (tmp_path / "a" / "node0.log").read_text()


def test_the_script_of_the_page_trains_through_a_change(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "live.md").read_text()
    (tmp_path / "train.py").write_text(page.split("```python\n")[1].split("```")[0])
    run = Run(tmp_path, 1, tmp_path / "train.py", steps=6_000)  # its steps are short, a process starts for seconds
    run.until_group_of(1)
    run.nodes.there = frozenset({"node0", "node1"})
    run.until_group_of(2)
    run.live.run(900)  # Two minutes are not enough where ten others run.
    losses = committed_steps(tmp_path / "a")
    assert len(losses) == 6_000
    assert losses[-1] < 1e-3 < losses[0]
