"""Samples in files, and what ranks read of them."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.checkpoints.dataset_files import Samples, TarShards, TokenFiles
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.dataset_views import RankBatches, RankFileSystem
from ddlsched.errors import InputError


def tokens_at(folder: Path, *counts: int, dtype: str = "uint16") -> list[str]:
    """Write files of tokens 0, 1, 2, ..., over all files."""
    first, files = 0, []
    for number, count in enumerate(counts):
        path = folder / f"tokens_{number}.bin"
        path.write_bytes(np.arange(first, first + count).astype(dtype).tobytes())
        first, files = first + count, [*files, str(path)]
    return files


def shards_at(folder: Path, *counts: int) -> list[str]:
    """Write tar shards with so many samples, each of a text and a class; names of some need extended headers."""
    files, number = [], 0
    for shard, count in enumerate(counts):
        path = folder / f"shard-{shard}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            for _ in range(count):
                stem = f"train/{number:04d}" + ("é" + "x" * 120 if number % 3 == 0 else "")
                add(archive, f"{stem}.txt", b"text %d " % number * (number % 200))
                add(archive, f"{stem}.cls", b"%d" % number)
                number += 1
        files.append(str(path))
    return files


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def state_of(samples: Samples, **fields: int) -> DatasetState:
    return DatasetState(num_samples=len(samples), samples_hash=samples.samples_hash, **fields)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFiles:
    return TokenFiles(tokens_at(tmp_path_factory.mktemp("tokens"), 101, 3, 57, 0), sequence_tokens=4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TarShards:
    return TarShards(shards_at(tmp_path_factory.mktemp("shards"), 7, 1, 5))


def test_sequences_overlap_by_one_token_and_end_with_their_file(tokens: TokenFiles) -> None:
    batch = RankBatches(tokens, state_of(tokens, global_batch=len(tokens), seed=None), rank=0, ranks=1).batch(0)
    assert len(tokens) == 25 + 0 + 14
    assert batch[0].tolist() == [0, 1, 2, 3, 4]
    assert batch[1].tolist() == [4, 5, 6, 7, 8]
    assert batch[24].tolist() == [96, 97, 98, 99, 100]
    assert batch[25].tolist() == [104, 105, 106, 107, 108]


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64"])
def test_token_types(tmp_path: Path, dtype: str) -> None:
    samples = TokenFiles(tokens_at(tmp_path, 9, dtype=dtype), sequence_tokens=4, dtype=dtype)
    batch = RankBatches(samples, state_of(samples, global_batch=2, seed=None), rank=0, ranks=1).batch(0)
    assert batch.tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


@pytest.mark.long
@given(
    global_batch=st.integers(1, 17),
    consumed=st.integers(0, 90),
    ranks=st.integers(1, 6),
    seed=st.none() | st.integers(0, 9),
)
def test_what_ranks_read_is_the_global_batch_whatever_their_number(
    tokens: TokenFiles, global_batch: int, consumed: int, ranks: int, seed: int | None
) -> None:
    state = state_of(tokens, global_batch=global_batch, consumed_samples=consumed, seed=seed)
    alone = itertools.islice(RankBatches(tokens, state, rank=0, ranks=1), 3)
    each = [itertools.islice(RankBatches(tokens, state, rank=rank, ranks=ranks), 3) for rank in range(ranks)]
    for whole, *parts in zip(alone, *each, strict=True):
        assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.long
@given(global_batch=st.integers(1, 9), consumed=st.integers(0, 30), ranks=st.integers(1, 4))
def test_files_of_ranks_hold_their_samples_in_order(
    tokens: TokenFiles, global_batch: int, consumed: int, ranks: int
) -> None:
    state = state_of(tokens, global_batch=global_batch, consumed_samples=consumed)
    system = RankFileSystem(tokens, state, ranks=ranks, batches=3)
    for rank in range(ranks):
        read = RankBatches(tokens, state, rank=rank, ranks=ranks)
        expected = np.concatenate([read.batch(ahead) for ahead in range(3)]).astype("<u2").tobytes()
        with system.open(f"rank_{rank:05d}.bin") as file:
            assert file.read() == expected
        assert system.info(f"/rank_{rank:05d}.bin")["size"] == len(expected)


@pytest.mark.long
@given(start=st.integers(-300, 300), end=st.none() | st.integers(-300, 300))
def test_any_range_of_a_virtual_file_reads_like_that_of_a_copy(tokens: TokenFiles, start: int, end: int | None) -> None:
    system = RankFileSystem(tokens, state_of(tokens, global_batch=5), ranks=2, batches=4)
    copy = system.cat_file("rank_00001.bin")
    assert system.cat_file("rank_00001.bin", start, end) == copy[start:end]


def test_a_virtual_file_can_be_read_in_pieces_and_sought(tokens: TokenFiles) -> None:
    system = RankFileSystem(tokens, state_of(tokens, global_batch=5), ranks=2)
    copy = system.cat_file("rank_00000.bin")
    with system.open("rank_00000.bin", block_size=7) as file:
        pieces = [file.read(11), file.read(1), file.read(64)]
        file.seek(-5, 2)
        assert b"".join(pieces) == copy[:76]
        assert file.read() == copy[-5:]


def test_files_reach_to_the_end_of_the_epoch(tokens: TokenFiles) -> None:
    system = RankFileSystem(tokens, state_of(tokens, global_batch=5, consumed_samples=39 + 10), ranks=2)
    assert system.ls("", detail=False) == ["rank_00000.bin", "rank_00001.bin"]
    assert [entry["size"] // 10 for entry in system.ls("/")] == [18, 12]
    assert system.exists("rank_00001.bin")
    assert not system.exists("rank_00002.bin")
    with pytest.raises(FileNotFoundError):
        system.cat_file("rank_00002.bin")
    with pytest.raises(InputError, match="can only be read"):
        system.open("rank_00000.bin", "wb")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_tar_samples_come_whole_and_once(shards: TarShards, ranks: int) -> None:
    state = state_of(shards, global_batch=4)
    read = [RankBatches(shards, state, rank=rank, ranks=ranks) for rank in range(ranks)]
    seen = [[int(sample["cls"]) for batches in read for sample in batches.batch(ahead)] for ahead in range(4)]
    assert seen == [state.batch(ahead).tolist() for ahead in range(4)]
    sample = RankBatches(shards, state_of(shards, global_batch=13, seed=None), rank=0, ranks=1).batch(0)[12]
    assert sample["txt"] == b"text 12 " * 12
    assert sample["__key__"].decode() == "train/0012é" + "x" * 120


def test_a_rank_s_file_of_tar_samples_is_a_tar_file(shards: TarShards) -> None:
    state = state_of(shards, global_batch=5, consumed_samples=5)
    system = RankFileSystem(shards, state, ranks=2, batches=2)
    with system.open("rank_00001.tar") as file, tarfile.open(fileobj=file) as archive:
        classes = [int(archive.extractfile(member).read()) for member in archive if member.name.endswith(".cls")]
    assert classes == [*state.rank_batch(1, 2).tolist(), *state.rank_batch(1, 2, ahead=1).tolist()]


def test_originals_may_lie_on_any_file_system() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/data/t.bin", np.arange(21).astype("<u2").tobytes())
    samples = TokenFiles(["memory://data/t.bin"], sequence_tokens=5)
    batch = RankBatches(samples, state_of(samples, global_batch=4, seed=None), rank=1, ranks=2).batch(0)
    assert batch.tolist() == [[10, 11, 12, 13, 14, 15], [15, 16, 17, 18, 19, 20]]


def test_originals_may_lie_on_several_file_systems(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/data/u.bin", np.arange(11).astype("<u2").tobytes())
    samples = TokenFiles([*tokens_at(tmp_path, 11), "memory://data/u.bin"], sequence_tokens=5)
    batch = RankBatches(samples, state_of(samples, global_batch=4, seed=None), rank=0, ranks=1).batch(0)
    assert batch[:2].tolist() == batch[2:].tolist()


def test_another_data_set_is_noticed(tokens: TokenFiles, tmp_path: Path) -> None:
    fewer = TokenFiles(tokens_at(tmp_path, 41), sequence_tokens=4)
    with pytest.raises(InputError, match="num_samples is 39, but the files hold 10"):
        RankBatches(fewer, state_of(tokens, global_batch=4), rank=0, ranks=1)
    same_count = TokenFiles(tokens_at(tmp_path, 57, 101), sequence_tokens=4)
    with pytest.raises(InputError, match=r"samples_hash is .*expected the files that the run began with"):
        RankFileSystem(same_count, state_of(tokens, global_batch=4), ranks=1)


def test_files_that_shrink_or_go_are_noticed(tmp_path: Path) -> None:
    (file,) = tokens_at(tmp_path, 41)
    samples = TokenFiles([file], sequence_tokens=4)
    batches = RankBatches(samples, state_of(samples, global_batch=10), rank=0, ranks=1)
    Path(file).write_bytes(b"xxxx")
    with pytest.raises(InputError, match=r"tokens_0\.bin: \d+ bytes where the data set expects"):
        batches.batch(0)
    Path(file).unlink()
    with pytest.raises(InputError, match=r"tokens_0\.bin"):
        batches.batch(0)


def test_token_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"abc")
    with pytest.raises(InputError, match=r"odd\.bin: 3 bytes; expected a multiple of 2"):
        TokenFiles([str(odd)], sequence_tokens=1)
    with pytest.raises(InputError, match=r"gone\.bin: No such file"):
        TokenFiles([str(tmp_path / "gone.bin")], sequence_tokens=1)
    with pytest.raises(InputError, match="not a file"):
        TokenFiles([str(tmp_path)], sequence_tokens=1)
    with pytest.raises(InputError, match="no sample of 9"):
        TokenFiles(tokens_at(tmp_path, 5), sequence_tokens=9)
    with pytest.raises(InputError, match="no sample"):
        TokenFiles([], sequence_tokens=9)
    with pytest.raises(InputError, match="dtype is 'float32'"):
        TokenFiles([], sequence_tokens=9, dtype="float32")
    with pytest.raises(InputError, match="sequence_tokens is 0"):
        TokenFiles([], sequence_tokens=0)
    with pytest.raises(InputError, match="nowhere://x"):
        TokenFiles(["nowhere://x"], sequence_tokens=1)


def test_tar_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (shard,) = shards_at(tmp_path, 3)
    content = Path(shard).read_bytes()
    bad = tmp_path / "bad.tar"
    for broken in (b"nothing like it" * 100, gzip.compress(content), b""):
        bad.write_bytes(broken)
        with pytest.raises(InputError, match=r"bad\.tar"):
            TarShards([str(bad)])
    last = content.index(b"train/0001.txt")
    for size in (last + 520, last + 100):
        bad.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"bad\.tar"):
            TarShards([str(bad)])
