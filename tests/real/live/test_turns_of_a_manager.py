"""What a manager does about a job's processes, nodes and reports: by hand, on jobs that are made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.real.live.manager import LiveManager
from ddlsched.real.live.reports import Ready, Report


class Job:
    """Processes of a job that stand on nodes and do as they are told."""

    def __init__(self, *nodes: str, **answers: Any) -> None:
        self.workers = {node: SimpleNamespace(node=node, process=SimpleNamespace(returncode=1)) for node in nodes}
        self.group = [self.workers[nodes[0]]]
        self.assignment = SimpleNamespace(steps=20)
        self.progress_s, self.last_step, self.commit_s = 0.0, 0, 0.0
        self.asked: list[str] = []
        self._answers = {
            "ended": [], "hanging": [], "has_broken": False, "can_form": False, "is_news": True, "take_ready": False,
            "survivors": True,
        } | answers  # fmt: skip

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return where it has processes."""
        return tuple(self.workers)

    def take_ended(self) -> list[Any]:
        """Return who ended."""
        return [self.workers.pop(node) for node in self._answers["ended"]]

    def hanging(self, now_s: float, hang_s: float) -> list[Any]:
        """Return who hangs."""
        assert (now_s, hang_s) == (9.0, 60.0)
        return [self.workers[node] for node in self._answers["hanging"]]

    def remove(self, nodes: list[str]) -> None:
        """End some."""
        for node in nodes:
            del self.workers[node]

    def form(self, generation: int, now_s: float) -> None:
        """Form a group."""
        self.asked.append(f"form {generation} at {now_s}")

    def ask_to_leave(self, now_s: float) -> None:
        """Note that it was asked."""
        self.asked.append("leave")

    def has_broken(self) -> bool:
        """Return whether its group broke."""
        return bool(self._answers["has_broken"])

    def can_form(self) -> bool:
        """Return whether a group can form."""
        return bool(self._answers["can_form"])

    def has_survivors(self) -> bool:
        """Return whether one has been in a group."""
        return bool(self._answers["survivors"])

    def is_news(self, report: Report) -> bool:
        """Return whether a report says more."""
        return bool(self._answers["is_news"])

    def take_ready(self, said: Ready) -> bool:
        """Return whether one stands aside now."""
        return bool(self._answers["take_ready"])


class Retried:
    """Retries that never give up, or always do."""

    def __init__(self, pause_s: float | None = 1.0) -> None:
        self.pause_s, self.ended = pause_s, list[str]()

    def failed(self, job_id: str, now_s: float) -> float | None:
        """Return the pause."""
        return self.pause_s

    def succeeded(self, job_id: str) -> None:
        """Note that it went well."""
        self.ended.append(job_id)

    def must_wait(self, job_id: str) -> bool:
        """Return that nothing waits."""
        return False


def _manager(job: Job, **others: Any) -> Any:
    """Return a manager of one job at 9 s, and note what it tells of it."""
    live = LiveManager.__new__(LiveManager)
    told: list[Any] = []
    given: dict[str, Any] = {
        "running": {"a": job}, "watch": told.append, "_ask": False, "_failures": {}, "_known_steps": {},
        "_commit_s": {}, "_reported": {}, "_kills": Retried(),
        "_reads": Retried(), "hang_s": 60.0, "told": told, "finished": [],
        "_idle": ("n1", "n2"), "_started_s": 0.0, "_failing": None,
        "store": SimpleNamespace(end=lambda job_id, state: told.append(state), regroup=lambda job_id: 4),
        "launcher": SimpleNamespace(was_taken=lambda code: code == 125, was_killed=lambda code: code == -9),
        "sharer": SimpleNamespace(monitor=SimpleNamespace(interrupted=lambda job_id: None, progress=_ignored)),
        "scavenger": SimpleNamespace(idle=lambda now_s: ("n1", "n2")),
    } | others  # fmt: skip
    kind = type("Manager", (LiveManager,), {
        "now_s": 9.0, "__setattr__": object.__setattr__,
        "_committed": lambda self, job_id: [0.5] * given.get("committed", 3),
        "_stop": lambda self, job_id: self.running.pop(job_id, None),
        "_finish": lambda self, job_id: self.finished.append(self.running.pop(job_id)),
    })  # fmt: skip
    live.__class__ = kind
    for name, value in given.items():
        object.__setattr__(live, name, value)
    return live


