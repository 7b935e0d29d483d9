"""Checkpoints with optimiser state that PyTorch's FSDP2 writes, taken through a change and loaded by PyTorch again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import parse_parallelism
from ddlsched.checkpoints.distributed_reading import read_distributed
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.resharding import reshard

pytestmark = pytest.mark.torch


def on_ranks(work: str, kind: str, folder: Path, *, flat: bool = False) -> list[dict[str, str]]:
    """Return what each rank of a job saved or loaded."""
    import processes
    import pytorch_jobs

    task = pytorch_jobs.Task(kind, str(folder), flat)
    return processes.on_ranks(pytorch_jobs.KINDS[kind], getattr(pytorch_jobs, work), task)


DEGREES = {"fsdp2": "tp=1,dp=2", "hsdp": "tp=1,dp=2", "tp x fsdp2": "tp=2,dp=2", "tp": "tp=2,dp=1"}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("writer", "through", "reader"),
    [
        ("fsdp2", "tp=2,pp=3,dp=2", "tp x fsdp2"),
        ("hsdp", "tp=3", "fsdp2"),
        ("tp x fsdp2", "dp=4", "hsdp"),
        ("tp", "tp=4,dp=2", "fsdp2"),
    ],
)
def test_what_pytorch_saves_comes_back_to_pytorch(
    writer: str, through: str, reader: str, flat: bool, tmp_path: Path
) -> None:
    saved = on_ranks("save", writer, tmp_path / "saved", flat=flat)
    reading = read_distributed(tmp_path / "saved")
    assert parse_parallelism(DEGREES[writer]) == reading.described.collection.parallelism
    reshard(reading, tmp_path / "ours", to=parse_parallelism(through), verify=True)
    assert Checkpoint.read(tmp_path / "ours").iteration == 2
    reshard(tmp_path / "ours", tmp_path / "back", to=parse_parallelism("tp=2,dp=2"), form=TORCH_FILES, verify=True)
    loaded = on_ranks("load", reader, tmp_path / "back", flat=flat)
    assert all(found == saved[0] for found in (*saved, *loaded))
    assert any(name.endswith("exp_avg_sq") for name in saved[0])


def test_directly_from_pytorch_to_pytorch(tmp_path: Path) -> None:
    saved = on_ranks("save", "tp x fsdp2", tmp_path / "saved")
    reshard(
        read_distributed(tmp_path / "saved"),
        tmp_path / "new",
        to=parse_parallelism("dp=2"),
        form=TORCH_FILES,
        verify=True,
    )
    assert on_ranks("load", "fsdp2", tmp_path / "new")[0] == saved[0]
