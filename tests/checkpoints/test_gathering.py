"""Rows that lie apart: read once, written from where they were read."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest
from small_jobs import stored

from ddlsched.checkpoints import gathering, partial_folder
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import content_hashes
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensors import Cut, Tensor
from ddlsched.errors import InputError


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, 3), (3, 2), (4, 1)])
def test_long_rows_are_read_once_for_all_new_ranks_and_never_need_numpy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    wide = Tensor(name="wide", shape=(3000, 1536), dtype="F32", cuts=(Cut(dim=1),))
    stored(folder / "a", TensorCollection(tensors=(wide,), parallelism=StoredParallelism(tp=before)))
    expected = content_hashes(Reading.at(folder / "a"))
    read: list[int] = []
    preadv = os.preadv

    def counted(descriptor: int, parts: list[memoryview], offset: int) -> int:
        read.append(sum(map(len, parts)))
        return preadv(descriptor, parts, offset)

    with monkeypatch.context() as patched:
        patched.setattr(gathering.os, "preadv", counted)
        patched.setattr(gathering, "_gather", None)
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=after))
    assert sum(read) == wide.num_bytes
    assert content_hashes(Reading.at(folder / "b")) == expected


def test_a_write_that_the_system_cuts_short_is_gone_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Tensor(name="wide", shape=(300, 1536), dtype="F32", cuts=(Cut(dim=1),))
    stored(folder / "a", TensorCollection(tensors=(wide,), parallelism=StoredParallelism(tp=2)))
    expected = content_hashes(Reading.at(folder / "a"))
    pwrite = os.pwrite
    monkeypatch.setattr(partial_folder.os, "pwritev", lambda to, parts, at: pwrite(to, b"".join(parts)[:1001], at))
    monkeypatch.setattr(partial_folder.os, "pwrite", lambda to, data, at: pwrite(to, data[:7777], at))
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=3))
    assert content_hashes(Reading.at(folder / "b")) == expected


def test_a_file_system_that_cannot_allocate_is_written_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            ctypes.set_errno(errno.EOPNOTSUPP)

        def fallocate64(self, *_: object) -> int:
            asked.append(True)
            return -1

    wide = Tensor(name="wide", shape=(30, 12), dtype="F32", cuts=(Cut(dim=1),))
    stored(folder / "a", TensorCollection(tensors=(wide,), parallelism=StoredParallelism(tp=2)))
    expected = content_hashes(Reading.at(folder / "a"))
    monkeypatch.setattr(ctypes, "CDLL", Refusing)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=3), verify=True)
    assert len(asked) == 3
    assert content_hashes(Reading.at(folder / "b")) == expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_too_full_is_refused_before_anything_is_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    class Full:
        def __init__(self, *_: object, **__: object) -> None:
            ctypes.set_errno(code)

        def fallocate64(self, *_: object) -> int:
            return -1

    wide = Tensor(name="wide", shape=(30, 12), dtype="F32", cuts=(Cut(dim=1),))
    stored(folder / "a", TensorCollection(tensors=(wide,), parallelism=StoredParallelism(tp=2)))
    monkeypatch.setattr(ctypes, "CDLL", Full)
    monkeypatch.setattr(partial_folder.os, "pwritev", None)
    with pytest.raises(InputError, match=r"rank_00000.*no space left"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=3))
