"""What a rank says, and when, to a gate that is stood in for, by a clock that only waits move."""

from __future__ import annotations

import random
import select
from types import SimpleNamespace
from typing import Any

import pytest
from kept_numbers import assert_kept, digest

from ddlsched.real.channel import ChannelEndedError
from ddlsched.real.testbed import worker
from ddlsched.real.testbed.worker import Progress, Worker
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag


def drawn(seed: int) -> IterationDag:
    """Return an iteration of computes and all-reduces, each after some of those before it."""
    rng = random.Random(seed)
    tasks: list[Any] = []
    for number in range(rng.randint(2, 9)):
        after = tuple(task.name for task in tasks if rng.random() < 0.4)
        if rng.random() < 0.55 or not number:
            tasks.append(ComputeTask(name=f"t{number}", duration_ns=rng.randint(1, 9) * 1_000_000, after=after))
        else:
            tasks.append(AllReduceTask(name=f"t{number}", message_bytes=rng.randint(1, 9) * 4000, after=after))
    return IterationDag(tuple(tasks))


class Gate:
    """The other end of a channel: gives slots and lets send at once, in chunks, and leaves when all has iterated."""

    def __init__(self, place: dict[str, Any], chunks: int = 1, late_s: float = 0.0, fails: str | None = None) -> None:
        self.now_s, self.late_s = 0.0, late_s
        self.place, self.chunks, self.fails = place, chunks, fails
        self.coming: list[tuple[float, Any]] = [(0.0, {"do": "place", **place})]
        self.said: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.selected: list[float] = []
        self.left = 0
        self.closed = False
        self.slots_asked: set[tuple[int, int]] = set()

    def later(self, after_s: float, what: Any) -> None:
        self.coming.append((self.now_s + after_s, what))

    # The channel.

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(message)
        self.said.append(f"{self.now_s:.6f} {message}")
        say = message["say"]
        if say == "grouped":
            self.later(0.001, {"do": "begin"})
            self.later(0.0035, {"do": "ping", "asked_ns": 35})
        elif say == "store":
            self.later(0.002, {"do": "ping", "asked_ns": 3})
        elif say == "compute":
            self.later(0.0005, {"do": "compute", "task": message["task"], "gpu": message["gpu"]})
        elif say == "ready":
            same = {"do": "send", "task": message["task"], "iteration": message["iteration"], "chunks": self.chunks}
            for chunk in range(self.chunks):
                self.later(0.0001 * (1 + chunk), {**same, "chunk": chunk})
        elif say == "iterated" and message["iteration"] + 1 == self.place["iterations"]:
            self.later(0.1, {"do": "release"})
            self.later(0.2, {"do": "ping", "asked_ns": 99})
            self.later(0.3, None)
        elif say == "failed":
            self.later(0.1, None)

    try_to_send = send

    def receive(self) -> list[dict[str, Any]]:
        due = [what for at_s, what in self.coming if at_s <= self.now_s and not callable(what)]
        self.coming = [(at_s, what) for at_s, what in self.coming if at_s > self.now_s or callable(what)]
        if None in due:
            raise ChannelEndedError("gone")
        return due

    def close(self) -> None:
        self.closed = True

    # What moves bytes.

    def listen(self, address: str) -> int:
        self.said.append(f"listens at {address}")
        return 4711

    def join(self, *where: Any) -> None:
        self.said.append(f"joins {where}")

    def start(self, task: int, size: float, chunk: int, chunks: int, ended: Any) -> None:
        self.said.append(f"{self.now_s:.6f} moves {task} {size} {chunk} {chunks}")
        self.later(0.002 + size * 1e-7 / chunks, lambda: ended(self.fails))

    def received_bytes(self) -> int:
        return 1234

    def cards_down(self) -> list[str]:
        return ["net9"]

    def leave(self) -> None:
        self.left += 1

    # The clock, and who is readable.

    def monotonic(self) -> float:
        return self.now_s

    def select(self, sources: list[Any], _: list[Any], __: list[Any], timeout_s: float) -> Any:
        self.selected.append(timeout_s)
        at_s = min((at_s for at_s, _ in self.coming), default=float("inf"))
        wait_until_s = self.now_s + timeout_s
        if at_s > wait_until_s:
            self.now_s = wait_until_s + (self.late_s if timeout_s else 0)
        else:
            self.now_s = max(self.now_s, at_s)
        for each in [each for each in self.coming if callable(each[1]) and each[0] <= self.now_s]:
            self.coming.remove(each)
            each[1]()
        readable = select.select(sources[1:], [], [], 0)[0]
        here = any(at_s <= self.now_s and not callable(what) for at_s, what in self.coming)
        assert len(self.selected) < 5000
        return [*([self] if here else []), *readable], [], []


