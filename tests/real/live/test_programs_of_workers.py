"""What a process of a live job does from its orders on, with stand-ins for its seat, the clock and PyTorch."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.real.live import seat as seats
from ddlsched.real.live import worker
from ddlsched.real.live.seat import Orders
from ddlsched.real.live.worker import PROGRAMS, count, main


class Seat:
    """Gives orders one after the other; a group ends after so many reports, or with the job."""

    def __init__(self, steps: int, orders: list[tuple[Orders, int]]) -> None:
        self.assignment: Any = SimpleNamespace(job="a", steps=steps, program="count", parent=0)
        self.coming, self.told = orders, list[Any]()
        self.left = 0
        self.commits: Any = SimpleNamespace(losses=lambda: list(self.kept), commit=self.commit)
        self.kept: list[float] = []

    def orders(self) -> Orders:
        orders, self.left = self.coming.pop(0)
        self.told.append(f"rank {orders.rank} of {orders.ranks}")
        return orders

    def wait_for_leave(self) -> None:
        self.told.append("waits")

    def is_asked_to_leave(self) -> bool:
        self.left -= 1
        return self.left < 0

    def commit(self, losses: list[float]) -> None:
        self.kept = list(losses)
        self.told.append(f"commits {len(losses)}")

    @contextmanager
    def writing(self, orders: Orders) -> Iterator[None]:
        self.told.append("writes")
        yield
        self.told.append("has written")

    def report(self, losses: list[float], samples: int, ranks: int, commit_s: float) -> None:
        self.told.append((len(losses), samples, ranks, round(commit_s, 6)))


def orders(rank: int, ranks: int, checkpoint: str = "") -> Orders:
    return Orders(1, rank, ranks, "h", 1, checkpoint)


def test_counting_goes_on_from_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = SimpleNamespace(s=0.0), list[float]()

    def sleep(while_s: float) -> None:
        slept.append(while_s)
        now.s += while_s

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now.s)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(seats, "time", clock)
    given = [(orders(1, 2), 0), (orders(0, 4), 2), (orders(2, 3), 0), (orders(0, 2, "fixed:every_s=4"), 9)]
    seat = Seat(6, given)
    count(seat, lambda ranks: 4.0 / ranks, 0.5)  # type: ignore[arg-type]
    one = ["commits 1", (1, 64, 4, 0.5), "commits 2", (2, 128, 4, 0.5)]
    assert seat.told[:2] == ["rank 1 of 2", "waits"]
    assert seat.told[2:9] == ["rank 0 of 4", "writes", *one, "has written"]
    assert seat.told[9:11] == ["rank 2 of 3", "waits"]
    # Every second step of 2 s is due after 4 s; the last is committed whenever it ends.
    last = [(3, 192, 2, 0.5), "commits 4", (4, 256, 2, 0.5), (5, 320, 2, 0.5), "commits 6", (6, 384, 2, 0.5)]
    assert seat.told[11:] == ["rank 0 of 2", "writes", *last, "has written"]
    assert seat.kept == [1 / (1 + step) for step in range(6)]
    assert slept == [1, 0.5, 1, 0.5, 2, 2, 0.5, 2, 2, 0.5]
    slept.clear()
    PROGRAMS["count"](Seat(1, [(orders(0, 4), 9)]))  # type: ignore[arg-type]
    assert slept == [0.005, 0.0]


class Tensor:
    """An array that knows where its parts came from."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self.array[part])

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.array + other.array)

    def prod(self, dim: int, keepdim: bool) -> Tensor:
        return Tensor(self.array.prod(axis=dim, keepdims=keepdim))

    def sum(self, dim: int, keepdim: bool) -> Tensor:
        return Tensor(self.array.sum(axis=dim, keepdims=keepdim))

    def tanh(self) -> Tensor:
        return Tensor(np.tanh(self.array))

    def __truediv__(self, number: int) -> Tensor:
        return Tensor(self.array / number)

    def __float__(self) -> float:
        return float(self.array)