def _ignored(*_: object, **__: object) -> None:
    """Nobody learns of it."""


def _events(live: Any) -> list[Any]:
    return [each if isinstance(each, str) else (each.what, each.step, each.nodes) for each in live.told]


def _codes(job: Job, code: int) -> Job:
    for worker in job.workers.values():
        worker.process.returncode = code
    return job


@pytest.mark.parametrize(
    ("make", "committed", "events", "failures", "is_asked"),
    [
        (lambda: Job("n1", "n2"), 3, [], {}, False),
        (lambda: Job("n1", "n2", ended=["n2"]), 3, [("a process died", 3, 0)], {"a": 1}, True),
        (lambda: _codes(Job("n1", "n2", ended=["n2"]), 125), 3, [("lost a node", 3, 0)], {}, True),
        (lambda: _codes(Job("n1", "n2", ended=["n2"]), -9), 3, [("a process died", 3, 0)], {}, True),
        (lambda: Job("n1", ended=["n1"]), 3, [("a process died", 3, 0), "queued"], {"a": 1}, True),
        (lambda: Job("n1", "n2", hanging=["n2"]), 3, [("a process hangs", 3, 1)], {"a": 1}, True),
        (lambda: Job("n1", "n2", has_broken=True), 3, [("a group broke", 3, 0)], {"a": 1}, True),
    ],
)
def test_processes_that_end_hang_or_leave(
    make: Callable[[], Job], committed: int, events: list[Any], failures: dict[str, int], is_asked: bool
) -> None:
    job = make()
    live = _manager(job, committed=committed)
    live._look_at_processes()
    assert _events(live) == events
    assert (live._failures, live._ask) == (failures, is_asked)
    assert job.asked == (["leave"] if "a" in live.running else [])


@pytest.mark.parametrize(("steps", "is_finished"), [(19, False), (20, True), (21, True)])
def test_a_job_whose_first_rank_ended_with_all_steps_committed_is_finished(steps: int, is_finished: bool) -> None:
    job = Job("n1", "n2", ended=["n1"])
    live = _manager(job, committed=steps)
    live._look_at_processes()
    assert (live.finished == [job]) is is_finished
    assert _events(live) == ([] if is_finished else [("a process died", steps, 0)])


@pytest.mark.parametrize(("survivors", "what"), [(True, "regrouped"), (False, "started")])
def test_a_group_that_can_form_is_formed_and_told(survivors: bool, what: str) -> None:
    job = Job("n1", can_form=True, survivors=survivors)
    live = _manager(job, _reported={"a": 1.0})
    live._look_at_processes()
    assert job.asked == ["leave", "form 4 at 9.0"]
    assert (_events(live), live._reported) == ([(what, 3, 1)], {})


def test_a_job_that_fails_too_often_without_a_step_is_given_up() -> None:
    from ddlsched.real.live.manager import _MOST_FAILURES

    for earlier, is_given_up in ((_MOST_FAILURES - 2, False), (_MOST_FAILURES - 1, True)):
        live = _manager(Job("n1", "n2", ended=["n2"]), _failures={"a": earlier})
        live._look_at_processes()
        given_up = ["failed", ("failed", 3, 0)] if is_given_up else []
        assert _events(live) == [("a process died", 3, 0), *given_up]
        assert ("a" in live.running) is not is_given_up


@pytest.mark.parametrize(("pause_s", "is_given_up"), [(1.0, False), (None, True)])
def test_a_job_that_is_killed_whole_is_tried_again_until_that_lasts_too_long(
    pause_s: float | None, is_given_up: bool
) -> None:
    live = _manager(_codes(Job("n1", ended=["n1"]), -9), _kills=Retried(pause_s))
    live._look_at_processes()
    given_up = ["failed", ("failed", 3, 0)] if is_given_up else []
    assert _events(live) == [("a process died", 3, 0), "queued", *given_up]
    assert live._failures == ({"a": 1} if is_given_up else {})


