"""What a recorder writes of training with a stand-in for PyTorch, whose every call takes a time that is known."""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kept_numbers import answered, assert_kept
from stand_in_torch import ORDER, Profile, Tensor, World

from ddlsched.training import recording
from ddlsched.training.recorded.recordings import read_recording

MADE = ("collective_calls", "recorder")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    modules = {name: sys.modules.pop(f"{recording.__name__}.{name}", None) for name in MADE}
    for name in MADE:
        vars(recording).pop(name, None)
    yield World(monkeypatch)
    for name, module in modules.items():
        sys.modules.pop(f"{recording.__name__}.{name}", None)
        vars(recording).pop(name, None)
        if module is not None:
            sys.modules[f"{recording.__name__}.{name}"] = module
            setattr(recording, name, module)


@pytest.fixture
def calls(world: World) -> ModuleType:
    from ddlsched.training.recording import collective_calls

    return collective_calls


class Watcher:
    """Notes what it is told."""

    watching = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def calls(self, called: Any) -> int:
        group = None if called.group is None else called.group.group_name
        self.told.append(f"{called.kind} {called.input_bytes} {group} {called.peer}")
        return len(self.told)

    def returned(self, token: int, *, at_once: bool) -> None:
        self.told.append(f"{token} returned {at_once}")

    def waits(self, token: int) -> None:
        self.told.append(f"{token} waits")

    def waited(self, token: int) -> None:
        self.told.append(f"{token} waited")

    def done(self, token: int) -> None:
        self.told.append(f"{token} done")


T, TWO = Tensor(10), [Tensor(3, 8), Tensor(5, 2)]
GIVEN: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "all_reduce": [((T,), {}), ((), {"tensor": T, "async_op": True})],
    "all_reduce_coalesced": [((TWO,), {})],
    "all_gather": [(([T], TWO[0]), {}), ((), {"tensor": T, "tensor_list": [], "async_op": True})],
    "all_gather_into_tensor": [((T, TWO[0]), {})],
    "reduce_scatter": [((T, TWO), {"async_op": True})],
    "reduce_scatter_tensor": [((T, TWO[1]), {})],
    "all_to_all": [((TWO, [*TWO, T]), {})],
    "all_to_all_single": [((T, TWO[0]), {"async_op": True})],
    "broadcast": [((T, 0), {"async_op": True})],
    "_broadcast_coalesced": [(("pair", TWO, 99, 0), {})],
    "barrier": [((), {})],
    "send": [((T, 2), {}), ((T,), {"group_dst": 1, "group": "pair"}), ((T,), {"group_dst": 3})],
    "isend": [((T, 0), {})],
    "recv": [((T, 3), {}), ((T,), {"group_src": 0, "group": "pair"}), ((T,), {})],
    "irecv": [((T, 2), {})],
    "reduce": [((T, 0), {})],
    "gather": [((T,), {})],
    "scatter": [((T,), {})],
}


def test_each_call_is_told_once_with_what_a_rank_brings(world: World, calls: ModuleType) -> None:
    watcher, kept = Watcher(), {}
    before = {name: getattr(world.distributed, name) for name in ORDER}
    others = dict(vars(world.functional)), world.c10d.broadcast, world.distributed.Work.wait
    with calls.watched(watcher):
        for name in ORDER:
            for number, (given, named) in enumerate(GIVEN[name]):
                given = tuple(world.pair if each == "pair" else each for each in given)
                named = {key: world.pair if each == "pair" else each for key, each in named.items()}
                result = getattr(world.distributed, name)(*given, **named)
                if isinstance(result, str):
                    assert result == f"result of {name}"
                else:
                    for _ in range(2):  # the second wait is not told
                        assert result.wait(5) == "waited 5"
                    result.ends()
                kept[f"{name} {number}"] = ", ".join(watcher.told)
                watcher.told.clear()
        for name, at in (("all_reduce", 1), ("all_gather_tensor", 1)):
            result = getattr(world.functional, name)(Tensor(6, 2), "what", "5")
            kept[f"functional {name}"] = f"{result}: {', '.join(watcher.told)}"
            assert len(watcher.told) == 1 + at
            watcher.told.clear()
        world.c10d.broadcast(T)
        assert watcher.told == ["broadcast 40 None None", "1 returned True"]
        watcher.told.clear()
        with pytest.raises(ValueError, match="too many"):
            world.distributed.scatter(T, [T, T])
        watcher.watching = False
        world.distributed.all_reduce(T)
        world.functional.all_reduce(T, "sum", "5")
        assert watcher.told == ["scatter 0 None None"]
        watcher.watching = True
        world.distributed.barrier()
        assert watcher.told[1:] == ["barrier 0 None None", "2 returned True"]
        assert world.distributed.all_reduce.__name__ == "all_reduce"
    assert {name: getattr(world.distributed, name) for name in ORDER} == before
    assert (dict(vars(world.functional)), world.c10d.broadcast, world.distributed.Work.wait) == others
    assert_kept("collective-calls", kept)


