"""Checkpoints of other programs part by part, and data sets piece by piece."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kept_numbers import assert_kept, digest

from ddlsched.checkpoints import distributed_reading
from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.dataset_files import ByteRanges, TarShards, TokenFiles
from ddlsched.checkpoints.dataset_state import DatasetState, rank_slice
from ddlsched.checkpoints.dataset_views import RankBatches, RankFileSystem, _cut, _joined, _RangeReader
from ddlsched.checkpoints.distributed_reading import StoredTensor, is_distributed
from ddlsched.checkpoints.formats import Format, foreign_reading, form_of, num_left_out, reading_for
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import PartsReading, whole_parts
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.checkpoints.torch_archives import StoredChunk
from ddlsched.errors import InputError

HERE = Path(__file__).parent
SOURCES = ("distributed", "fsdp2", "megatron")


@pytest.mark.parametrize("source", SOURCES)
def test_checkpoints_of_other_programs_are_read_as_they_were(source: str) -> None:
    found: dict[str, str] = {}
    for form in (Format.torch, Format.megatron):
        foreign = foreign_reading(HERE / source)
        assert foreign is not None
        parts = PartsReading.of(reading_for(form, foreign))
        found[f"{form.value} description"] = digest([parts.described.text(), parts.checkpoint.files])
        for tensor, held in parts.held():
            places = [(of.layout, [(one.file, one.entry) for one in of.sources]) for of in held]
            found[f"{form.value} {tensor.name}"] = f"{len(held)} {digest(places)}"
    assert_kept(f"foreign-{source}", found)


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_checkpoints_of_other_programs_are_written_as_they_were(source: str, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for form in (Format.torch, Format.megatron, Format.safetensors):
        reading = foreign_reading(HERE / source)
        assert reading is not None
        found[f"{form.value} left out"] = str(num_left_out(form, reading))
        new = tmp_path / form.value
        reshard(reading_for(form, reading), new, to=StoredParallelism(tp=2, dp=2), form=form_of(form))
        for file in sorted(new.iterdir()):
            found[f"{form.value} {file.name}"] = f"{file.stat().st_size} {digest([file.read_bytes()])}"
    assert_kept(f"foreign-{source}-written", found)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    (tmp_path / "file").write_bytes(np.array([7.9, np.nan, -3.0, np.inf], "<f4").tobytes())
    return location_of(tmp_path)


@pytest.mark.parametrize(
    ("low", "length", "fits"),
    [(0, 16, True), (16, 0, True), (3, 13, True), (3, 14, False), (-1, 3, False), (5, -1, False)],
)
def test_a_chunk_lies_within_its_file(place: Any, low: int, length: int, fits: bool) -> None:
    info = SimpleNamespace(relative_path="file", offset=low, length=length, transform_descriptors=None)
    if fits:
        found = distributed_reading._stored("w", (1,), (2,), info, place)
        assert found == StoredChunk((1,), (2,), "file", low, low + length)
    else:
        with pytest.raises(
            InputError, match=rf"w: bytes {low} to {low + length} of a file of 16: the file is truncated"
        ):
            distributed_reading._stored("w", (1,), (2,), info, place)


def test_what_is_stored_through_something_is_refused(place: Any) -> None:
    info = SimpleNamespace(relative_path="file", offset=0, length=1, transform_descriptors=["zstd"])
    with pytest.raises(InputError, match=r"tensor w is stored through \['zstd'\]; expected plain storage"):
        distributed_reading._stored("w", (), (), info, place)


@pytest.mark.parametrize(
    ("start", "extent", "message"),
    [
        ((0, 2), (2, 2), ""),
        ((0, 0), (0, 9), r"\[0, 9\]"),
        ((1, 2), (2, 2), r"\[3, 4\]"),
        ((0, 3), (2, 2), r"\[2, 5\]"),
        ((0,), (2,), r"\[2\]"),
        ((0, 0), (0, 4), "none"),
    ],
)
def test_a_chunk_lies_within_its_tensor(
    place: Any, start: tuple[int, ...], extent: tuple[int, ...], message: str
) -> None:
    item = SimpleNamespace(
        properties=SimpleNamespace(state=("F32",)), size=(2, 4), chunks=[SimpleNamespace(offsets=start, sizes=extent)]
    )
    info = SimpleNamespace(relative_path="file", offset=2, length=3, transform_descriptors=None)
    if message not in ("", "none"):
        with pytest.raises(
            InputError, match=rf"tensor w of \[2, 4\] has a chunk up to {message}; expected chunks within"
        ):
            distributed_reading._tensor("w", item, {("w", start): info}, place)
        return
    found = distributed_reading._tensor("w", item, {("w", start): info}, place)
    chunks = () if message else (StoredChunk(start, extent, "file", 2, 5),)
    assert found == StoredTensor("F32", (2, 4), chunks)
    item.properties.state = ("complex64",)
    with pytest.raises(InputError, match="tensor w is 'complex64'; expected a dtype of safetensors"):
        distributed_reading._tensor("w", item, {}, place)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "begin", "steps"),
    [
        ("optimizer.step", "F32", (), 0, 7), ("step", "F32", (), 4, 0), ("a.step", "F32", (), 8, 0),
        ("a.steps", "F32", (), 0, 0), ("step.a", "F32", (), 0, 0), ("a.step", "F32", (1,), 0, 0),
        ("a.step", "U8", (), 0, 0), ("a.step", "I32", (), 0, int(np.float32(7.9).view(np.int32))),
    ],
)  # fmt: skip
def test_steps_are_those_that_the_optimiser_counted(
    place: Any, name: str, dtype: str, shape: tuple[int, ...], begin: int, steps: int
) -> None:
    parts = whole_parts(dtype, shape, place, "file", begin)
    assert distributed_reading._step([(Tensor(name=name, shape=shape, dtype=dtype), parts)]) == steps


def test_paths_are_those_of_the_usual_planner() -> None:
    names = dict.fromkeys("abcdefg")
    planned = {"a": ("m", 0), "b": (), "c": ["m"], "d": ("m", 1.5), "e": (True,), "other": ("m",)}
    assert distributed_reading._paths(planned, names) == {"a": ("m", 0)}
    assert distributed_reading._paths([("a",)], names) == {}


def test_a_folder_with_metadata_is_a_distributed_checkpoint(tmp_path: Path) -> None:
    assert not is_distributed(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"")
    assert not is_distributed(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"x")
    assert is_distributed(tmp_path)


def ranges(*each: tuple[int, int, int]) -> ByteRanges:
    return ByteRanges(*np.array(each, dtype=np.int64).reshape(-1, 3).T)


def listed(found: ByteRanges) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in found), strict=True))


@pytest.mark.parametrize(
    ("each", "joined"),
    [
        ([], []), ([(0, 5, 2)], [(0, 5, 2)]), ([(0, 5, 2), (0, 7, 3)], [(0, 5, 5)]),
        ([(0, 5, 2), (0, 8, 3)], [(0, 5, 2), (0, 8, 3)]), ([(0, 5, 2), (1, 7, 3)], [(0, 5, 2), (1, 7, 3)]),
        ([(0, 5, 2), (0, 6, 3)], [(0, 5, 2), (0, 6, 3)]),
        ([(2, 0, 1), (2, 1, 1), (2, 2, 1), (2, 9, 1), (2, 10, 4)], [(2, 0, 3), (2, 9, 5)]),
    ],
)  # fmt: skip
def test_neighbours_are_read_in_one_request(each: Any, joined: object) -> None:
    assert listed(_joined(ranges(*each))) == joined


@pytest.mark.parametrize(
    ("begin", "stop", "cut"),
    [
        (0, 9, [(0, 50, 4), (1, 20, 3), (0, 7, 2)]),
        (0, 4, [(0, 50, 4)]),
        (4, 7, [(1, 20, 3)]),
        (3, 8, [(0, 53, 1), (1, 20, 3), (0, 7, 1)]),
        (5, 6, [(1, 21, 1)]),
        (4, 4, []),
        (9, 9, []),
        (8, 99, [(0, 8, 1)]),
    ],
)
def test_a_part_of_a_file_of_ranges(begin: int, stop: int, cut: object) -> None:
    assert listed(_cut(ranges((0, 50, 4), (1, 20, 3), (0, 7, 2)), begin, stop)) == cut


def test_pieces_are_read_where_they_are(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        (tmp_path / name).write_bytes(bytes(range(first, first + 50)))
    reader = _RangeReader((str(tmp_path / "a"), str(tmp_path / "b")))
    found = reader.read(ranges((1, 3, 2), (-1, 0, 3), (0, 48, 2)))
    assert found == bytes([103, 104, 0, 0, 0, 48, 49])
    with pytest.raises(InputError, match="a: 2 bytes where the data set expects 3 bytes from byte 48 on"):
        reader.read(ranges((0, 48, 3)))
    assert reader.read(ranges()) == b""


def tokens(folder: Path, *counts: int) -> TokenFiles:
    for number, count in enumerate(counts):
        (folder / f"{number}").write_bytes(np.arange(count, dtype="<u2").tobytes())
    return TokenFiles([str(folder / f"{number}") for number in range(len(counts))], sequence_tokens=3)


def test_sequences_have_a_token_more_than_a_model_sees(tmp_path: Path) -> None:
    samples = tokens(tmp_path, 7, 3, 4)
    assert (len(samples), samples._ends.tolist()) == (3, [2, 2, 3])
    assert listed(samples.ranges(np.array([0, 1, 2]))) == [(0, 0, 8), (0, 6, 8), (2, 0, 8)]
    text = repr((3, "uint16", 2, 2, 3))
    assert samples.samples_hash == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_samples_of_a_shard_begin_at_a_header_and_end_at_a_block(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, size in (("d/1.txt", 512), ("d/1.cls", 0), ("d/2.tar.gz", 513), ("d", -1), ("1", 1)):
            member = tarfile.TarInfo(name)
            member.size, member.type = max(size, 0), tarfile.DIRTYPE if size < 0 else tarfile.REGTYPE
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    shards = TarShards([str(tmp_path / "s.tar")])
    assert shards._places.tolist() == [[0, 0, 1536], [0, 1536, 1536], [0, 3584, 1024]]
    contents = (tmp_path / "s.tar").read_bytes()
    first, second, third = shards.decoded([contents[a : a + b] for _, a, b in shards._places.tolist()])
    assert first == {"__key__": b"d/1", "txt": bytes(512), "cls": b""}
    assert second == {"__key__": b"d/2", "tar.gz": bytes(513)}
    assert third == {"__key__": b"1", "": b"\0"}
    assert (len(shards), shards.suffix, shards.end_bytes) == (3, ".tar", 1024)


def test_a_rank_of_a_data_set_is_one_of_the_ranks(tmp_path: Path) -> None:
    samples = tokens(tmp_path, 31)
    state = DatasetState(num_samples=10, global_batch=4, seed=None)
    with pytest.raises(InputError, match="data-parallel rank 3 of 3: expected a rank from 0 below the number of ranks"):
        RankBatches(samples, state, rank=3, ranks=3)
    batches = RankBatches(samples, state, rank=1, ranks=3)
    found = batches.every(1, 2)
    assert [next(found)[:, 0].tolist() for _ in range(2)] == [[3 * 6, 3 * 7], [3 * 4, 3 * 5]]
    assert [each[0, 0] for each, _ in zip(batches, range(3), strict=False)] == [6, 18, 0]


def test_places_in_a_batch_and_batches_in_an_epoch() -> None:
    assert [rank_slice(rank, 3, 7) for rank in range(3)] == [(0, 3), (3, 6), (6, 7)]
    assert [rank_slice(rank, 5, 7) for rank in range(5)] == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 7)]
    states = [DatasetState(num_samples=10, global_batch=4, consumed_samples=done) for done in (0, 2, 6, 8, 9, 10, 23)]
    assert [(state.epoch, state.batches_left_in_epoch) for state in states] == [
        (0, 3), (0, 2), (0, 1), (0, 1), (0, 1), (1, 3), (2, 2),
    ]  # fmt: skip
    state = DatasetState(num_samples=10, global_batch=4, consumed_samples=6, seed=None)
    assert [state.batch(ahead).tolist() for ahead in (0, 1, 2)] == [[6, 7, 8, 9], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert state.advanced().consumed_samples == 10
    assert state.advanced(3).consumed_samples == 18
    assert state.rank_batch(2, 3, 1).tolist() == []
    assert state.rank_batch(1, 3, 1).tolist() == [2, 3]


def test_virtual_files_are_named_and_sized(tmp_path: Path) -> None:
    samples = tokens(tmp_path, 31)
    state = DatasetState(num_samples=10, global_batch=3, consumed_samples=3, seed=None)
    system = RankFileSystem(samples, state, ranks=2)
    assert system.ls("/") == [
        {"name": "rank_00000.bin", "size": 8 * 6, "type": "file"},
        {"name": "rank_00001.bin", "size": 8 * 3, "type": "file"},
    ]
    assert system.ls("rank_00001.bin", detail=False) == ["rank_00001.bin"]
    with pytest.raises(FileNotFoundError):
        system.ls("rank_00002.bin")
    assert system.info("ddlsched-rank://rank_00000.bin")["size"] == 48
    assert system.cat_file("rank_00001.bin", 8, 10) == np.array([24], "<u2").tobytes()
    assert RankFileSystem(samples, state, ranks=1, batches=0).ls("")[0]["size"] == 0
