"""Hashes of contents: of what is read, in which order it is told, and what is said of what differs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_jobs import stored

from ddlsched.checkpoints import content
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import content_hashes, refuse_other_content
from ddlsched.checkpoints.gathering import GATHERED_BYTES, ThreadBuffers
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.tensors import Cut, Tensor
from ddlsched.errors import FaultyInputError, InputError

TENSORS = (
    Tensor(name="small", shape=(3,), dtype="U8"),
    Tensor(name="large", shape=(4, 6), dtype="F32", cuts=(Cut(dim=1),)),
    Tensor(name="none", shape=(0, 2), dtype="F64"),
    Tensor(name="scalar", shape=(), dtype="I64"),
)
JOB = TensorCollection(tensors=TENSORS, parallelism=StoredParallelism(tp=2))


def test_hashes_are_of_the_whole_in_row_major_order_the_longest_first(folder: Path) -> None:
    wholes, seen = stored(folder / "a", JOB), list[Any]()
    found = content_hashes(Reading.at(folder / "a"), watch=lambda *told: seen.append(told))
    assert list(found) == [tensor.name for tensor in TENSORS]
    assert found == {name: hashlib.sha256(whole.tobytes()).hexdigest() for name, whole in wholes.items()}
    assert seen == [("hashing", done, 107) for done in (96, 104, 107, 107)]


def test_as_many_threads_as_processors_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", {0: {3, 5, 7}}.__getitem__)
    with content.as_many_threads_as_processors() as pool:
        assert pool._max_workers == 3


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_file_of_which_nothing_is_read_is_looked_at_all_the_same(folder: Path, rank: int) -> None:
    """Only the first rank has a row."""
    one_row = Tensor(name="w", shape=(1, 2), dtype="U8", cuts=(Cut(dim=0, uneven=True),))
    stored(folder / "a", TensorCollection(tensors=(one_row,), parallelism=StoredParallelism(tp=3)))
    content_hashes(Reading.at(folder / "a"))
    (folder / "a" / f"rank_0000{rank}.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError, match=rf"rank_0000{rank}\.safetensors: is truncated or no safetensors file"):
        content_hashes(Reading.at(folder / "a"))


def test_a_part_that_is_nowhere_is_said(folder: Path) -> None:
    stored(folder / "a", JOB)
    with pytest.raises(InputError, match=r"^tensor large: no replica of a part of it is left; expected one at least$"):
        content_hashes(Reading.at(folder / "a", lost=[1]))


def flipped(folder: Path, rank: int, name: str, job: TensorCollection) -> None:
    """Change a tensor's last byte in a rank's file."""
    entry = Reading.at(folder).source(rank, name).entry
    path = folder / Checkpoint(collection=job).files[rank]
    data = bytearray(path.read_bytes())
    data[entry.begin + entry.num_bytes - 1] ^= 1
    path.write_bytes(data)


def test_what_differs_is_named_with_its_files(folder: Path) -> None:
    job = JOB.resized(StoredParallelism(tp=2, dp=2))
    stored(folder / "a", job)
    reading = Reading.at(folder / "a")
    right = content_hashes(reading)
    refuse_other_content(reading, right)
    expected = right | {"large": "1" * 64, "small": "2" * 64, "odd": "3" * 64}
    flipped(folder / "a", 3, "large", job)
    flipped(folder / "a", 2, "small", job)
    with pytest.raises(FaultyInputError) as raised:
        refuse_other_content(Reading.at(folder / "a"), expected)
    own = folder / "a" / "rank_0000"
    assert str(raised.value).splitlines() == [
        f"{own}0.safetensors: tensor small has content hash {right['small'][:12]}; expected {'2' * 12}: "
        "its contents are not those that were saved",
        f"{own}0.safetensors and 1 more: tensor large has content hash {right['large'][:12]}; expected {'1' * 12}: "
        "its contents are not those that were saved",
        f"{folder / 'a'}: tensor odd has a content hash, but is not there; expected it",
        f"{own}2.safetensors: tensor small differs from its replica in rank_00000.safetensors; "
        "expected the same contents",
        f"{own}3.safetensors: tensor large differs from its replica in rank_00001.safetensors; "
        "expected the same contents",
    ]


def test_a_part_that_lies_once_is_not_read_to_be_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, job in (("once", JOB), ("twice", JOB.resized(StoredParallelism(tp=2, dp=2)))):
        stored(folder / name, job)
        read: list[str] = []
        monkeypatch.setattr(content, "_part_hash", lambda tensor, *_, read=read: read.append(tensor.name) or "")
        reading, buffers = Reading.at(folder / name), ThreadBuffers(GATHERED_BYTES)
        large = reading.checkpoint.collection.by_name["large"]
        assert content.divergences(large, reading.replicas(large), buffers) == []
        assert len(read) == (0 if name == "once" else 4)


def test_padding_may_differ_between_replicas(folder: Path) -> None:
    padded = Tensor(name="w", shape=(3, 2), dtype="U8", cuts=(Cut(dim=0, pad_multiple=2),))
    job = TensorCollection(tensors=(padded,), parallelism=StoredParallelism(tp=2, dp=2))
    wholes = stored(folder / "a", job)
    flipped(folder / "a", 3, "w", job)  # The second part is a row, then padding.
    expected = {"w": hashlib.sha256(np.ascontiguousarray(wholes["w"])).hexdigest()}
    refuse_other_content(Reading.at(folder / "a"), expected)
