"""PyTorch distributed checkpoints, read without PyTorch.

``distributed/`` was written by two processes of PyTorch 2.13: a matrix cut by rows, the same cut by columns, its
transpose, a bfloat16 vector and a whole number.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlsched.checkpoints.arrays import whole_tensor, write_checkpoint
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.distributed_reading import (
    divided_as_stored,
    is_distributed,
    read_distributed,
    read_metadata,
)
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import Replicas
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensors import Cut, Tensor, dense_layout
from ddlsched.errors import InputError

STORED = Path(__file__).parent / "distributed"
MATRIX = np.arange(30, dtype="<f4").reshape(5, 6)
CONTENTS = {
    "rows": MATRIX,
    "columns": MATRIX,
    "turned": MATRIX.T,
    "half": (np.arange(7, dtype="<f4").view("<u4") >> 16).astype("<u2"),
    "optimiser.step": np.array(12, "<i8"),
}


def tensor(name: str, shape: tuple[int, ...], dtype: str = "F32", cut: int = 0) -> Tensor:
    return Tensor(name=name, shape=shape, dtype=dtype, cuts=(Cut(dim=cut),))


TENSORS = (
    tensor("rows", (5, 6), cut=1),
    tensor("columns", (5, 6), cut=1),
    tensor("turned", (6, 5)),
    Tensor(name="half", shape=(7,), dtype="BF16"),
    Tensor(name="optimiser.step", shape=(), dtype="I64"),
)


@pytest.fixture
def like(tmp_path: Path) -> Path:
    """Return a checkpoint whose description tells how such tensors are divided; its contents are others."""
    checkpoint = Checkpoint(collection=TensorCollection(tensors=TENSORS, parallelism=StoredParallelism()), iteration=99)
    write_checkpoint(tmp_path / "like", checkpoint, {name: np.zeros_like(whole) for name, whole in CONTENTS.items()})
    return tmp_path / "like"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(STORED, tmp_path / "copy")
    return tmp_path / "copy"


def test_chunks_of_any_layout_become_a_checkpoint(like: Path, tmp_path: Path) -> None:
    reshard(read_distributed(STORED, like), tmp_path / "new", to=StoredParallelism(tp=2, dp=2), verify=True)
    new = Checkpoint.read(tmp_path / "new")
    for name, expected in CONTENTS.items():
        np.testing.assert_array_equal(whole_tensor(new, location_of(tmp_path / "new"), name), expected)
    assert new.iteration == 12
    assert new.collection.arrays[1]["turned"].shape == (3, 5)


def test_what_is_a_distributed_checkpoint(like: Path) -> None:
    assert is_distributed(STORED)
    assert is_distributed(f"file://{STORED}")
    assert not is_distributed(like)


def test_from_another_file_system(like: Path, tmp_path: Path) -> None:
    reshard(read_distributed(f"file://{STORED}", like), tmp_path / "new", to=StoredParallelism(tp=3), verify=True)
    new = Checkpoint.read(tmp_path / "new")
    np.testing.assert_array_equal(whole_tensor(new, location_of(tmp_path / "new"), "turned"), MATRIX.T)


class Runs:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


def test_nothing_in_the_directory_is_run(copy: Path, like: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy)
    (copy / ".metadata").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(InputError, match=r"\.metadata: cannot be read \((posix|nt)\.system is no part of the format\)"):
        read_distributed(copy, like)
    assert not (copy / "harmed").exists()


def test_damaged_directories_are_refused(copy: Path, like: Path) -> None:
    whole = (copy / ".metadata").read_bytes()
    for content in (b"", whole[:500], whole[:-1], pickle.dumps(5), pickle.dumps({"a": 1})):
        (copy / ".metadata").write_bytes(content)
        with pytest.raises(InputError, match=r"\.metadata: "):
            read_distributed(copy, like)
    (copy / ".metadata").write_bytes(whole)
    file = copy / "__1_0.distcp"
    chunks = file.read_bytes()
    file.write_bytes(chunks[:-10])
    with pytest.raises(
        InputError, match=r"__1_0\.distcp: tensor \S+: bytes \d+ to \d+ of a file of \d+: the file is trun"
    ):
        read_distributed(copy, like)
    file.write_bytes(bytes(len(chunks)))
    with pytest.raises(InputError, match=r"__1_0\.distcp: tensor \S+ at \[[\d, ]*\]: is no archive of a tensor"):
        read_distributed(copy, like)
    file.unlink()
    with pytest.raises(InputError, match=r"__1_0\.distcp: cannot be read"):
        read_distributed(copy, like)


def test_a_file_outside_the_directory_is_refused(copy: Path, like: Path) -> None:
    content = (copy / ".metadata").read_bytes()
    (copy / ".metadata").write_bytes(content.replace(b"__1_0.distcp", b"../_0.distcp"))
    with pytest.raises(InputError, match=r"'\.\./_0\.distcp' leaves the directory"):
        read_distributed(copy, like)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (TENSORS[1:], "tensor rows is in no description"),
        ((*TENSORS, tensor("more", (2,))), r"tensor more is missing; expected F32 \[2\]"),
        ((tensor("rows", (5, 7)), *TENSORS[1:]), r"tensor rows is F32 \[5, 6\]; expected F32 \[5, 7\]"),
        ((tensor("rows", (5, 6), "F16"), *TENSORS[1:]), r"tensor rows is F32 \[5, 6\]; expected F16"),
    ],
)
def test_tensors_that_differ_from_the_description_are_refused(
    change: tuple[Tensor, ...], message: str, like: Path
) -> None:
    Checkpoint(collection=TensorCollection(tensors=change, parallelism=StoredParallelism())).write_description(like)
    with pytest.raises(InputError, match=message):
        read_distributed(STORED, like)


def test_of_several_tensors_in_no_description_the_first_is_named(like: Path) -> None:
    Checkpoint(
        collection=TensorCollection(tensors=TENSORS[2:3], parallelism=StoredParallelism())
    ).write_description(like)  # fmt: skip
    with pytest.raises(InputError) as raised:
        read_distributed(STORED, like)
    text = "tensor columns is in no description; expected those described and no other"
    assert str(raised.value) == f"{STORED}/.metadata: {text}"


def test_of_another_checkpoint_the_model_is_taken_and_no_contents(like: Path) -> None:
    known = Checkpoint(
        collection=TensorCollection(tensors=TENSORS, parallelism=StoredParallelism(dp=2)), iteration=99, model={"m": 1},
        dataset={"d": 1}, random={"r": 1}, sha256={"rows": "1"}, xxh3={"rows": "2"}, paths={"rows": ("p",)},
    )  # fmt: skip
    known.write_description(like)
    found = read_distributed(STORED, like).described
    assert (found.collection, found.iteration, found.model) == (known.collection, 12, {"m": 1})
    assert (found.dataset, found.random, found.sha256, found.xxh3) == ({}, {}, {}, {})
    assert found.paths == read_metadata(location_of(STORED)).paths != known.paths


@pytest.mark.parametrize(("described", "counted"), [(5, 5), (0, 12)])
def test_its_own_description_says_the_iteration_and_else_the_optimiser(
    copy: Path, described: int, counted: int
) -> None:
    job = TensorCollection(tensors=TENSORS, parallelism=StoredParallelism())
    known = Checkpoint(collection=job, iteration=described, dataset={"d": 1}, xxh3={"rows": "2"})
    (copy / "ddlsched.json").write_text(known.text())
    found = read_distributed(copy).described
    assert (found.iteration, found.dataset, found.xxh3) == (counted, {"d": 1}, {"rows": "2"})


def test_bytes_are_not_divided_whatever_their_name() -> None:
    """A vector of such a name would be."""
    name, layout = "h.1.q_proj.bias", dense_layout((6,), (), ())
    for kind, dims in (("values", [0]), ("object", []), ("file", [])):
        tensor = Tensor(name=name, shape=(6,), dtype="U8", kind=kind)
        (found,) = divided_as_stored([(tensor, [Replicas(layout, ())])]).tensors
        assert [cut.dim for cut in found.cuts] == dims


def test_without_a_description_tensors_are_divided_as_they_lie_there(tmp_path: Path) -> None:
    reading = read_distributed(STORED)
    job = reading.described.collection
    assert (job.parallelism, reading.checkpoint.iteration) == (StoredParallelism(tp=2), 12)
    assert {tensor.name: [cut.dim for cut in tensor.cuts] for tensor in job.tensors} == {
        "rows": [0], "columns": [1], "turned": [], "half": [], "optimiser.step": [],
    }  # fmt: skip
    reshard(reading, tmp_path / "new", to=StoredParallelism(tp=4, dp=2), verify=True)
    new = Checkpoint.read(tmp_path / "new")
    for name, expected in CONTENTS.items():
        np.testing.assert_array_equal(whole_tensor(new, location_of(tmp_path / "new"), name), expected)


def test_the_elements_are_found_in_place() -> None:
    place = location_of(STORED)
    stored = read_metadata(place).tensors
    assert {name: (item.dtype, item.shape) for name, item in stored.items()} == {
        item.name: (item.dtype, item.shape) for item in TENSORS
    }
    assert len(stored["rows"].chunks) == 2
