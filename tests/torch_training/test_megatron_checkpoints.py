"""Megatron-core itself loads what is written, if it is installed (``pip install megatron-core``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import run
from worlds import GPT, ITERATION, World

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.making import made_tensor
from ddlsched.checkpoints.translation import megatron_name

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


def test_megatron_computes_with_a_llama_of_transformers_what_transformers_does(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    transformers = pytest.importorskip("transformers")
    import megatron_jobs
    import processes
    import torch

    torch.manual_seed(0)
    llama = megatron_jobs.Llama(str(tmp_path / "megatron"), 3, 48, 80, 6, 2, 96)
    sizes = {"num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 80, "vocab_size": 96}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=6, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "saved")
    for source, target, *flags in (
        ("saved", "megatron", "--to", "tp=2", "--format", "megatron"),
        ("megatron", "back", "--format", "huggingface"),
    ):
        done = run("reshard", tmp_path / source, tmp_path / target, *flags, "--verify")
        assert done.exit_code == 0, done.stderr
    (found,) = processes.on_ranks(1, megatron_jobs.logits, llama)
    with torch.no_grad():
        expected = model(torch.arange(20)[None] * 7 % 96).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], value) for name, value in model.state_dict().items())
