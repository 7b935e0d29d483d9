"""Which stage holds which layer, through a change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from small_jobs import GPT, assert_holds, stored

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.tensor_models import job_tensors

MAP = (0, 1, 1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    job = TensorCollection(tensors=job_tensors(GPT, dtype="F32"), parallelism=StoredParallelism(pp=2), stages=MAP)
    wholes = stored(tmp_path / "a", job)
    assert_holds(tmp_path / "a", wholes)
    return tmp_path


def stages_of(folder: Path, *arguments: str) -> tuple[int, ...]:
    ended = run("reshard", folder / "a", folder / "b", *arguments)
    assert ended.exit_code == 0, ended.stderr
    return Checkpoint.read(folder / "b").collection.stages


def test_a_custom_map_survives_while_the_number_of_stages_does(folder: Path) -> None:
    assert stages_of(folder, "--to", "tp=2,pp=2") == MAP


@pytest.mark.long
def test_another_number_of_stages_makes_it_even(folder: Path) -> None:
    assert stages_of(folder, "--to", "pp=4") == (0, 1, 2, 3)


@pytest.mark.long
def test_it_survives_other_formats(folder: Path) -> None:
    assert run("reshard", folder / "a", folder / "t", "--to", "tp=2,pp=2", "--format", "torch").exit_code == 0
    (folder / "a").rename(folder / "old")
    (folder / "t").rename(folder / "a")
    assert stages_of(folder, "--to", "tp=4,pp=2") == MAP


def test_it_can_be_given(folder: Path) -> None:
    assert stages_of(folder, "--to", "pp=3", "--stages", "0,2,1,0") == (0, 2, 1, 0)
    described = json.loads((folder / "b" / "checkpoint.json").read_text())
    assert described["stages"] == [0, 2, 1, 0]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("0,1,1", "the stage map has 3 layers; expected the model's 4"),
        ("0,1,1,1,1", "the stage map has 5 layers; expected the model's 4"),
        ("0,1,1,2", "the stage map has stage 2; expected stages from 0 to 1"),
        ("0,1,x,1", "--stages 0,1,x,1: 'x' is no number"),
    ],
)
def test_maps_that_do_not_fit_are_refused(stages: str, message: str, folder: Path) -> None:
    ended = run("reshard", folder / "a", folder / "b", "--to", "pp=2", "--stages", stages)
    assert ended.exit_code == 2
    assert message in ended.stderr