def served(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=gate.monotonic))
    monkeypatch.setattr(worker, "select", SimpleNamespace(select=gate.select))
    Worker(gate, lambda: gate).serve()  # type: ignore[arg-type, return-value]
    assert gate.closed
    return gate


def placed(dag: IterationDag, **given: Any) -> dict[str, Any]:
    order = {"tasks": dag.to_dicts(), "gpus": [0], "slots": False, "train": False, "iterations": 2, "rank": 0}
    return {**order, "size": 1, "address": "10.0.0.1", **given}


def test_ranks_say_what_they_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {}
    for seed in range(10):
        dag = drawn(seed)
        for name, given, how in (
            ("alone", {"gpus": [3, 5]}, {"late_s": 0.0004}),
            ("slots", {"gpus": [0, 2], "slots": True, "iterations": 3}, {}),
            ("rank 0", {"size": 2, "gpus": [1, 2]}, {"chunks": 3}),
            ("rank 0 with slots", {"size": 3, "gpus": [1, 2], "slots": True}, {"chunks": 2, "late_s": 1e-5}),
        ):
            place = placed(dag, **given)
            gate = served(Gate(place, **how), monkeypatch)  # type: ignore[arg-type]
            kept[f"{seed} {name}"] = f"{len(gate.said)} {gate.now_s:.6f} {gate.left} {digest(gate.said)}"
            computes = sum(isinstance(task, ComputeTask) for task in dag.tasks)
            lanes = place["gpus"] if place["slots"] else place["gpus"][:1]
            done = [each for each in gate.heard if each["say"] == "computed"]
            assert len(done) == computes * len(lanes) * place["iterations"]
            assert all(each["gpus"] == (place["gpus"] if not place["slots"] else each["gpus"][:1]) for each in done)
            assert all(each["late_ns"] >= 0 for each in done)
            iterated = [each["iteration"] for each in gate.heard if each["say"] == "iterated"]
            assert iterated == list(range(place["iterations"]))
            reduced = (len(dag.tasks) - computes) * place["iterations"] if place["size"] > 1 else 0
            assert sum(each["say"] == "ready" for each in gate.heard) == reduced
            assert sum(each["say"] == "sent" for each in gate.heard) == reduced * gate.chunks
    assert_kept("workers", kept)


TWO = IterationDag(
    (
        ComputeTask(name="a", duration_ns=2_000_000),
        ComputeTask(name="b", duration_ns=3_000_000),
        AllReduceTask(name="r", message_bytes=8000, after=("a",)),
        ComputeTask(name="c", duration_ns=1_000_000, after=("r", "b")),
    )
)