@pytest.mark.parametrize(
    ("called", "seen", "flags", "formed", "refused"),
    [
        ([], [], 0, 0, ""),
        (["c10d::allreduce_", "c10d::allreduce_"], ["all-reduce"], 0, 0, "c10d::allreduce_ (2, 1 seen)"),
        (["c10d::allreduce_", "c10d::allreduce_"], ["all-reduce"], 1, 0, ""),
        (["c10d::allreduce_"], [], 0, 0, "c10d::allreduce_ (1, 0 seen)"),
        (["c10d::recv_", "c10d::send"], ["send", "send"], 0, 0, ""),
        (["c10d::recv_", "c10d::send"], ["send"], 0, 0, "c10d::recv_, c10d::send (2, 1 seen)"),
        (["c10d::broadcast_"] * 2, [], 0, 1, ""),
        (["c10d::broadcast_"] * 3, [], 0, 1, "c10d::broadcast_ (3, 0 seen)"),
        (["c10d::broadcast_"] * 3, ["broadcast"], 0, 1, ""),
        (["c10d::reduce_scatter_", "c10d::what"], ["reduce-scatter"], 0, 0, "c10d::what (1, 0 seen)"),
    ],
)
def test_what_a_profiler_saw_is_to_have_been_recorded(
    calls: ModuleType, called: list[str], seen: list[str], flags: int, formed: int, refused: str
) -> None:
    said = answered(calls.refuse_unseen, called, iter(seen), flags=flags, formed=formed)
    begins = "record: collectives that go past the functions of torch.distributed are not seen: "
    assert said.startswith(f"{begins}{refused}; expected none" if refused else "None")


def test_a_profiled_step_tells_its_collectives_once(calls: ModuleType) -> None:
    Profile.seen = ["aten::add", "c10d::allreduce_", "record c10d::x"]
    step = calls.ProfiledStep()
    assert (Profile.began, Profile.ended) == (1, 0)
    assert step.collectives() == ["c10d::allreduce_"]
    assert step.collectives() == []
    Profile.busy = True
    assert calls.ProfiledStep().collectives() == []
    assert (Profile.began, Profile.ended) == (1, 1)


class Training:
    """Steps of a model, by hand: computes take whole tens of microseconds, calls what the stand-in says."""

    def __init__(self, world: World, *, unused: bool = False) -> None:
        self.world, self.model, self.optimizer = world, world.model_class(), object()
        self.model.find_unused_parameters = unused

    def step(self, number: int, *others: str) -> None:
        world, on = self.world, self.world.distributed
        world.now_ns += 10_000 * number
        assert self.model.forward(number) == number + 1
        if "send" in others:
            on.send(Tensor(6), 2)
            on.irecv(Tensor(7), 0).wait()
        gathers = [on.all_gather([], Tensor(8), world.pair, async_op=True) for _ in range("gather" in others)]
        world.now_ns += 20_000
        if "backward" in others:
            assert world.autograd.backward(self.model, [100, 10 * number]) == "gradients"
        if "past" in others:  # torch.autograd, as C++ may be called
            world.backward(self.model, [60])
        first = len(world.works)
        if "afterwards" in others:
            world.autograd.backward(self.model, [70, 80], told=False)
        world.now_ns += 3_000
        for work in world.works[first:]:
            work.ends()
        for work in gathers:
            work.wait()
            work.ends()
        if "late" in others:
            on.broadcast(Tensor(5), async_op=True)
        if "twice" in others:
            assert world.autograd.backward(self.model, [30]) == "gradients"
        self.optimize(self.optimizer)

    def optimize(self, optimizer: object) -> None:
        for hook in [*self.world.hooks["before"]]:
            hook(optimizer, (), {})
        self.world.now_ns += 4_000
        for hook in [*self.world.hooks["after"]]:
            hook(optimizer, (), {})
        self.world.now_ns += 500


