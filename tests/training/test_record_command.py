"""``ddlsched record``: what is refused before anything is run; tests/training/recording trains for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused, run

from ddlsched import errors


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("--out job.csv train.py", "the suffix is '.csv'; expected .json"),
        ("--out job.json --ranks 1 train.py", "--ranks 1: expected a whole number from 2"),
        ("--out job.json --steps 0 train.py", "--steps 0: expected a whole number from 1"),
        ("--out job.json --skip 0 train.py", "--skip 0: expected a whole number from 1"),
        ("--out job.json --gbps 0 train.py", "gbps is 0.0; expected a number > 0"),
        ("--out job.json --iterations 0 train.py", "iterations is 0; expected a whole number from 1"),
        ("--out job.json --gpu-memory-mb -1 train.py", "gpu_memory_mb is -1.0; expected"),
        ("--out job.json --chart train.py/chart train.py", "train.py: cannot be used (File exists); expected a folder"),
        ("--out job.json --keep train.py train.py", "train.py: cannot be used (File exists); expected a folder"),
        ("--out job.json none.py", "none.py: no such file; expected a training script"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch, arguments: str, part: str) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: name)
    refused(run("record", *arguments.split()), part)


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    refused(run("record", "--out", "job.json", "train.py"), "record needs torch; expected: pip install")