def test_computes_of_a_gpu_run_one_after_the_other_and_all_reduces_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = served(Gate(placed(TWO, size=2, iterations=1)), monkeypatch)
    assert [line for line in gate.said if "pong" not in line] == [
        "listens at 10.0.0.1",
        "0.000000 {'say': 'store', 'port': 4711}",
        "joins ('10.0.0.1', 4711, '10.0.0.1', 0, 2, 2)",
        "0.000000 {'say': 'grouped'}",
        "0.003000 {'say': 'computed', 'task': 0, 'gpus': [0], 'late_ns': 0}",
        "0.003000 {'say': 'ready', 'task': 2, 'iteration': 0, 'message_bytes': 8000.0}",
        "0.003100 moves 2 8000.0 0 1",
        "0.005900 {'say': 'sent', 'task': 2, 'iteration': 0, 'chunk': 0}",
        "0.006000 {'say': 'computed', 'task': 1, 'gpus': [0], 'late_ns': 0}",
        "0.007000 {'say': 'computed', 'task': 3, 'gpus': [0], 'late_ns': 0}",
        "0.007000 {'say': 'iterated', 'iteration': 0}",
    ]
    pongs = [each for each in gate.heard if each["say"] == "pong"]
    same = {"say": "pong", "received_bytes": 1234, "cards_down": ["net9"]}
    released = {"say": "pong", "received_bytes": 0, "cards_down": [], "asked_ns": 99, "computing": 0}
    assert pongs == [{**same, "asked_ns": 3, "computing": 1}, {**same, "asked_ns": 35, "computing": 1}, released]
    assert gate.left == 1
    assert max(gate.selected) == 60.0


def test_a_rank_that_joins_another_and_whose_transfer_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(placed(TWO, size=9, rank=4), fails="peer gone")
    gate.later(0.001, {"do": "join", "host": "h", "port": 5})
    served(gate, monkeypatch)
    assert gate.said[0] == "joins ('h', 5, '10.0.0.1', 4, 9, 2)"
    assert gate.heard[-1] == {"say": "failed", "error": "ConnectionError: an all-reduce failed: peer gone"}
    assert gate.left == 1
    many = IterationDag(tuple(AllReduceTask(name=f"r{n}", message_bytes=4) for n in range(5)))
    gate = served(Gate(placed(many, size=2, iterations=1)), monkeypatch)
    assert gate.said[2] == "joins ('10.0.0.1', 4711, '10.0.0.1', 0, 2, 8)"


def test_training_is_left_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Training:
        computes = True

        def __init__(self, dag: Any, gpus: list[int], iterations: int, say: Any) -> None:
            told.append(f"{len(dag.tasks)} {gpus} {iterations}")
            self.say = say

        def prepare(self, *where: Any) -> None:
            told.append(f"prepare {where}")
            self.say({"say": "grouped"})

        def begin(self) -> None:
            told.append("begin")
            self.say({"say": "ready", "task": 2, "iteration": 0})

        def send(self, message: dict[str, Any]) -> None:
            told.append(f"send {message['task']}")
            self.say({"say": "iterated", "iteration": 1})

        def leave(self) -> None:
            told.append("leave")

    monkeypatch.setattr(worker, "TrainingJob", Training)
    gate = served(Gate(placed(TWO, train=True, gpus=[1, 2])), monkeypatch)
    assert told == ["4 [1, 2] 2", "prepare ('10.0.0.1', 4711, 0, 1)", "begin", "send 2", "leave"]
    assert [each["computing"] for each in gate.heard if each["say"] == "pong"] == [1, 1, 0]


def test_tasks_become_ready_once_on_each_gpu() -> None:
    for seed in range(30):
        dag = drawn(seed)
        progress = Progress(dag, (4, 7))
        for iteration in range(2):
            rng = random.Random(seed)
            ready = list(progress.start())
            done: set[tuple[str, int | None]] = set()
            ended = 0
            while ready:
                event: Any = ready.pop(rng.randrange(len(ready)))
                gpu = getattr(event, "gpu", None)
                task = dag.tasks[event.task]
                assert isinstance(task, ComputeTask) == (gpu is not None)
                for name in task.after:
                    is_compute = isinstance(next(each for each in dag.tasks if each.name == name), ComputeTask)
                    lanes = ([gpu] if gpu is not None else [4, 7]) if is_compute else [None]
                    assert all((name, lane) in done for lane in lanes)
                assert (task.name, gpu) not in done
                done.add((task.name, gpu))
                for each in progress.ended(event.task, gpu):
                    if isinstance(each, worker.Iterated):
                        assert each.iteration == iteration
                        ended += 1
                    else:
                        ready.append(each)
            assert ended == 1
            assert len(done) == sum(2 if isinstance(task, ComputeTask) else 1 for task in dag.tasks)
