"""How the ranks of a recorded script are started; what they record is tested with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
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
