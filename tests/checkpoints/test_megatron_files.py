"""Megatron-core's distributed checkpoints, read and written without it.

``megatron/`` was written by Megatron-core 0.16.1 on 4 ranks (tp=2, pp=2): a Llama-like model of two layers, stacked.
"""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from small_jobs import GPT, LLAMA, read_whole, stored

from ddlsched.checkpoints.arrays import whole_tensor
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import content_hashes
from ddlsched.checkpoints.distributed_reading import read_distributed, read_metadata
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.megatron import read_megatron
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.checkpoints.translation import megatron_name
from ddlsched.errors import InputError

STORED = Path(__file__).parent / "megatron"
FIRST = "decoder.layers.mlp.linear_fc1.weight"


def test_layers_are_tensors_of_their_own_divided_as_they_were() -> None:
    job = read_megatron(STORED).job
    assert job.parallelism == StoredParallelism(tp=2)
    first = job.by_name["decoder.layers.1.mlp.linear_fc1.weight"]
    assert (first.shape, first.places) == ((12, 4), (1,))
    assert [(cut.dim, cut.axis, [part.size for part in cut.parts]) for cut in first.cuts] == [(0, "tensor", [6, 6])]
    assert [cut.dim for cut in job.by_name["decoder.layers.0.self_attention.linear_proj.weight"].cuts] == [1]
    assert job.by_name["output_layer.weight"].places == ("last",)
    assert sum(tensor.kind == "object" for tensor in job.tensors) == 8


@pytest.mark.long
def test_all_comes_back_through_another_parallelism(tmp_path: Path) -> None:
    for source, name, *more in [
        (STORED, "ours", "--to", "tp=3,pp=2"),
        (tmp_path / "ours", "back", "--to", "tp=2,pp=2", "--format", "megatron"),
    ]:
        done = run("reshard", source, tmp_path / name, *more, "--verify")
        assert done.exit_code == 0, done.stderr
    before, after = read_distributed(STORED), read_distributed(tmp_path / "back")
    assert content_hashes(after) == content_hashes(before)
    assert read_metadata(after.place).tensors[FIRST].shape == (2, 12, 4)
    for file in ("common.pt", "metadata.json"):
        assert (tmp_path / "back" / file).read_bytes() == (STORED / file).read_bytes()


@pytest.mark.long
def test_ranks_hold_layers_of_their_stage(tmp_path: Path) -> None:
    reshard(read_megatron(STORED), tmp_path / "ours", to=StoredParallelism(tp=2, pp=2), verify=True)
    new = Checkpoint.read(tmp_path / "ours")
    assert [f"decoder.layers.{layer}.mlp.linear_fc2.weight" in new.collection.arrays[3] for layer in range(2)] == [
        False,
        True,
    ]
    reading = read_distributed(STORED)
    held = {tensor.name: parts for tensor, parts in reading.held() if tensor.name == FIRST}
    layer = whole_tensor(new, location_of(tmp_path / "ours"), FIRST.replace("layers", "layers.1"))
    for part in held[FIRST]:
        (piece,) = part.layout.pieces
        if piece.start[0] == 1:
            rows = slice(piece.start[1], piece.start[1] + piece.extent[1])
            np.testing.assert_array_equal(part.sources[0].view(piece)[0], layer[rows])


def test_files_that_a_source_lacks_are_made(tmp_path: Path) -> None:
    source = Path(__file__).parent / "fsdp2"
    done = run("reshard", source, tmp_path / "new", "--format", "megatron", "--verify")
    assert done.exit_code == 0, done.stderr
    found = json.loads((tmp_path / "new" / "metadata.json").read_text())
    assert (found["sharded_backend"], found["common_backend"]) == ("torch_dist", "torch")
    assert (found["sharded_backend_version"], found["common_backend_version"]) == (1, 1)
    with zipfile.ZipFile(tmp_path / "new" / "common.pt") as archive:
        assert pickle.loads(archive.read("archive/data.pkl")) == {"iteration": 1, "checkpoint_version": 3.0}


def test_stacks_of_different_depths_are_refused(tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "copy")
    metadata = tmp_path / "copy" / ".metadata"
    norm = b"decoder.final_layernorm.weight"
    metadata.write_bytes(metadata.read_bytes().replace(norm, b"decoder.layers.layernorm_weigh"))
    with pytest.raises(InputError, match=r"have \d and \d layers; expected as many in all"):
        read_megatron(tmp_path / "copy")


@pytest.mark.long
def test_our_models_get_the_names_of_megatron(tmp_path: Path) -> None:
    job = TensorCollection(
        tensors=job_tensors(GPT, dtype="BF16", optimiser=Optimiser(sharding="zero1")),
        parallelism=StoredParallelism(tp=2, dp=2),
    )
    wholes = stored(tmp_path / "ours", job)
    done = run("reshard", tmp_path / "ours", tmp_path / "new", "--to", "tp=4", "--format", "megatron", "--verify")
    assert done.exit_code == 0, done.stderr
    names = set(read_distributed(tmp_path / "new").job.by_name)
    layer = "decoder.layers.3"
    assert {
        "embedding.word_embeddings.weight", "embedding.position_embeddings.weight", "decoder.final_layernorm.bias",
        f"{layer}.self_attention.linear_qkv.layer_norm_weight", f"{layer}.self_attention.linear_qkv.bias",
        f"{layer}.self_attention.linear_proj.weight", f"{layer}.mlp.linear_fc1.layer_norm_bias",
        f"{layer}.mlp.linear_fc1.weight", f"optimizer.state.exp_avg_sq.{layer}.mlp.linear_fc2.weight",
        f"optimizer.state.fp32_param.{layer}.mlp.linear_fc2.bias", "optimiser.step",
    } <= names  # fmt: skip
    assert len(names - {"common.pt", "metadata.json"}) == len(wholes)
    reshard(read_megatron(tmp_path / "new"), tmp_path / "back", to=StoredParallelism(), verify=True)
    back = read_whole(tmp_path / "back")
    for tensor in job.tensors:
        np.testing.assert_array_equal(back[megatron_name(tensor)], wholes[tensor.name])


def test_queries_that_lie_apart_are_no_megatron_layout(tmp_path: Path) -> None:
    stored(
        tmp_path / "ours", TensorCollection(tensors=job_tensors(LLAMA, dtype="F32"), parallelism=StoredParallelism())
    )
    done = run("reshard", tmp_path / "ours", tmp_path / "new", "--to", "tp=2", "--format", "megatron")
    assert done.exit_code == 2
    assert "layers.0.attention.qkv.weight: queries, keys and values lie one behind the other" in done.stderr
