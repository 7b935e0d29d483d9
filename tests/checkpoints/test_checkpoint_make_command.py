"""``ddlsched checkpoint make``, and ``reshard`` of PyTorch's checkpoints, as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import run

from ddlsched.checkpoints import checkpoint_command
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.tensors import Cut, CutPart

SMALL = ("--layers", 2, "--hidden", 16, "--heads", 4, "--vocabulary", 50, "--positions", 8)
STORED = Path(__file__).parent / "distributed"


@pytest.mark.long
def test_what_is_made_can_be_resharded(tmp_path: Path) -> None:
    made = run("checkpoint", "make", tmp_path / "a", *SMALL, "--sharding", "zero1", "--json")
    assert made.exit_code == 0
    found = json.loads(made.stdout)
    assert (found["files"], found["parameters"]) == (4, 7520)
    assert found["bytes"] == sum(file.stat().st_size for file in (tmp_path / "a").glob("*.safetensors"))
    assert run("reshard", tmp_path / "a", tmp_path / "b", "--to", "pp=2", "--verify").exit_code == 0
    plain = run("checkpoint", "make", tmp_path / "c", *SMALL, "--parallelism", "tp=2", "--dtype", "f32", "--gated")
    assert plain.stdout.endswith("(tp=2,pp=1,dp=1)\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parallelism", "tp=3"), "do not divide among 3 tensor-parallel ranks"),
        (("--parallelism", "tp=x"), "parameter tp: 'x' is not a whole number"),
        (("--heads", 3), "hidden 16 does not divide by heads 3"),
        (("--dtype", "int8"), "int8"),
        (("--parallelism", "pp=3"), "pp is 3; expected at most the number of layers, 2"),
    ],
)
def test_what_cannot_be_made_ends_with_one_line(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    ended = run("checkpoint", "make", tmp_path / "a", *SMALL, *arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert not (tmp_path / "a" / "checkpoint.json").exists()


@pytest.mark.long
def test_pytorch_checkpoints_are_read_and_written_without_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for number, (source, form) in enumerate([(STORED, "torch"), (tmp_path / "0", "safetensors")]):
        ended = run("reshard", source, tmp_path / str(number), "--to", "tp=2", "--format", form, "--verify")
        assert ended.exit_code == 0, ended.stderr
    assert Checkpoint.read(tmp_path / "1").iteration == 12


def test_a_cut_says_its_parts_where_there_are_several() -> None:
    cuts = [Cut(dim=1, axis="tensor", parts=(CutPart(8),) * count) for count in (1, 2)]
    assert [*map(checkpoint_command._cut, cuts)] == ["dimension 1 over tensor", "dimension 1 over tensor in 2 parts"]
