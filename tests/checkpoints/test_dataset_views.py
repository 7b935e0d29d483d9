"""Samples in files, and what ranks read of them."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import itertools
import sys
import tarfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlsched.checkpoints
from ddlsched.checkpoints.dataset_files import NO_FILE, ByteRanges, Samples, TarShards, TokenFiles
from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.dataset_views import RankBatches, RankFileSystem, _joined
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


def requests_of(system: RankFileSystem) -> list[tuple[int, int, int]]:
    """Note what is asked of the originals: number of the file, begin and end."""
    asked: list[tuple[int, int, int]] = []
    for number, (_, original) in enumerate(system._reader._places):

        def cat_file(path: str, start: int, end: int, number: int = number) -> bytes:
            asked.append((number, start, end))
            return Path(path).read_bytes()[start:end]

        system._reader._places[number] = SimpleNamespace(cat_file=cat_file), original
    return asked


def test_neighbours_in_a_file_are_one_range_and_no_others_are() -> None:
    pieces = [  # file, start, length; two whose numbers follow each other are in two files
        [(0, 0, 4), (0, 4, 6), (0, 10, 1)], [(0, 12, 1)], [(1, 13, 2)], [(1, 16, 2), (1, 18, 0)], [(1, 17, 1)],
        [(NO_FILE, 0, 8)],
    ]  # fmt: skip
    ranges = ByteRanges(*np.array([piece for joined in pieces for piece in joined]).T)
    assert np.array(_joined(ranges)).T.tolist() == [
        [0, 0, 11], [0, 12, 1], [1, 13, 2], [1, 16, 2], [1, 17, 1], [NO_FILE, 0, 8],
    ]  # fmt: skip
    nothing = ByteRanges(*np.empty((3, 0), np.int64))
    assert _joined(nothing) is nothing


def test_neighbours_are_read_in_one_request_and_nothing_else_is(tokens: TokenFiles) -> None:
    state = state_of(tokens, global_batch=39, seed=None)
    system = RankFileSystem(tokens, state, ranks=1, batches=1)
    asked = requests_of(system)
    first = [np.arange(4 * at, 4 * at + 5).astype("<u2").tobytes() for at in range(3)]
    # A sample is of 10 bytes and begins 8 bytes behind the one before it: the token between is read for both.
    for begin, end, requests in [
        (0, 10, [(0, 0, 10)]),
        (10, 20, [(0, 8, 18)]),
        (9, 21, [(0, 9, 10), (0, 8, 18), (0, 16, 17)]),
        (12, 15, [(0, 10, 13)]),
        (20, 20, []),
        (245, 255, [(0, 197, 202), (2, 0, 5)]),
    ]:
        asked.clear()
        content = system.cat_file("rank_00000.bin", begin, end)
        assert asked == requests
        if end <= 30:
            assert content == b"".join(first)[begin:end]


def test_a_file_of_tar_samples_is_the_samples_of_the_shards_and_two_empty_blocks(shards: TarShards) -> None:
    state = state_of(shards, global_batch=4)
    system = RankFileSystem(shards, state, ranks=1, batches=2)
    numbers = [*state.batch(0), *state.batch(1)]
    samples = [Path(shards.files[file]).read_bytes()[start:][:length] for file, start, length in shards._places]
    content = b"".join(samples[number] for number in numbers) + bytes(1024)
    assert system.cat_file("rank_00000.tar") == content
    assert system.cat_file("rank_00000.tar", -1030) == content[-1030:]
    assert system.ls("") == [{"name": "rank_00000.tar", "size": len(content), "type": "file"}]
    assert RankFileSystem(shards, state, ranks=1, batches=0).cat_file("rank_00000.tar") == bytes(1024)


def test_batches_come_one_after_another_or_every_so_many(tokens: TokenFiles) -> None:
    batches = RankBatches(tokens, state_of(tokens, global_batch=5), rank=0, ranks=1)
    numbered = {ahead: batches.batch(ahead).tolist() for ahead in range(8)}
    assert [batch.tolist() for batch in itertools.islice(batches, 3)] == [numbered[at] for at in (0, 1, 2)]
    assert [batch.tolist() for batch in itertools.islice(batches.every(1, 3), 3)] == [numbered[at] for at in (1, 4, 7)]


def test_a_rank_that_is_none_and_a_mode_that_writes_are_refused(tokens: TokenFiles) -> None:
    state = state_of(tokens, global_batch=4)
    with pytest.raises(InputError, match=r"^data-parallel rank 2 of 2: expected a rank from 0 below the number of"):
        RankBatches(tokens, state, rank=2, ranks=2)
    system = RankFileSystem(tokens, state, ranks=1)
    with pytest.raises(InputError) as error:
        system.open("rank_00000.bin", "wb")
    assert str(error.value) == "rank_00000.bin: mode 'wb'; the files of ranks can only be read ('rb')"
    assert RankFileSystem(tokens, state, ranks=1) is not system  # the samples of the first would be read


def test_what_is_said_of_another_data_set(tokens: TokenFiles) -> None:
    state = DatasetState(num_samples=39, global_batch=4, samples_hash="0123")
    with pytest.raises(InputError) as error:
        RankBatches(tokens, state, rank=0, ranks=1)
    assert str(error.value) == (
        f"dataset state: samples_hash is '0123', but the files' is '{tokens.samples_hash}'; "
        "expected the files that the run began with"
    )
    RankBatches(tokens, DatasetState(num_samples=39, global_batch=4), rank=0, ranks=1)  # not known: not compared


def test_hashes_of_samples_are_16_digits_of_what_the_samples_are(tokens: TokenFiles, shards: TarShards) -> None:
    said = "(4, 'uint16', 25, 25, 39, 39)"  # tokens of a sequence, their type, and the samples up to each file's end
    assert tokens.samples_hash == hashlib.sha256(said.encode()).hexdigest()[:16]
    places = []
    for file, shard in enumerate(shards.files):
        with tarfile.open(shard) as archive:
            texts = archive.getmembers()[::2]
            begins = [*(member.offset for member in texts), archive.offset]
            places += [[file, begin, end - begin] for begin, end in itertools.pairwise(begins)]
    assert shards.samples_hash == hashlib.sha256(str(places).encode()).hexdigest()[:16]
    assert len(shards) == len(places) == 13


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """An archive with nothing behind its last member."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            add(archive, name, content)
        end = archive.offset
    return stream.getvalue()[:end]


