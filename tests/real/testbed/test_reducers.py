"""What moves and trains in a testbed, with a torch whose group adds up in this process: parts, sums, what is said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from ddlsched.errors import TestbedError
from ddlsched.real.testbed.gloo import GlooReducer
from ddlsched.real.torch.training_job import TrainingJob
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag


class Sum:
    """The work of one rank; it ends once all ranks have begun theirs."""

    def __init__(self) -> None:
        self.done: Any = None
        self.error = ""

    def get_future(self) -> Sum:
        return self

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        self.done = done

    def wait(self) -> None:
        if self.error:
            raise RuntimeError(self.error + "\nand a page about it")


class Group:
    """Adds up what the ranks of a group give, in the order in which each gives it."""

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.rank, self.size, self.given = rank, size, list[tuple[Any, Sum]]()
        self.ranks = store.ranks
        self.ranks[rank] = self
        assert options._threads >= 2
        assert options._devices == [f"device of host-{rank}"]

    def _set_default_timeout(self, timeout: Any) -> None:
        assert timeout.total_seconds() == 3600

    def allreduce(self, parts: list[Any]) -> Sum:
        work = Sum()
        self.given.append((parts[0], work))
        return work

    @staticmethod
    def _Options() -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace()

    @staticmethod
    def create_device(hostname: str) -> str:
        return f"device of {hostname}"


class Store:
    """Where a group meets: one for all in this process."""

    ranks: ClassVar[dict[int, Group]] = {}

    def __init__(self, host: str, port: int, **given: Any) -> None:
        self.port = port or 4711
        self.is_master = given["is_master"]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__dict__.update(zeros=lambda count: np.zeros(count, np.float32), distributed=distributed)
    distributed.__dict__.update(TCPStore=Store, ProcessGroupGloo=Group)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.setattr(Store, "ranks", {})
    return torch


def joined(size: int) -> list[GlooReducer]:
    reducers = [GlooReducer() for _ in range(size)]
    port = reducers[0].listen("host-0")
    assert port == 4711
    for rank, reducer in enumerate(reducers):
        reducer.join("host-0", port, f"host-{rank}", rank, size, 1)
        assert reducer._store.is_master is (rank == 0)
    return reducers


def end(ranks: dict[int, Group], *, wrong: float = 0.0, error: str = "") -> None:
    """Add up the first that all have given, and tell them."""
    works = [group.given.pop(0) for _, group in sorted(ranks.items())]
    total = sum(part for part, _ in works) + wrong
    for part, work in works:
        part[:], work.error = total, error
        work.done(work)


@pytest.mark.usefixtures("torch")
def test_parts_are_the_message_and_their_sums_are_looked_at() -> None:
    rng = np.random.default_rng(4)
    for size in (1, 2, 5):
        reducers, told = joined(size), list[str | None]()
        for task in range(4):
            count, chunks = int(rng.integers(1, 40)), int(rng.integers(1, 12))
            for _ in range(2):  # iterations, which use one buffer
                lengths = [len(reducers[0]._part(task, 4.0 * count, chunk, chunks)) for chunk in range(chunks)]
                assert sum(lengths) == count
                assert max(lengths) - min(lengths) <= 1
                for chunk, length in enumerate(lengths):
                    for reducer in reducers:
                        reducer.start(task, 4.0 * count, chunk, chunks, told.append)
                    if length:
                        end(Store.ranks)
                    assert told == [None] * size
                    told.clear()
                assert not reducers[0]._buffers[task].any()  # so that the next sums are whole again
            places = [reducers[0]._part(task, 4.0 * count, chunk, chunks) for chunk in range(chunks)]
            for chunk, place in enumerate(places):
                place[:] += chunk + 1  # each element is in one part, and in their order
            assert reducers[0]._buffers[task].tolist() == sorted(np.concatenate(places))
            reducers[0]._buffers[task][:] = 0


@pytest.mark.usefixtures("torch")
def test_sums_that_are_wrong_and_transfers_that_fail_are_told() -> None:
    reducers, told = joined(3), list[str | None]()
    for wrong, error in ((1.0, ""), (0.0, "connection reset by peer")):
        for reducer in reducers:
            reducer.start(0, 40.0, 0, 2, told.append)
        end(Store.ranks, wrong=wrong, error=error)
    assert told == ["it came to the sums 7.0 and 7.0; expected 6.0"] * 3 + ["connection reset by peer"] * 3
    reducers[0].leave()
    assert (reducers[0]._group, reducers[0]._store, reducers[0]._buffers) == (None, None, {})


def test_a_message_that_memory_has_no_room_for_is_told(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(count: int) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(torch, "zeros", no_memory)
    with pytest.raises(TestbedError, match=r"no memory for a message of 2\.5 MB"):
        joined(1)[0].start(0, 2.5e6, 0, 1, lambda wrong: None)


TASKS = (
    ComputeTask(name="a", duration_ns=1_000),
    AllReduceTask(name="r", message_bytes=4_000_000.0, after=("a",)),
    ComputeTask(name="b", duration_ns=1_000, after=("a",)),
    AllReduceTask(name="s", message_bytes=12_000_000.0, after=("b",)),
)


def test_a_model_is_as_large_as_the_messages_and_the_gate_is_told_each_step() -> None:
    said: list[dict[str, Any]] = []
    job = TrainingJob(IterationDag(TASKS), (3, 5), 2, said.append)
    assert job._shape() == (1414, 2)  # two layers of 1414 x 1414 x 4 bytes: 8 MB each
    assert TrainingJob(IterationDag(TASKS[:1]), (0,), 1, said.append)._shape() == (2, 1)
    assert not job.computes
    built: list[tuple[Any, ...]] = []
    job._build = lambda *given: built.append(given)  # type: ignore[method-assign]
    job._train = lambda: job.iterated(0) or 1 / 0  # type: ignore[method-assign, assignment, func-returns-value]
    job.begin()
    job.prepare("host", 7, 1, 2)
    assert job._thread is not None
    job._thread.join(10)
    assert built == [("host", 7, 1, 2)]
    assert said == [{"say": "grouped"}, {"say": "failed", "error": "ZeroDivisionError: division by zero"}]


class Layer:
    """Half of two numbers is its gradient."""

    def __init__(self, width: int, out: int, *, bias: bool) -> None:
        assert (out, bias) == (width, False)
        self.parameter = np.array([4.0, 8.0])


class Trained:
    """A DistributedDataParallel whose hook gives each layer's gradient back at once."""

    def __init__(self, layers: list[Layer], *, bucket_cap_mb: float) -> None:
        self.layers, self.bucket_cap_mb, self.told = layers, bucket_cap_mb, list[Any]()

    def register_comm_hook(self, state: None, hook: Callable[[None, Any], Any]) -> None:
        self.told.append(hook(state, "bucket"))

    def zero_grad(self) -> None:
        self.told.append("zero")

    def __call__(self, shape: tuple[int, int]) -> Trained:
        self.told.append(shape)
        return self

    def square(self) -> Trained:
        return self

    mean = square

    def backward(self) -> None:
        self.told.append("backward")

    def parameters(self) -> list[Any]:
        return [Parameter(layer) for layer in self.layers]


