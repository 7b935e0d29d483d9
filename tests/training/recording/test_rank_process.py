"""How the ranks of a recorded script are started; what they record is tested with PyTorch."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddlsched import errors
from ddlsched.training.recording import rank_process


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Command and environment of each process, of which none is really started."""
    seen: list[tuple[list[str], dict[str, str]]] = []

    class Ended:
        returncode = 0

        def __init__(self, command: list[str], *, env: dict[str, str], **_: Any) -> None:
            seen.append((command, env))

        def poll(self) -> int:
            return 0

        wait = poll

    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    monkeypatch.setattr(subprocess, "Popen", Ended)
    return seen


def test_ranks_begin_within_what_they_are_given_and_meet_at_the_address(
    started: list[tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    paths = rank_process.run_recorded(
        script, ["--x"], tmp_path, ranks=2, skip=3, most_steps=7, address="10.77.0.1", within=lambda n: ["in", f"ns{n}"]
    )
    assert paths == [tmp_path / f"{rank}.recording.json" for rank in (0, 1)]
    program = [
        sys.executable,
        "-m",
        "ddlsched.training.recording.rank_process",
        str(tmp_path),
        "3",
        "7",
        str(script),
        "--x",
    ]
    assert [command for command, _ in started] == [["in", f"ns{rank}", *program] for rank in (0, 1)]
    assert {environment["MASTER_ADDR"] for _, environment in started} == {"10.77.0.1"}
    assert [environment["RANK"] for _, environment in started] == ["0", "1"]
    assert len({environment["MASTER_PORT"] for _, environment in started}) == 1


def test_ranks_are_on_this_machine_by_default(started: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    rank_process.run_recorded(script, [], tmp_path, ranks=1, skip=0, most_steps=1)
    ((command, environment),) = started
    assert command[0] == sys.executable
    assert environment["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback has another name")
@pytest.mark.parametrize(("address", "own", "found"), [
    ("127.0.0.1", None, "lo"), ("127.0.0.1", "eth7", "eth7"), ("10.0.0.1", None, None),
])  # fmt: skip
def test_item_17_gloo_listens_on_the_loopback_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, address: str, own: str | None, found: str | None
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if own is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", own)
    assert rank_process._environment(0, 2, address, 29500).get("GLOO_SOCKET_IFNAME") == found


class Clock:
    """Time that passes only while somebody sleeps or waits."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, while_s: float) -> None:
        assert while_s == 0.05
        self.now_s += while_s


class Rank:
    """A process that ends at a time with a status, writing its recording or not, or that only a signal ends."""

    def __init__(
        self, clock: Clock, end_s: float, status: int, *, needs_s: float = 0.0, path: Path | None = None
    ) -> None:
        self.clock, self.end_s, self.status, self.needs_s, self.path = clock, end_s, status, needs_s, path
        self.returncode: int | None = None
        self.told: list[str] = []

    def poll(self) -> int | None:
        if self.returncode is None and self.clock.now_s >= self.end_s:
            self.returncode = self.status
            if self.path is not None:
                self.path.touch()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.poll() is None and timeout is not None:
            self.told.append(f"waits {timeout:g}")
            self.clock.now_s += min(timeout, max(self.end_s - self.clock.now_s, 0))
            if self.poll() is None:
                raise subprocess.TimeoutExpired("rank", timeout)
        return self.returncode

    def terminate(self) -> None:
        self.told.append("terminate")
        self.end_s = self.clock.now_s + self.needs_s

    def kill(self) -> None:
        self.told.append("kill")
        self.end_s, self.status = self.clock.now_s, -9


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, clock: Clock, ranks: list[Rank], interrupt_s: float = float("inf")
) -> list[Path]:
    waiting = iter(ranks)

    def sleep(while_s: float) -> None:
        Clock.sleep(clock, while_s)
        if clock.now_s >= interrupt_s:
            raise KeyboardInterrupt

    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, stdout, **__: next(waiting) if stdout == 2 else None)
    monkeypatch.setattr(rank_process, "time", SimpleNamespace(sleep=sleep, monotonic=clock.monotonic))
    script = folder / "train.py"
    script.touch()
    return rank_process.run_recorded(script, [], folder, ranks=len(ranks), skip=0, most_steps=1)


def test_all_ranks_are_waited_for_and_one_that_aborts_once_it_has_written_is_none_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    (tmp_path / "0.recording.json").touch()  # of an earlier run
    ranks = [Rank(clock, 0.2, 0), Rank(clock, 0.1, -6, path=tmp_path / "1.recording.json"), Rank(clock, 0.5, 0)]
    paths = run(monkeypatch, tmp_path, clock, ranks)
    assert [path.exists() for path in paths] == [False, True, False]
    assert clock.now_s == pytest.approx(0.5, abs=0.051)
    assert [rank.told for rank in ranks] == [[], [], []]


@pytest.mark.parametrize(("end_s", "last_s"), [(0.2, 0.2), (0.6, 0.6)])
def test_a_rank_that_fails_ends_the_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_s: float, last_s: float
) -> None:
    clock = Clock()
    ranks = [Rank(clock, 0.4, 0), Rank(clock, end_s, 3), Rank(clock, 9e9 if end_s < 0.5 else 0.6, 0)]
    with pytest.raises(errors.InputError, match=r"train\.py: rank 1 ended with status 3, see above; expected"):
        run(monkeypatch, tmp_path, clock, ranks)
    assert clock.now_s == pytest.approx(last_s, abs=0.051)
    assert [rank.told for rank in ranks] == ([["kill"], [], ["kill"]] if end_s < 0.5 else [[], [], []])
    assert all(rank.returncode is not None for rank in ranks)


@pytest.mark.parametrize("has_written", [True, False])
def test_ctrl_c_lets_all_ranks_write_and_waits_20_s_for_all_of_them_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_written: bool
) -> None:
    clock = Clock()
    paths = [tmp_path / f"{rank}.recording.json" for rank in range(3)]
    ranks = [Rank(clock, 9e9, 0, needs_s=needs, path=path) for needs, path in zip((1, 30, 40), paths, strict=True)]
    if has_written:
        ranks[1].needs_s, ranks[2].needs_s = 15, 4
        assert run(monkeypatch, tmp_path, clock, ranks, 0.09) == paths
        said = "ddlsched: interrupted; the steps recorded by now are kept\n"
        told = [["terminate", "waits 20"], ["terminate", "waits 19"], ["terminate"]]
    else:
        with pytest.raises(KeyboardInterrupt):
            run(monkeypatch, tmp_path, clock, ranks, 0.09)
        said = ""
        told = [["terminate", "waits 20"], ["terminate", "waits 19", "kill"], ["terminate", "waits 0", "kill"]]
    assert capsys.readouterr().err == said
    assert [rank.told for rank in ranks] == told


def test_a_script_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: object())
    with pytest.raises(errors.InputError, match=r"no\.py: no such file; expected a training script"):
        rank_process.run_recorded(tmp_path / "no.py", [], tmp_path, ranks=1, skip=0, most_steps=1)


class Recorder:
    """A recorder that notes what is asked of it."""

    when_full: Any = None
    refuses = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def end_at_exit(self) -> None:
        raise AssertionError

    def stop(self) -> None:
        self.told.append("stop")

    def end(self) -> None:
        self.told.append(f"end {self.when_full is None}")
        if self.refuses:
            raise errors.InputError("nothing")


SCRIPT = """
import os, signal, sys
sys.seen.append((__name__, sys.argv, sys.path[0]))
if "full" in sys.argv:
    sys.recorder.when_full()
if "signal" in sys.argv:
    os.kill(os.getpid(), signal.SIGTERM)
if "error" in sys.argv:
    raise KeyError("own")
sys.seen.append("end")
"""


@pytest.mark.parametrize(
    ("word", "rank", "refuses", "told"),
    [
        ("none", "1", False, ["end False", "stop"]),
        ("full", "0", False, ["stop", "barrier", "end True", "stop"]),
        ("full", "alone", False, ["stop", "end True", "stop"]),
        ("signal", "1", False, ["end True", "stop"]),
        ("error", "0", False, ["stop"]),
        ("none", "0", True, ["end False", "stop"]),
    ],
)
def test_a_script_runs_as_if_it_were_started_itself_until_enough_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, rank: str, refuses: bool, told: list[str]
) -> None:
    made, stores, followed = Recorder(), list[Any](), list[int]()
    made.refuses = refuses
    torch, given = ModuleType("torch"), list[Any]()
    torch.distributed = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: rank != "alone",
        barrier=lambda: made.told.append("barrier"),
        TCPStore=lambda *where, **how: stores.append((where, how)),
    )

    def record(folder: str, **numbers: int) -> Recorder:
        given.append((folder, numbers))
        atexit.register(made.end_at_exit)
        return made

    recorder = SimpleNamespace(record=record)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "ddlsched.training.recording.recorder", recorder)  # type: ignore[arg-type]
    monkeypatch.setattr(rank_process, "follow_parent", followed.append)
    monkeypatch.setattr(sys, "seen", [], raising=False)
    monkeypatch.setattr(sys, "recorder", made, raising=False)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    if rank == "alone":
        monkeypatch.delenv(rank_process.PARENT, raising=False)
    else:
        monkeypatch.setenv(rank_process.PARENT, "77")
        monkeypatch.setenv("RANK", rank)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before = signal.getsignal(signal.SIGTERM)
    ends = {"error": pytest.raises(KeyError, match="own")}.get(word, nullcontext())
    ends = pytest.raises(SystemExit, match="error: nothing") if refuses else ends
    try:
        with ends:
            rank_process.main(["folder", "4", "9", str(script), word, "x"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert given == [("folder", {"skip": 4, "most_steps": 9})]
    assert made.told == told
    seen: list[Any] = sys.seen  # type: ignore[attr-defined]
    assert seen == [("__main__", [str(script), word, "x"], str(tmp_path)), *["end"] * (word == "none")]
    assert followed == ([] if rank == "alone" else [77])
    assert len(stores) == (rank == "0")
    for where, how in stores:
        listener = how.pop("master_listen_fd")
        with socket.socket(fileno=listener) as listening:
            assert listening.getsockname()[0] == "127.0.0.1"
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert (where, how) == (("127.0.0.1", 0), {"is_master": True, "wait_for_workers": False, "multi_tenant": True})


def test_variables_of_a_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: Any) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setenv("RANK", "9")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rank_process.run_recorded(script, [], tmp_path, ranks=2, skip=0, most_steps=1)
    for rank, (_, environment) in enumerate(started):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
        own[rank_process.PARENT] = os.getpid()
        assert {name: environment[name] for name in own} == {name: str(value) for name, value in own.items()}
        assert 0 < int(environment["MASTER_PORT"]) < 1 << 16
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    rank_process.run_recorded(script, [], tmp_path, ranks=1, skip=0, most_steps=1)
    assert started[-1][1]["OMP_NUM_THREADS"] == "5"