ONE = tar_of(("a.x", b"1"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(1024), "tar shards: no sample in {path}"),
        (ONE, "{path}: no header and no end of archive at byte 1024; expected a whole, uncompressed tar file"),
        (
            ONE + b"x" * 512 + bytes(1024),
            "{path}: no header and no end of archive at byte 1024; expected a whole, uncompressed tar file",
        ),
        (b"", "{path}: empty file; expected a whole, uncompressed tar file"),
        (None, "{path}: No such file or directory; expected a file of samples"),
    ],
)
def test_shards_without_samples_or_without_an_end_are_refused(folder: Path, content: bytes | None, said: str) -> None:
    path = folder / "s.tar"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        TarShards([str(path)])
    assert str(error.value) == said.format(path=path)
    with pytest.raises(InputError, match=r"^tar shards: no sample in no file$"):
        TarShards([])


def test_one_empty_block_ends_a_shard_and_samples_are_members_alike_to_the_first_dot(folder: Path) -> None:
    members = [("d.1/a.tar.gz", b"x" * 512), ("d.1/a.b", b""), ("d.2/a.b", b"y" * 513), ("c", b"z")]
    (folder / "s.tar").write_bytes(tar_of(*members) + bytes(512))
    samples = TarShards([str(folder / "s.tar")])
    assert np.array(samples.ranges(np.arange(3))).T.tolist() == [[0, 0, 1536], [0, 1536, 1536], [0, 3072, 1024]]
    batch = RankBatches(samples, state_of(samples, global_batch=3, seed=None), rank=0, ranks=1).batch(0)
    assert batch == [
        {"__key__": b"d.1/a", "tar.gz": b"x" * 512, "b": b""},
        {"__key__": b"d.2/a", "b": b"y" * 513},
        {"__key__": b"c", "": b"z"},
    ]


@pytest.mark.parametrize(("worker", "every"), [(None, [0, 1, 2]), ((0, 3), [0, 3, 6]), ((2, 3), [2, 5, 8])])
def test_readers_of_pytorch_take_every_so_many_batches(worker: tuple[int, int] | None, every: list[int]) -> None:
    """On a stand-in for PyTorch; a batch of tokens becomes a tensor, one of tar samples stays a list."""
    told = worker and SimpleNamespace(id=worker[0], num_workers=worker[1])
    data = ModuleType("torch.utils.data")
    data.IterableDataset, data.get_worker_info = list, lambda: told  # type: ignore[attr-defined]
    torch = SimpleNamespace(from_numpy=lambda batch: ("tensor", batch.tolist()))
    stands_in = {"torch": torch, "torch.utils": ModuleType("torch.utils"), "torch.utils.data": data}
    with patch.dict(sys.modules, stands_in):
        sys.modules.pop("ddlsched.checkpoints.dataset_torch", None)
        module = importlib.import_module("ddlsched.checkpoints.dataset_torch")
    vars(ddlsched.checkpoints).pop("dataset_torch")
    batches: Any = SimpleNamespace(
        every=lambda first, step: (np.array([at]) if at % 2 else [at] for at in itertools.count(first, step))
    )
    found = list(itertools.islice(iter(module.RankDataset(batches)), 3))
    assert found == [("tensor", [at]) if at % 2 else [at] for at in every]


def test_without_pytorch_its_dataset_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "ddlsched.checkpoints.dataset_torch", raising=False)
    with pytest.raises(InputError, match=r"^a PyTorch dataset needs torch: pip install torch$"):
        importlib.import_module("ddlsched.checkpoints.dataset_torch")
