"""Hooks of all ranks of a job in one process, on a stand-in for PyTorch whose all-reduce adds up the ranks' arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest

from ddlsched.errors import TestbedError
from ddlsched.real import torch as hooks
from ddlsched.real.gate.client import GateClient, RankMembership
from ddlsched.real.torch import Hook, RingChunk, scheduled


class Tensor:
    """An array with the names that PyTorch has for what it does."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, SimpleNamespace(type=device)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Tensor:
        return Tensor(self.array[place])

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def new_zeros(self, count: int) -> Tensor:
        return Tensor(np.zeros(count, self.array.dtype))

    def view(self, *shape: int) -> Tensor:
        return Tensor(self.array.reshape(*shape))

    def copy_(self, other: Tensor) -> None:
        assert self.array.shape == other.array.shape
        self.array[...] = other.array

    def mul_(self, factor: float) -> None:
        self.array *= factor


class Future:
    """A future whose ``then`` gives another, as PyTorch's does."""

    def __init__(self, devices: Any = "not told") -> None:
        self.devices, self.result, self.error = devices, list[Any](), ""
        self.later: list[Callable[[], None]] = []

    def then(self, made: Callable[[Any], Any]) -> Future:
        after = Future()
        self.later.append(lambda: after.set_result(answered_of(made, self)))
        return after

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        self.later.append(lambda: done(self))

    def set_result(self, result: Any) -> None:
        assert not self.result
        self.result.append(result)
        for done in self.later:
            done()

    def done(self) -> bool:
        return bool(self.result)

    def value(self) -> Any:
        return self.result[0]

    def wait(self) -> None:
        if self.error:
            raise RuntimeError(self.error)


def answered_of(made: Callable[[Any], Any], given: Any) -> Any:
    try:
        return made(given)
    except TestbedError as error:
        return error


class Work:
    def __init__(self) -> None:
        self.future = Future()

    def get_future(self) -> Future:
        return self.future


class Gpu:
    """Streams and events that note what is done with them."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def current_stream(self, device: Any) -> SimpleNamespace:
        return SimpleNamespace(record_event=lambda: f"event on {device.type}", name="current")

    def Stream(self, device: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            name=f"side of {device.type}",
            wait_event=lambda event: self.told.append(f"wait for {event}"),
            wait_stream=lambda stream: self.told.append(f"wait for {stream.name}"),
        )

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.told.append(f"on {stream.name}")
        yield
        self.told.append("off")


class World:
    """What a process knows of torch; a group is the list of what its ranks have given so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu, self.given = Gpu(), list[tuple[list[Any], Tensor, Work]]()
        torch, dist, parallel = (ModuleType(f"torch{name}") for name in ("", ".distributed", ".nn.parallel"))
        torch.futures, torch.cuda, torch.distributed = SimpleNamespace(Future=Future), self.gpu, dist  # type: ignore
        dist.all_reduce = self.all_reduce  # type: ignore
        self.dist = dist
        self.model_class = parallel.DistributedDataParallel = type("Model", (), {})  # type: ignore
        for module in (torch, dist, parallel):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def all_reduce(self, tensor: Tensor, group: list[Any], async_op: bool) -> Work:
        assert async_op
        work = Work()
        group.append((tensor, work))
        self.gpu.told.append("all-reduce")
        return work

    @staticmethod
    def reduce(groups: list[list[Any]]) -> np.ndarray:
        """Let one all-reduce of all ranks end; return what the first rank gave."""
        given = [group.pop(0) for group in groups]
        first = given[0][0].array.copy()
        total = sum(tensor.array.copy() for tensor, _ in given)
        for tensor, work in given:
            tensor.array[...] = total
            work.future.set_result(None)
        return first


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


