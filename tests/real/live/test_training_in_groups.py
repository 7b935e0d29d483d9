"""What a script's ``train`` does in groups that come and go, with a torch of which each test says what it answers."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.errors import InputError
from ddlsched.real.live.commits import commits_at, writing
from ddlsched.real.live.meetings import NotSealedError, Seal
from ddlsched.real.live.seat import Assignment, Orders, Seat

STEPS = 9
SAMPLES = 32


class Tensor:
    def __init__(self, value: int) -> None:
        self.value = int(value)

    def __int__(self) -> int:
        return self.value


def loss_of(step: int) -> float:
    return step * step % 7 / 4


class Model:
    """Its weights are the steps that made them."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def state_dict(self) -> list[int]:
        return list(self.steps)

    def load_state_dict(self, state: list[int]) -> None:
        self.steps = list(state)


class Noting:
    """Commits, with a list of those of the process that is looked at."""

    def __init__(self, commits: Any) -> None:
        self._commits, self.noted = commits, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commits, name)

    def commit(self, losses: list[float], save: Callable[[Any], None]) -> None:
        self.noted.append(len(losses))
        self._commits.commit(losses, save)

    def by_others(self, done: int) -> None:
        losses, state = [loss_of(step) for step in range(done)], {"model": list(range(done))}
        self._commits.commit(losses, lambda file: pickle.dump(state, file))


class Life:
    """The manager and the other ranks, as one process meets them; groups are drawn.

    A group's ranks leave after some steps, or it breaks in the middle of one: before or after this process's own
    weights have changed.
    """

    def __init__(self, module: Any, folder: Path, seed: int) -> None:
        self.module, self.rng, self.model = module, np.random.default_rng(seed), Model()
        self.checkpoint = str(self.rng.choice(["", "fixed:every_s=1e6"]))
        self.folder, self.commits = folder, Noting(commits_at(folder))
        self.assignment = Assignment("a", "token", "train.py", STEPS, str(folder), "", 0)
        self.generation = 0
        self.reports: list[tuple[int, int]] = []
        self.group: Any = None
        self.waited = False

    def orders(self) -> Orders:
        if self.group is not None:
            self._look_back()
            self._others_end()
        self.generation += 1
        last = self.generation > 12
        ranks = 1 if last else int(self.rng.integers(1, 4))
        rank = 0 if last else int(self.rng.integers(ranks))
        ends = "leave" if ranks == 1 else str(self.rng.choice(["leave", "before", "after", "nobody came"]))
        begin = len(self.commits.losses())
        after = STEPS if last else int(self.rng.integers(0, 4))
        checkpoint = "" if last else self.checkpoint
        given = {"rank": rank, "ranks": ranks, "ends": ends, "begin": begin, "end": begin + after}
        self.group = SimpleNamespace(**given, told=[], checkpoint=checkpoint)
        if rank > 0 and not self.commits.has_state(begin):  # rank 0 commits what all begin with
            self.commits.by_others(0)
        return Orders(self.generation, rank, ranks, "here", 7, checkpoint, 1e9, 0.25)

    def _look_back(self) -> None:
        """Look at what the process has reported and committed in a group: that of rank 0, every step or the last."""
        begin, now = self.group.begin, len(self.commits.losses())
        is_half_done = self.group.ends == "after" and self.group.end < STEPS
        steps = list(range(begin + 1, len(self.model.steps) + 1 - is_half_done))
        if self.group.rank > 0 or self.group.ends == "nobody came":
            assert (self.reports, self.commits.noted) == ([], [])
            return
        assert self.reports == [(steps_done, steps_done * SAMPLES) for steps_done in steps]
        every = (
            steps if not self.group.checkpoint else steps[-1:] if self.group.ends == "leave" or STEPS in steps else []
        )
        assert [done for done in self.commits.noted if done] == every
        assert now == (every or [begin])[-1]
        self.reports, self.commits.noted = [], []

    def _others_end(self) -> None:
        """Let rank 0, if that was another process, commit what it has done."""
        group = self.group
        if group.rank == 0 or group.ends == "nobody came":
            return
        done = min(group.end, STEPS)
        if group.ends != "leave":
            done = int(self.rng.integers(group.begin, done + 1))
        if done > group.begin:
            self.commits.by_others(done)

    def meeting(self, seat: Any, orders: Orders) -> Any:
        assert seat is self
        return None if self.group.ends == "nobody came" else "store"

    def broadcast(self, shared: Tensor, source: int) -> None:
        """Tell a rank what rank 0 says: first the number of steps that are committed, then whether all are to leave."""
        assert source == 0
        if self.group.rank > 0:
            assert shared.value == 0  # which is what is not asked of rank 0
            shared.value = int(self.is_asked_to_leave()) if self.group.told else self.group.begin
        elif not self.group.told:
            assert shared.value == self.group.begin
        self.group.told.append(shared.value)

    def is_asked_to_leave(self) -> bool:
        return bool(self.group.ends == "leave" and len(self.model.steps) >= self.group.end)

    def wait_for_leave(self) -> None:
        assert self.group.rank > 0
        assert len(self.model.steps) == STEPS
        self.waited = True

    def writing(self, orders: Orders) -> AbstractContextManager[None]:
        return writing(self.folder) if orders.rank == 0 else nullcontext()

    def report(self, losses: list[float], samples: int, ranks: int, commit_s: float) -> None:
        assert (self.group.rank, ranks) == (0, self.group.ranks)
        assert losses == [loss_of(step) for step in range(len(losses))]
        assert commit_s > 0
        self.reports.append((len(losses), samples))

    def begin(self, rank: int, ranks: int) -> Callable[[int], float]:
        assert (rank, ranks) == (self.group.rank, self.group.ranks)
        assert self.model.steps == list(range(self.group.begin))  # all begin from what is committed

        def step(number: int) -> float:
            assert self.model.steps == list(range(number))  # no step is left out or done twice
            breaks = number == self.group.end
            if breaks and self.group.ends == "before":
                raise RuntimeError("a rank has gone")
            self.model.steps.append(number)
            if breaks and self.group.ends == "after":
                raise RuntimeError("a rank has gone")
            return loss_of(number)

        return step


