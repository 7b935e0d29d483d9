"""PyTorch distributed checkpoints, written and read by PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import GPT, START, World

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import parse_parallelism
from ddlsched.checkpoints.distributed_reading import read_distributed
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.making import made_tensor
from ddlsched.checkpoints.resharding import reshard
from ddlsched.errors import InputError

pytestmark = pytest.mark.torch


def torch_state(checkpoint: Checkpoint, contents: bool) -> dict[str, Any]:
    """Return PyTorch's tensors of a checkpoint that was made, or zeros."""
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}
    state = {}
    for tensor in checkpoint.collection.tensors:
        made = np.ascontiguousarray(made_tensor(tensor, 0, checkpoint.iteration)).reshape(-1).view(np.uint8)
        value = torch.from_numpy(made).view(dtypes[tensor.dtype]).reshape(tensor.shape)
        state[tensor.name] = value if contents else torch.zeros_like(value)
    return state


def assert_same_files(one: Path, other: Path) -> None:
    names = Checkpoint.read(one).files
    assert names == Checkpoint.read(other).files
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize(("sharding", "to"), [("none", "tp=4,pp=2"), ("zero1", "tp=2,dp=4"), ("zero1", "tp=1")])
def test_pytorch_loads_what_is_written_and_all_comes_back(world: World, sharding: str, to: str, tmp_path: Path) -> None:
    import torch
    from torch.distributed import checkpoint as dcp

    made = world.made(f"dcp {sharding} {to}", sharding=sharding, dtype="BF16")
    reshard(made, tmp_path / "written", to=parse_parallelism(to), form=TORCH_FILES, verify=True)
    checkpoint = Checkpoint.read(made)
    loaded, expected = torch_state(checkpoint, contents=False), torch_state(checkpoint, contents=True)
    dcp.load(loaded, checkpoint_id=tmp_path / "written", no_dist=True)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    reshard(read_distributed(tmp_path / "written"), tmp_path / "back", to=parse_parallelism(START), verify=True)
    assert_same_files(tmp_path / "back", made)
    back = Checkpoint.read(tmp_path / "back")
    assert (back.iteration, back.dataset, back.random) == (checkpoint.iteration, checkpoint.dataset, checkpoint.random)


def test_what_processes_of_pytorch_have_written_is_resharded(world: World, tmp_path: Path) -> None:
    """Two processes hold matrices as DTensors cut by rows or by columns."""
    from processes import on_ranks

    like = world.made("like", "tp=4", dtype="BF16")
    on_ranks(2, save_with_pytorch, {"like": like, "to": tmp_path / "saved"})
    reshard(read_distributed(tmp_path / "saved", like), tmp_path / "new", to=parse_parallelism("tp=4"), verify=True)
    assert_same_files(tmp_path / "new", like)


def save_with_pytorch(_rank: int, task: dict[str, Path]) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    state = torch_state(Checkpoint.read(task["like"]), contents=True)
    for number, (name, value) in enumerate(state.items()):
        if value.dim() == 2:
            state[name] = distribute_tensor(value, mesh, [Shard(number % 2)])
    dcp.save(state, checkpoint_id=task["to"])


def test_a_folder_is_whole_or_not_there(world: World, tmp_path: Path) -> None:
    made, to = world.made("torn", "tp=2", model=GPT), parse_parallelism("tp=2")
    content = (made / "rank_00001.safetensors").read_bytes()
    (made / "rank_00001.safetensors").write_bytes(content[:-4] + b"xxxx")
    with pytest.raises(InputError, match=r"tensor optimiser\.step differs from its replica"):
        reshard(made, tmp_path / "written", to=to, form=TORCH_FILES, verify=True)
    (made / "rank_00001.safetensors").write_bytes(content[:-4])
    with pytest.raises(InputError, match="truncated"):
        reshard(made, tmp_path / "written", to=to, form=TORCH_FILES)
    assert list(tmp_path.iterdir()) == []
