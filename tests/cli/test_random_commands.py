"""Random commands end by themselves, without our traceback: ``python tests/random_commands.py`` runs 5,000."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import random_commands
from random_commands import commands, failures


def faults(asked: list[list[str]], folder: Path) -> list[str]:
    return [f"{shlex.join(found.command)}: {found.why}" for found in failures(asked, folder) if found]


@pytest.mark.slow
def test_items_15_and_17_no_random_command_ends_in_our_traceback(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    assert faults(commands(int(os.environ.get("FUZZ") or 1), 300, []), tmp_path / "inside") == []


def test_the_same_seed_draws_the_same_commands_and_most_are_known() -> None:
    assert commands(3, 50, []) == commands(3, 50, [])
    assert commands(3, 50, []) != commands(4, 50, [])
    assert {words[0] for words in commands(1, 200, ["simulate", "estimate"])} == {"simulate", "estimate"}


@pytest.mark.long
def test_a_traceback_a_hang_and_a_death_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def main(command: list[str], **_: object) -> None:
        {"raise": lambda: 1 // 0, "hang": lambda: __import__("time").sleep(60), "die": lambda: os._exit(9)}.get(
            command[0], lambda: exit(0)
        )()

    monkeypatch.setattr(random_commands.COMMAND, "main", main)
    monkeypatch.setattr(random_commands, "MOST_S", 2.0)
    found = faults([["fine"], ["raise"], ["hang"], ["die"], ["fine"]], tmp_path)
    assert [fault.partition(":")[0] for fault in found] == ["raise", "hang", "die"]
    assert "ZeroDivisionError" in found[0]
    assert "did not end in 2 s" in found[1]
    assert "ended with 9" in found[2]