class Client:
    """A rank's side of a gate."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.buckets: list[tuple[Any, Any]] = []

    def ready(self, task: int, iteration: int, size: float, send: Any, fail: Any) -> None:
        self.told.append(f"ready {task} {iteration} {size}")
        self.buckets.append((send, fail))

    def sent(self, task: int, iteration: int, chunk: int, *, last: bool) -> None:
        self.told.append(f"sent {task} {iteration} {chunk} {last}")

    def iterated(self, iteration: int) -> None:
        self.told.append(f"iterated {iteration}")


def bucket(tensor: Tensor, index: int, last: bool) -> Any:
    return SimpleNamespace(buffer=lambda: tensor, index=lambda: index, is_last=lambda: last)


def test_gradients_are_the_mean_of_all_ranks_in_as_many_chunks_as_the_gate_says(world: World) -> None:
    kept = {}
    for count, ranks, chunks in ((1, 2, 1), (10, 2, 1), (10, 2, 3), (7, 4, 2), (64, 4, 5), (1000, 8, 3), (3, 2, 7)):
        clients, groups = [Client() for _ in range(ranks)], [list[Any]() for _ in range(ranks)]
        made = [Hook(client, group, ranks) for client, group in zip(clients, groups, strict=True)]  # type: ignore
        given: list[np.ndarray] = []
        for iteration in range(2):
            for index in (1, 0):
                whole = [ranks * (np.arange(count, dtype=np.float32) + 100 * rank + index) for rank in range(ranks)]
                tensors = [Tensor(array.copy()) for array in whole]
                futures = [hook(bucket(tensor, index, index == 0)) for hook, tensor in zip(made, tensors, strict=True)]
                assert all(
                    tensor.array.tolist() == (array / ranks).tolist()
                    for tensor, array in zip(tensors, whole, strict=True)
                )
                order = range(chunks) if iteration else reversed(range(chunks))
                for chunk in order:
                    for client in clients:
                        client.buckets[-1][0](chunk, chunks)
                    assert not futures[0].done()
                    given.append(world.reduce(groups))
                for future, tensor in zip(futures, tensors, strict=True):
                    assert future.value() is tensor
                    assert tensor.array.tolist() == (sum(whole) / ranks).tolist()
        assert all(client.told == clients[0].told for client in clients)
        name = f"{count} numbers, {ranks} ranks, {chunks} chunks"
        kept[name] = (
            f"{[len(each) for each in given[:chunks]]} {digest(given)} {', '.join(clients[0].told[: chunks + 2])}"
        )
        assert clients[0].told[-1].startswith("sent 0 1")
        assert [text for text in clients[0].told if "iterated" in text] == ["iterated 0", "iterated 1"]
    assert_kept("hooked-gradients", kept)


def test_a_chunk_has_its_part_of_every_ranks_part(world: World) -> None:
    tensor = Tensor(np.arange(1.0, 13.0))  # two ranks' parts of six numbers, in three chunks of two
    for number in range(3):
        chunk = RingChunk(tensor, 2, number, 3)
        first = 2 * number + 1.0
        assert chunk.data.array.tolist() == [first, first + 1, first + 6, first + 7]
        chunk.data.array *= -1
        chunk.write_back()
    assert tensor.array.tolist() == [-each for each in np.arange(1.0, 13.0)]


@pytest.mark.parametrize(
    ("count", "ranks", "item_bytes", "length"),
    [
        (12, 2, 8, 6),  # 4 segments of 24 bytes, two a part
        (7, 4, 4, 2),  # 8 segments of 4 bytes, rounded up
        (1 << 20, 2, 4, 1 << 19),  # four segments of a MiB
        ((1 << 20) + 1, 2, 4, 524_289),  # a fifth makes six, of 699,052 bytes: three a part
        (1 << 21, 3, 2, 699_052),  # six of 699,050.7 bytes, rounded up to whole numbers: two a part
    ],
)
def test_parts_are_of_whole_segments(count: int, ranks: int, item_bytes: int, length: int) -> None:
    assert hooks.part_length(count, ranks, item_bytes) == length


def test_on_a_gpu_collectives_come_after_the_gradients_on_a_stream_of_their_own(world: World) -> None:
    group: list[Any] = []
    client = Client()
    tensor = Tensor(np.ones(4), "cuda")
    future = Hook(client, group, 1)(bucket(tensor, 3, False))  # type: ignore[arg-type]
    assert world.gpu.told == []
    client.buckets[0][0](0, 1)
    gradients = ["wait for event on cuda", "on side of cuda"]
    assert world.gpu.told == [*gradients, "all-reduce", "off"]
    world.gpu.told.clear()
    world.reduce([group])
    assert world.gpu.told == ["wait for current", "on side of cuda", "off", *gradients, "off"]
    assert future.value() is tensor
    assert hooks.Streams(tensor).future().devices == [tensor.device]
    assert hooks.Streams(Tensor(tensor.array)).future().devices == []


def test_an_all_reduce_that_fails_reaches_backward_once(world: World) -> None:
    group: list[Any] = []
    client = Client()
    future = Hook(client, group, 2)(bucket(Tensor(np.ones(9)), 0, True))  # type: ignore[arg-type]
    client.buckets[0][0](0, 2)
    client.buckets[0][0](1, 2)
    for _, work in group:
        work.future.error = "peer gone\nand a page about it"
        work.future.set_result(None)
    client.buckets[0][1](TestbedError("later"))
    assert str(future.value()) == "an all-reduce failed: peer gone"
    assert client.told == ["ready 0 0 72.0", "iterated 0"]


def test_a_model_joins_with_what_its_parameters_hold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[Any, ...]] = []
    client = Client()
    monkeypatch.setattr(GateClient, "connected", lambda *given: joined.append(given) or client)
    dist: Any = world.dist
    group: list[Any] = []
    dist.get_process_group_ranks = {"group": [4, 6, 7]}.__getitem__
    dist.get_backend = {"group": "gloo"}.__getitem__
    dist.new_group = lambda ranks, backend: group if (ranks, backend) == ([4, 6, 7], "gloo") else None
    dist.get_rank = lambda own: 2 if own is group else 9
    model: Any = world.model_class()
    registered: list[Any] = []
    model.process_group, model.register_comm_hook = "group", lambda state, hook: registered.append((state, hook))
    sizes = ((10, True), (4, False), (3, True))
    model.parameters = lambda: [
        SimpleNamespace(requires_grad=is_trained, numel=lambda n=n: n, element_size=lambda: 8)
        for n, is_trained in sizes
    ]
    assert scheduled(model, "h:1", token_file="t", job_id=5, server=3, compute_s=0.5) is model  # type: ignore[arg-type]
    scheduled(model, "h:1", token_file="t", job_id="a", iterations=4)
    first = RankMembership(job_id="5", rank=2, size=3, iterations=1_000_000, compute_s=0.5, message_bytes=104.0)
    second = RankMembership(job_id="a", rank=2, size=3, iterations=4, compute_s=0.0, message_bytes=104.0)
    assert joined == [("h:1", Path("t"), first, 3), ("h:1", Path("t"), second, None)]
    assert [state for state, _ in registered] == [None, None]
    tensor = Tensor(np.ones(6))
    registered[0][1]("no state", bucket(tensor, 0, False))
    assert tensor.array.tolist() == [1 / 3] * 6
    client.buckets[0][0](0, 1)
    assert len(group) == 1
    said = answered(scheduled, client, "h:1", token_file="t", job_id="a")
    assert said == "model is a Client; expected a DistributedDataParallel"