def load_weights(file: Any, *, weights_only: bool) -> Any:
    """A state may come from a place that others write to, so that nothing else in it is run."""
    assert weights_only is True
    return pickle.load(file)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported with a torch that has what it needs."""
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__dict__.update(tensor=Tensor, save=pickle.dump, load=load_weights)
    torch.__dict__["distributed"] = distributed
    distributed.__dict__.update(Store=object, TCPStore=object, barrier=lambda: None)
    distributed.__dict__["group"] = SimpleNamespace(WORLD="world")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    monkeypatch.delitem(sys.modules, "ddlsched.real.live.training", raising=False)
    yield importlib.import_module("ddlsched.real.live.training")
    sys.modules.pop("ddlsched.real.live.training", None)


def begun(module: Any, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Life:
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no power fails here
    life = Life(module, folder, seed)
    monkeypatch.setattr(Seat, "here", life)
    monkeypatch.setattr(module, "meeting", life.meeting)
    monkeypatch.setattr(module, "group", lambda store, orders: nullcontext())
    monkeypatch.setattr(module.distributed, "broadcast", life.broadcast, raising=False)
    return life


@pytest.mark.long
def test_every_step_is_done_once_from_what_is_committed_whatever_becomes_of_groups(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, broke, stayed = 0, 0, 0
    for seed in range(20):
        life = begun(module, tmp_path / str(seed), seed, monkeypatch)
        module.train(life.begin, {"model": life.model}, SAMPLES)
        assert life.group.rank == 0  # only that process returns
        assert life.model.steps == list(range(STEPS))
        assert life.commits.losses() == [loss_of(step) for step in range(STEPS)]
        with life.commits.open_state(STEPS) as file:
            assert pickle.load(file) == {"model": list(range(STEPS))}
        life._look_back()
        waited += life.waited
        broke += life.generation > 12
        stayed += life.generation <= 12
    assert min(waited, broke, stayed) > 0  # all of it is tried


def test_what_fails_alone_fails_and_what_is_no_job_is_refused(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="was called outside of a job; expected a script that ddlsched live runs"):
        module.train(None, {}, 1)
    life = begun(module, tmp_path / "a", 0, monkeypatch)
    life.generation = 12  # one rank from now on

    def broken(step: int) -> float:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        module.train(lambda rank, ranks: broken, {"model": life.model}, SAMPLES)


def test_a_state_of_other_names_is_refused(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = begun(module, tmp_path / "a", 0, monkeypatch)
    life.generation = 12
    life.commits.by_others(1)
    with pytest.raises(InputError, match=r"cannot be loaded \('optimiser'\); expected the state that was committed"):
        module.train(life.begin, {"model": life.model, "optimiser": Model()}, SAMPLES)


def test_a_groups_connections_end_with_it_and_no_others(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    kept, other = socket.socketpair()
    made: list[socket.socket] = []
    asked: dict[str, Any] = {}
    timeouts: list[Any] = []

    def form(backend: str, **given: Any) -> None:
        asked.update(given, backend=backend)
        made.extend(socket.socket(fileno=end.detach()) for end in socket.socketpair())

    c10d = SimpleNamespace(_set_pg_timeout=timeouts.append)
    given = {"init_process_group": form, "distributed_c10d": c10d, "destroy_process_group": lambda: made.append(ours)}
    module.distributed.__dict__.update(given)
    orders = Orders(3, 1, 2, "here", 7)
    with module.group("store", orders):
        assert [end.getsockname() for end in made] == ["", ""]
        made[0].sendall(b"x")
        assert made[1].recv(5) == b"x"
    assert (asked["backend"], asked["store"], asked["rank"], asked["world_size"]) == ("gloo", "store", 1, 2)
    assert asked["timeout"] < timeouts[0]
    assert made[1].recv(5) == b""  # shut, although this reference to it is still there
    assert made[-1] is ours  # the group is left
    kept.sendall(b"y")
    assert other.recv(5) == b"y"
    module._shut([listener])  # one that listens is left alone
    for end in (*made, ours, theirs, kept, other):
        end.close()

    def cannot(backend: str, **given: Any) -> None:
        raise RuntimeError("refused")

    module.distributed.__dict__["init_process_group"] = cannot
    with pytest.raises(SystemExit, match="group 3 cannot be formed: refused"), module.group("store", orders):
        pass


class Kept(dict[str, bytes]):
    """A store of torch."""

    def set(self, key: str, value: bytes) -> None:
        self[key] = value

    def add(self, key: str, amount: int) -> int:
        self[key] = str(int(self.get(key, b"0")) + amount).encode()
        return int(self[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def wait(self, keys: list[str], timeout: Any) -> None:
        assert self.check(keys)


def test_a_store_has_a_seal_on_values_and_none_on_counts(module: Any) -> None:
    kept = Kept()
    one, other = (module._Sealed(kept, Seal("token", generation)) for generation in (1, 2))
    one.set("a", b"value")
    assert (one.get("a"), kept["a"] == b"value", one.check(["a"]), one.check(["a", "b"])) == (
        b"value",
        False,
        True,
        False,
    )
    with pytest.raises(NotSealedError):
        other.get("a")
    assert [one.add("n", 2), other.add("n", 3)] == [2, 5]
    one.wait(["a", "n"])


def test_rank_0_opens_the_store_where_it_is_bound_and_others_reach_it(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Any, ...]] = []

    def store(*given: Any, **named: Any) -> str:
        opened.append((given, named))
        return "store"

    monkeypatch.setattr(module.distributed, "TCPStore", store)
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        seat: Any = SimpleNamespace(place=place)
        assert module._store(seat, Orders(1, 0, 2, "127.0.0.1", port)) == "store"
        (given, named) = opened[-1]
        with socket.socket(fileno=named.pop("master_listen_fd")) as own:
            assert own.getsockname() == place.getsockname()
        assert (given, named) == (
            ("127.0.0.1", port),
            {"is_master": True, "wait_for_workers": False, "timeout": module._FORMING},
        )
        assert module._store(seat, Orders(1, 1, 2, "127.0.0.1", port)) == "store"
        assert opened[-1][1] == {"wait_for_workers": False, "timeout": module._FORMING}
    with pytest.raises(OSError, match="refused"):
        module._store(seat, Orders(1, 1, 2, "127.0.0.1", port))
    assert len(opened) == 2


def test_groups_form_within_seconds_and_their_steps_take_as_long_as_they_take(module: Any) -> None:
    assert (module._FORMING.total_seconds(), module._STEP.total_seconds(), module._REACHING_S) == (15, 86400, 2.0)