class Parameter:
    def __init__(self, layer: Layer) -> None:
        self.layer, self.grad = layer, layer.parameter / 2

    def __isub__(self, step: Any) -> Parameter:
        self.layer.parameter -= step
        return self


def test_a_model_of_the_jobs_layers_is_trained_step_by_step(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    network = SimpleNamespace(Linear=Layer, Sequential=lambda *layers: list(layers))
    torch.__dict__.update(nn=network, manual_seed=lambda seed: told.append(("seed", seed)), no_grad=nullcontext)
    torch.__dict__["randn"] = lambda *shape: shape
    parallel = ModuleType("torch.nn.parallel")
    parallel.__dict__["DistributedDataParallel"] = Trained
    for name, module in (("torch.nn", ModuleType("torch.nn")), ("torch.nn.parallel", parallel)):
        monkeypatch.setitem(sys.modules, name, module)
    distributed = torch.distributed
    distributed.__dict__.update(
        TCPStore=lambda host, port, **given: (host, port, given["is_master"], given["timeout"].total_seconds()),
        PrefixStore=lambda prefix, store: (prefix, store),
        init_process_group=lambda backend, **given: told.append((backend, given)),
        new_group=lambda: "a group",
        destroy_process_group=lambda: told.append("left"),
    )
    monkeypatch.setattr("ddlsched.real.torch.training_job.Hook", lambda *given: lambda bucket: (given[1:], bucket))
    said: list[dict[str, Any]] = []
    job = TrainingJob(IterationDag(TASKS), (3, 5), 2, said.append)
    job.begin()
    job.prepare("host", 7, 1, 4)
    assert job._thread is not None
    job._thread.join(10)
    model: Any = job._model
    store = ("training", ("host", 7, False, 60.0))
    assert told == [("gloo", {"store": store, "rank": 1, "world_size": 4}), ("seed", 0)]
    assert model.bucket_cap_mb == pytest.approx(0.9 * 1414 * 1414 * 4 / 2**20)  # below a layer: a bucket each
    assert model.told == [(("a group", 4), "bucket"), *["zero", (16, 1414), "backward"] * 2]
    for layer in model.layers:
        assert layer.parameter.tolist() == pytest.approx([4 * 0.9995**2, 8 * 0.9995**2])
    computed = [{"say": "computed", "task": task, "gpus": [3, 5], "late_ns": 0} for task in (0, 2)]
    steps = [[*computed, {"say": "iterated", "iteration": number}] for number in range(2)]
    assert said == [{"say": "grouped"}, *steps[0], *steps[1]]
    job.leave()
    assert told[-1] == "left"
    assert not hasattr(job, "_model")


def test_a_job_that_waits_long_for_its_buckets_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    time = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr("ddlsched.real.torch.training_job.time", time)
    said: list[dict[str, Any]] = []
    job = TrainingJob(IterationDag(TASKS), (0,), 2, said.append)
    job._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
    assert job.computes
    clock.now_s += 5
    job.ready(0, 0, 8.0, lambda *_: None, lambda error: None)
    assert job.computes
    clock.now_s += 1.5
    assert not job.computes
    job.sent(0, 0, 0, last=True)
    assert job.computes
    assert [each["say"] for each in said] == ["ready", "sent"]
