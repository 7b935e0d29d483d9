"""Megatron-core itself loads what is written, if it is installed (``pip install megatron-core``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import run
from worlds import GPT, ITERATION, World

from ddlsched.reconfiguration.checkpoint import Checkpoint
from ddlsched.reconfiguration.making import made_tensor
from ddlsched.reconfiguration.megatron_names import megatron_name

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("stacked", [True, False])
def test_megatron_loads_what_has_been_through_another_parallelism(stacked: bool, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    import megatron_jobs
    import processes

    def on_ranks(ranks: int, work: str, tp: int, pp: int, folder: str) -> list[dict[str, str]]:
        task = megatron_jobs.Task(tp, pp, str(tmp_path / folder), stacked)
        return processes.on_ranks(ranks, getattr(megatron_jobs, work), task)

    on_ranks(4, "save", 2, 2, "saved")
    for arguments in (["saved", "ours", "--to", "tp=4,pp=2"], ["ours", "back", "--to", "tp=2", "--format", "megatron"]):
        done = run("reshard", tmp_path / arguments[0], tmp_path / arguments[1], *arguments[2:], "--verify")
        assert done.exit_code == 0, done.stderr
    assert on_ranks(2, "load", 1, 2, "back") == on_ranks(2, "load", 1, 2, "saved")


def test_megatron_loads_a_model_of_ours(world: World, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    import megatron_jobs
    import processes

    made = world.made("for megatron", "tp=2", model=GPT)
    done = run("reshard", made, tmp_path / "new", "--to", "tp=4,pp=2", "--format", "megatron", "--verify")
    assert done.exit_code == 0, done.stderr
    (found,) = processes.on_ranks(1, megatron_jobs.load_gpt, str(tmp_path / "new"))
    tensors = Checkpoint.read(made).collection.tensors
    weights = {megatron_name(tensor): tensor for tensor in tensors if not tensor.name.startswith("optimiser.")}
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        np.testing.assert_array_equal(found[name], made_tensor(tensor, 0, ITERATION))