def test_the_small_network_is_trained_on_an_equal_part_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    torch = ModuleType("torch")
    names: Any = torch

    class Model(tuple[Any, ...]):
        def __call__(self, inputs: Tensor) -> Tensor:
            told.append(f"model of {inputs.array.shape}")
            return inputs

        def parameters(self) -> list[Any]:
            return [SimpleNamespace(grad=word) for word in self]

    class Loss(Tensor):
        def backward(self) -> None:
            told.append("backward")

        def detach(self) -> str:
            told.append(f"loss {float(self):.6f}")
            return "7.25"

        def __truediv__(self, number: int) -> Loss:
            return Loss(self.array / number)

    def mse_loss(found: Tensor, targets: Tensor, reduction: str) -> Loss:
        assert reduction == "sum"
        told.append(f"targets of {targets.array.shape}")
        return Loss(((found.array - targets.array) ** 2).sum())

    def made(name: str) -> Any:
        return lambda *given, **how: f"{name} {given} {how}"

    class Generator:
        def manual_seed(self, seed: int) -> int:
            return seed

    names.set_num_threads, names.manual_seed = (
        (lambda n: told.append(f"threads {n}")),
        (lambda n: told.append(f"seed {n}")),
    )
    names.Generator = Generator
    names.randn = lambda *shape, generator: Tensor(np.random.default_rng(generator).normal(size=shape))
    names.nn = SimpleNamespace(
        Sequential=lambda *layers: Model(layers), Linear=made("linear"), Tanh=made("tanh"),
        functional=SimpleNamespace(mse_loss=mse_loss),
    )  # fmt: skip

    def sgd(parameters: list[Any], **how: Any) -> SimpleNamespace:
        told.append([each.grad for each in parameters])
        told.append(how)
        return SimpleNamespace(zero_grad=lambda: told.append("zero"), step=lambda: told.append("steps"))

    names.optim = SimpleNamespace(SGD=sgd)
    names.distributed = SimpleNamespace(all_reduce=lambda each: told.append(f"reduce {each}"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    trained: list[Any] = []
    training = SimpleNamespace(train=lambda begin, **how: trained.append((begin, how)))
    monkeypatch.setitem(sys.modules, "ddlsched.real.live.training", training)  # type: ignore[arg-type]
    PROGRAMS["mlp"](None)  # type: ignore[arg-type]
    layers = ["linear (8, 64) {}", "tanh () {}", "linear (64, 1) {}"]
    assert told == ["threads 1", "seed 0", layers, {"lr": 0.05, "momentum": 0.9}]
    [(begin, how)] = trained
    assert (sorted(how["state"]), how["samples_a_step"]) == (["model", "optimiser"], 64)
    told.clear()
    assert begin(2, 3)(5) == 7.25
    inputs = np.random.default_rng(5).normal(size=(64, 8))
    wanted = np.tanh(inputs.prod(axis=1)) + inputs.sum(axis=1)
    loss = sum((inputs[sample, place] - wanted[sample]) ** 2 for sample in range(42, 64) for place in range(8)) / 64
    reduced = [f"reduce {each}" for each in ("7.25", *layers)]
    shapes = ["model of (22, 8)", "targets of (22, 1)"]
    assert told == ["zero", *shapes, "backward", f"loss {loss:.6f}", *reduced, "steps"]
    told.clear()
    begin(0, 3)(1)
    assert told[1] == "model of (21, 8)"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process whose stdin is a pipe, and what it is told by the system."""
    read, write = os.pipe()
    told = SimpleNamespace(dies=[], seat=None, write=write, before=os.dup(0))
    os.dup2(read, 0)
    os.close(read)

    def seat(orders_from: int) -> Any:
        told.orders = os.read(orders_from, 99)
        told.nothing = os.read(0, 99)
        os.close(orders_from)
        return told.seat

    seat.here = None  # type: ignore[attr-defined]
    told.seats = seat
    libc = SimpleNamespace(prctl=lambda *given: told.dies.append(given))
    monkeypatch.setattr(worker, "ctypes", SimpleNamespace(CDLL=lambda _: libc))
    monkeypatch.setattr(worker, "Seat", seat)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    os.write(write, b"orders")
    yield told
    os.dup2(told.before, 0)
    os.close(told.before)
    os.close(write)


@pytest.mark.parametrize(("parent", "status"), [(0, 0), (os.getppid(), 0), (os.getppid() + 1, 1)])
def test_a_process_whose_parent_is_gone_trains_nothing(
    process: Any, monkeypatch: pytest.MonkeyPatch, parent: int, status: int
) -> None:
    ran: list[Any] = []
    process.seat = SimpleNamespace(assignment=SimpleNamespace(parent=parent, program="count"))
    monkeypatch.setitem(PROGRAMS, "count", ran.append)
    assert main() == status
    assert process.dies == [(1, 9)]
    assert (process.orders, process.nothing) == (b"orders", b"")
    assert ran == [process.seat] * (not status)
    assert process.seats.here is (None if status else process.seat)


def test_a_script_runs_as_python_runs_it_and_is_known_by_what_was_read(process: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("import sys\nsys.modules['__main__'].told = (__name__, __file__, list(sys.argv), sys.path[0])\n")
    process.seat = SimpleNamespace(assignment=SimpleNamespace(parent=0, program=str(script)), script="")
    assert main() == 0
    assert sys.modules["__main__"].told == ("__main__", str(script), [str(script)], str(tmp_path))
    assert process.seat.script == hashlib.sha256(script.read_bytes()).hexdigest()
    script.write_text("x = (\n")
    with pytest.raises(SyntaxError) as told:
        main()
    assert told.value.filename == str(script)