@pytest.fixture
def recorder(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    from ddlsched.training.recording import recorder

    def now() -> int:
        return world.now_ns

    monkeypatch.setattr(recorder, "time", SimpleNamespace(perf_counter_ns=now))
    return recorder


def lines(path: Path) -> dict[str, str]:
    """Return a line for the recording and each step and communication."""
    told = json.loads(path.read_text())
    kept = {}
    for step in told.pop("steps"):
        name = f"{path.name} step {step.pop('number')}"
        for place, call in enumerate(step.pop("communications")):
            kept[f"{name}, call {place}"] = json.dumps(call)
        assert step["compute_ns"] == step["wall_ns"] - sum(end - begin for begin, end in step["stalls_ns"])
        kept[name] = json.dumps(step)
    return {path.name: json.dumps(told)} | kept


@pytest.mark.long
def test_recordings_are_what_they_were(world: World, recorder: Any, tmp_path: Path) -> None:
    kept = {}
    each = ["", "backward", "send", "gather backward", "late", "backward twice", "past", "afterwards"]
    whole = ("send", "gather", "backward", "late", "twice")
    for name, skip, most, kinds, unused in (
        ("all", 3, 3, [whole] * 8, False),
        ("each", 1, 7, [tuple(kinds.split()) for kinds in each], True),
        ("last", 2, 9, [("backward",)] * 5, True),
    ):
        recorded = recorder.record(tmp_path / name, skip=skip, most_steps=most)
        full: list[int] = []
        recorded.when_full = lambda full=full: full.append(world.now_ns)
        training = Training(world, unused=unused)
        Profile.seen = ["c10d::allreduce_"] if unused else []
        for number, kind in enumerate(kinds, start=1):
            if number == skip + 2:
                training.optimize(object())  # of another optimizer, which ends no step
            training.step(number, *(kind if number > 1 else ()))
            kept[f"{name} {number}"] = f"{len(full)} {recorded.watching} {len(training.model.hooks)} {world.now_ns}"
        path = recorded.end()
        assert path == tmp_path / name / "1.recording.json"
        assert read_recording(path).num_ranks == 4
        kept |= {f"{name} {key}": told for key, told in lines(path).items()}
        assert world.hooks == {"before": [], "after": []}
        reduced = world.called.count("all_reduce")
        kept[f"{name} called"] = f"{Profile.began} {Profile.ended} {len(world.called)} {reduced}"
        assert "1024 on cpu" in world.called
        world.called.clear()
    assert_kept("recordings-of-training", kept)


def test_a_hook_of_the_script_is_kept_and_called_as_it_was_given(world: World, recorder: Any, tmp_path: Path) -> None:
    recorded = recorder.Recorder(tmp_path, 1, 1)
    recorded.begin()
    training, given = Training(world), list[tuple[Any, Any]]()

    def hook(state: Any, bucket: Any) -> Any:
        given.append((state, bucket.numel()))
        world.distributed.all_reduce(Tensor(bucket.numel(), 2))
        return "a future"

    training.model.register_comm_hook("mine", hook)
    [(_, watched)] = training.model.hooks
    assert watched.__annotations__ == {"bucket": Tensor, "return": list[Tensor]}
    assert watched("yours", Tensor(4)) == "a future"
    Profile.seen = ["c10d::allreduce_"] * 2
    for number in range(1, 4):
        training.step(number, "backward")
    assert len(training.model.hooks) == 1
    assert given == [("yours", 4), *[("mine", size) for size in (100, 10, 100, 20, 100, 30)]]
    [step] = read_recording(recorded.end()).steps.values()
    assert [call.input_bytes for call in step.communications] == [200, 60]
    assert {call.waited_ns for call in step.communications} == {(152_500, 152_500)}  # each had ended in its hook
    assert (tmp_path / "1.recording.json").exists()


@pytest.mark.long
def test_what_cannot_be_recorded_is_told(
    world: World, recorder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def recorded(kinds: list[tuple[str, ...]], skip: int = 1) -> Any:
        made = recorder.record(tmp_path, skip=skip, most_steps=2)
        training = Training(world)
        try:
            for number, kind in enumerate(kinds, start=1):
                training.step(number, *kind)
        finally:
            made.stop()
            atexit.unregister(made.end_at_exit)
        return made

    Profile.seen = []
    begins = "record: no step was recorded (2 ended by optimizer.step(), 1 + 1 are not kept); expected a script"
    assert answered(recorded([(), ()]).end).startswith(begins)
    world.initialized = False
    world.called.clear()
    alone = recorded([(), (), ()])
    assert world.called == []  # no group whose calls could be timed
    alone.end_at_exit()
    assert capsys.readouterr().err.startswith("ddlsched: error: record: no step has a collective; expected a script")
    assert list(tmp_path.iterdir()) == []
    Profile.seen = ["c10d::alltoall_"]
    assert "c10d::alltoall_ (1, 0 seen)" in answered(recorded, [(), ()])
    assert len(recorded([(), ()], skip=3)._before) == 1
    made = recorder.record(tmp_path / "b", skip=1)
    Profile.seen = []
    Training(world).step(1)
    said = answered(world.distributed.gather, Tensor(1))
    assert said == "torch.distributed.gather within a step: has no task in a job; expected an all-reduce or a broadcast"
    made.stop()
    atexit.unregister(made.end_at_exit)
    made = recorder.record(tmp_path / "c")
    assert made._most_steps == 1000
    assert "(0 ended by optimizer.step(), 11 + 1 are not kept)" in answered(made.end)
    for given in ({"skip": 0}, {"most_steps": 0}):
        assert "expected a whole number from 1" in answered(recorder.record, tmp_path, **given)
    assert world.hooks == {"before": [], "after": []}


def test_buckets_that_are_broadcast_when_they_form_are_not_missed(world: World, recorder: Any, tmp_path: Path) -> None:
    for skip, refused in ((2, True), (1, False)):
        Profile.seen = ["c10d::broadcast_"] * 2 + ["c10d::allreduce_"] * 2
        made = recorder.Recorder(tmp_path, skip, 1)
        made.begin()
        training = Training(world)
        told = [
            answered(training.step, number, *(["backward"] if number > 1 else [])).partition("(")[2]
            for number in range(1, 4)
        ]
        assert [text.startswith("2, 0 seen)") for text in told] == [False, False, refused]
        made.stop()


@pytest.mark.parametrize("available", [True, False])
def test_moments_are_those_of_the_gpu_on_which_a_process_trains(world: World, recorder: Any, available: bool) -> None:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ns, self.is_over = -1, False

        def record(self) -> None:
            world.now_ns += 250
            self.at_ns = world.now_ns

        def synchronize(self) -> None:
            self.is_over = True

        def elapsed_time(self, end: Event) -> float:
            assert self.is_over
            assert end.is_over
            return (end.at_ns - self.at_ns) / 1e6

    cuda = sys.modules["torch"].cuda
    cuda.Event, cuda.synchronize, cuda.is_available = Event, lambda: None, lambda: available
    assert isinstance(recorder.clock_of_this_process(), recorder.HostClock)
    world.on_gpu, world.backend = True, "nccl"
    clock = recorder.clock_of_this_process()
    assert isinstance(clock, recorder.CudaClock if available else recorder.HostClock)
    first = clock.moment()
    assert clock.ns(first) == (1_000_500 if available else 1_000_000)
    world.now_ns += 12_345_678_901
    assert clock.ns(clock.moment()) == world.now_ns
    world.now_ns -= 12_345_678_901
    recorded = recorder.Recorder(Path(), 1, 1)
    assert recorded._ns(clock.ns(first)) == clock.ns(first)
    assert recorded._cost_of_a_call() == (1_250 if available else 1_000)
    assert world.called[0] == "1024 on cuda"
    assert len(world.called) == 102