@pytest.mark.parametrize(
    ("there", "events", "left"),
    [
        (("n1", "n2"), [], ("n1", "n2")),
        (("n1", "n2", "n3"), [("nodes", 0, 3)], ("n1", "n2")),
        (("n1",), [("nodes", 0, 1), ("lost a node", 3, 1)], ("n1",)),
        ((), [("nodes", 0, 0), ("lost a node", 3, 2), "queued"], ()),
    ],
)
def test_what_runs_on_a_node_that_went_is_gone(
    there: tuple[str, ...], events: list[Any], left: tuple[str, ...]
) -> None:
    job = Job("n1", "n2")
    live = _manager(job, scavenger=SimpleNamespace(idle=lambda now_s: there))
    live._look_at_nodes()
    assert (_events(live), job.nodes) == (events, left)
    assert (live._ask, live._idle) == (bool(events), there)


READY = Ready("a", "token", 1, 0, "host", 1)


@pytest.mark.parametrize(
    ("job_id", "aside", "events"), [("a", True, [("script changed", 3, 1)]), ("a", False, []), ("b", True, [])]
)
def test_that_a_script_has_changed_is_told_once(job_id: str, aside: bool, events: list[Any]) -> None:
    live = _manager(Job("n1", take_ready=aside))
    live._take(Ready(job_id, "token", 1, 0, "host", 1))
    assert _events(live) == events


@pytest.mark.parametrize(
    ("job_id", "news", "nodes", "reported", "is_taken", "is_asked"),
    [
        ("a", True, 2, {}, True, True), ("a", True, 2, {"a": 1.0}, True, False), ("a", True, 1, {}, True, False),
        ("a", False, 2, {}, False, False), ("b", True, 2, {}, False, False),
    ],
)  # fmt: skip
def test_the_first_report_at_a_new_size_has_the_nodes_shared_anew(
    job_id: str, news: bool, nodes: int, reported: dict[str, float], is_taken: bool, is_asked: bool
) -> None:
    job = Job("n1", "n2", is_news=news)
    live = _manager(job, _reported=dict(reported), _failures={"a": 2})
    live._take(Report(job_id, "token", 1, 7, 70, nodes, 0.25, 3.5, 0.125))
    assert _events(live) == ([("step", 7, nodes)] if is_taken else [])
    assert live._ask is is_asked
    assert (job.last_step, job.progress_s, job.commit_s) == ((7, 9.0, 0.125) if is_taken else (0, 0.0, 0.0))
    assert live._failures == ({} if is_taken else {"a": 2})
    assert live._kills.ended == (["a"] if is_taken else [])
    assert live._reported == (reported or ({"a": 3.5} if is_asked else {}))
    assert live._known_steps == ({"a": 7} if is_taken else {})


@pytest.mark.parametrize(
    ("counts", "events", "left"),
    [
        ([2, 1], [], {"a": ("n1", "n2"), "b": ("n3",)}),
        ([1, 1], [("shrunk", 3, 1)], {"a": ("n1",), "b": ("n3",)}),
        ([0, 1], [("stopped", 3, 2), "queued"], {"b": ("n3",)}),
    ],
)
def test_jobs_shrink_to_the_oldest_of_their_nodes(counts: list[int], events: list[Any], left: dict[str, Any]) -> None:
    """Of five nodes that are idle and two that are awaited, two jobs have three."""
    asked: list[int] = []

    def shared(candidates: list[Any], nodes: int, now_s: float) -> list[int]:
        asked.append(nodes)
        return counts

    live = _manager(Job("n1", "n2"), _idle={f"n{n}" for n in range(1, 6)})
    live.running["b"] = Job("n3")
    live.sharer.counts = shared
    names = {"a": 2, "b": 1}
    type(live)._candidate = lambda self, job: SimpleNamespace(nodes=names[job.job_id])
    type(live)._awaited = lambda self, job: 1
    live._share_out([SimpleNamespace(job_id=name) for name in "ab"])
    assert asked == [7]
    assert _events(live) == events
    assert {name: job.nodes for name, job in live.running.items()} == left
