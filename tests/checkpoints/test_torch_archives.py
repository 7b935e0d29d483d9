"""Archives of tensors: what is read of a file, where the elements are, and what is no such archive."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlsched.checkpoints import torch_archives
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.plain_pickles import Name, Persistent, PickledCall, pickled
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.checkpoints.torch_archives import (
    SavedArchive,
    StoredChunk,
    _end,
    _leaves,
    _member,
    _Range,
    archive_of,
    chunk_entry,
    object_archive,
    read_saved,
)
from ddlsched.errors import InputError

HOOKS = PickledCall(Name("collections", "OrderedDict"), ())


def described(
    shape: tuple[Any, ...], strides: tuple[int, ...], offset: Any = 0, storage: str = "FloatStorage", *, key: str = "0"
) -> PickledCall:
    """Return a tensor as PyTorch pickles it."""
    place = Persistent(("storage", Name("torch", storage), key, "cpu", 99))
    return PickledCall(Name("torch._utils", "_rebuild_tensor_v2"), (place, offset, shape, strides, False, HOOKS))


def saved(file: Path, value: Any, elements: int = 48, *, order: bytes = b"little", before: bytes = b"") -> StoredChunk:
    """Write an archive with so many bytes of elements, behind other bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickled(value))
        archive.writestr("a/byteorder", order)
        archive.writestr("a/data/0", bytes(range(elements)))
    file.write_bytes(before + stream.getvalue() + b"behind")
    return StoredChunk((5, 7), (3, 4), file.name, len(before), len(before) + len(stream.getvalue()))


def entry_of(folder: Path, value: Any, dtype: str = "F32", **more: Any) -> tuple[int, tuple[int, ...], int]:
    """Return the first byte of an archived tensor, its strides, and the byte that is there."""
    chunk = saved(folder / "file", value, **more)
    entry, layout = chunk_entry(location_of(folder), "w", dtype, chunk)
    (piece,) = layout.pieces
    assert (entry.dtype, entry.shape, layout.shape, piece.extent) == (dtype, (3, 4), (3, 4), (3, 4))
    assert (piece.start, piece.offset) == ((5, 7), 0)
    return entry.begin, piece.strides, (folder / "file").read_bytes()[entry.begin]


def test_elements_are_found_in_the_file(folder: Path) -> None:
    begin, strides, first = entry_of(folder, described((3, 4), (4, 1)))
    assert (strides, first) == ((4, 1), 0)
    later, strides, first = entry_of(folder, described((3, 4), (1, 3)), before=b"x" * 1001)
    assert (later, strides, first) == (begin + 1001, (1, 3), 0)
    halves = described((3, 4), (4, 1), 7, "HalfStorage")
    assert entry_of(folder, halves, "F16")[2] == 14  # seven elements of two bytes
    ones = described((3, 4), (0, 0), 47, "ByteStorage")  # the last byte, again and again
    assert entry_of(folder, ones, "U8")[1:] == ((0, 0), 47)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (described((3, 4), (4, 1), 1), "F32", "has 48 bytes; expected 12 elements of F32"),
        (described((3, 4), (5, 1)), "F32", "has 48 bytes; expected 12 elements of F32"),
        (described((3, 4), (4, 1), -1), "F32", "has 48 bytes; expected 12 elements of F32"),
        (described((3, 4), (0, 0), 48, "ByteStorage"), "U8", "has 48 bytes; expected 12 elements of U8"),
        (described((4, 3), (3, 1)), "F32", r"is F32 \[4, 3\]; expected F32 \[3, 4\], as the metadata says"),
        (described((3, 4), (4, 1)), "F16", r"is F32 \[3, 4\]; expected F16 \[3, 4\], as the metadata says"),
        (
            described((3, 4), (4,)),
            "F32",
            r"is no archive of a tensor \(zip\(\) argument 2 is shorter than argument 1\)",
        ),
        (described((3, 4), (4, 1), "0"), "F32", "is no archive of a tensor"),
        (described((3, 4), (4, 1), key="9"), "F32", r"no item named 'a/data/9' in the archive"),
        ({"w": 1}, "F32", r"is no archive of a tensor \('data.pkl holds no tensor'\); expected what torch.save writes"),
    ],
)
def test_what_contradicts_itself_is_refused(folder: Path, value: Any, dtype: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"/file: tensor w at \[5, 7\]: .*{message}"):
        entry_of(folder, value, dtype)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_last_element_that_is_not_whole_is_refused(folder: Path, missing: int) -> None:
    with pytest.raises(InputError, match=f"has {48 - missing} bytes; expected 12 elements of F32"):
        entry_of(folder, described((3, 4), (4, 1)), elements=48 - missing)


@pytest.mark.parametrize("offset", [0.5, True, None])
def test_a_first_element_is_a_whole_number(folder: Path, offset: Any) -> None:
    with pytest.raises(InputError, match=f"tensor .a {type(offset).__name__} is no whole number.; expected what torch"):
        entry_of(folder, described((3, 4), (0, 0), offset))


def test_another_order_of_bytes_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="is big-endian; expected little-endian"):
        entry_of(folder, described((3, 4), (4, 1)), order=b"big")


def test_a_tensor_without_elements_may_have_any_place(folder: Path) -> None:
    chunk = saved(folder / "file", described((0, 4), (4, 1), 1000))
    archive = SavedArchive(location_of(folder), chunk, "w")
    entry, strides = archive.entry(archive.value)
    assert (entry.shape, strides) == ((0, 4), (4, 1))


@pytest.mark.parametrize(
    ("compressed", "refusal"),
    [
        ("data.pkl", "'data.pkl is compressed, or too long'"),
        ("byteorder", "'byteorder is compressed, or too long'"),
        ("data/0", "'the elements are compressed'"),
        ("", ""),
    ],
)
def test_compressed_members_are_refused(folder: Path, compressed: str, refusal: str) -> None:
    """Members may lie in any order."""
    value = pickled(described((3, 4), (4, 1)))
    with zipfile.ZipFile(folder / "file", "w") as archive:
        for name, content in (("version", b"3"), ("data/0", bytes(48)), ("byteorder", b"little"), ("data.pkl", value)):
            archive.writestr(f"a/{name}", content, zipfile.ZIP_DEFLATED if name == compressed else zipfile.ZIP_STORED)
        begin = archive.getinfo("a/data/0").header_offset + 30 + len("a/data/0")
    chunk = StoredChunk((5, 7), (3, 4), "file", 0, (folder / "file").stat().st_size)
    if not refusal:
        assert chunk_entry(location_of(folder), "w", "F32", chunk)[0].begin == begin
        return
    with pytest.raises(InputError) as raised:
        chunk_entry(location_of(folder), "w", "F32", chunk)
    text = f"is no archive of a tensor ({refusal}); expected what torch.save writes"
    assert str(raised.value) == f"{folder}/file: tensor w at [5, 7]: {text}"


def test_a_description_may_be_as_long_as_that_and_no_longer(folder: Path) -> None:
    value = "x" * 900
    chunk, longest = saved(folder / "file", value), len(pickled(value))
    assert SavedArchive(location_of(folder), chunk, "w", longest).value == value
    with pytest.raises(KeyError, match=r"data\.pkl is compressed, or too long"):
        SavedArchive(location_of(folder), chunk, "w", longest - 1)


@pytest.mark.parametrize(
    ("read", "most_bytes"),
    [
        (lambda file, chunk: chunk_entry(location_of(file.parent), "w", "F32", chunk), 2**20),
        (lambda file, _: read_saved(file), 2**26),
    ],
)
def test_a_description_may_be_of_a_mebibyte_and_that_of_a_whole_state_of_64(
    folder: Path, read: Callable[[Path, StoredChunk], object], most_bytes: int
) -> None:
    """The directory says that a short description is so long; one that is not refused for it ends too early."""
    for num_bytes, refusal in ((most_bytes, "[(][)]"), (most_bytes + 1, "data.pkl is compressed, or too long")):
        chunk = saved(folder / "file", 7)
        content = (folder / "file").read_bytes()[: chunk.high]
        at = content.index(b"PK\x01\x02") + 20
        (folder / "file").write_bytes(content[:at] + num_bytes.to_bytes(4, "little") * 2 + content[at + 8 :])
        with pytest.raises(InputError, match=f"is no archive of a tensor .*{refusal}"):
            read(folder / "file", chunk)


def test_a_part_of_a_file_is_read_as_a_file(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(range(100)))
    part = _Range(location_of(folder), StoredChunk((), (), "file", 20, 50), 10)
    assert part.readable()
    assert part.seekable()
    assert [part.read(0), part.read(4), part.read(1)] == [b"", bytes(range(20, 24)), bytes([24])]
    assert (part.seek(-2, os.SEEK_CUR), part.read(10)) == (3, bytes(range(23, 33)))
    assert (part.seek(-3, os.SEEK_END), part.read(10), part.read(10)) == (27, bytes([47, 48, 49]), b"")
    assert (part.seek(28), part.read(), part.read()) == (28, bytes([48, 49]), b"")
    assert (part.seek(40), part.read(3), part.seek(0, os.SEEK_CUR)) == (40, b"", 40)
    with pytest.raises(OSError, match="byte -1 of an archive"):
        part.seek(-1)
    with pytest.raises(zipfile.BadZipFile, match="its directory or a description is too long"):
        part.read(11)


@pytest.mark.parametrize("value", [{"iteration": 3}, [1.5, None], "text"])
def test_plain_values_are_archived_as_programs_for_zip_files_read_them(value: Any) -> None:
    with zipfile.ZipFile(io.BytesIO(object_archive(value))) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["archive/data.pkl", "archive/byteorder", "archive/version"]
        found = [archive.read(name) for name in archive.namelist()]
        assert all(member.date_time == (1980, 1, 1, 0, 0, 0) for member in archive.infolist())
    assert found == [pickled(value), b"little", b"3\n"]


@pytest.mark.parametrize(("dtype", "shape"), [("F32", (2, 3)), ("U16", ()), ("F8_E5M2", (65,)), ("I64", (0, 2))])
def test_what_is_archived_is_found_again(folder: Path, dtype: str, shape: tuple[int, ...]) -> None:
    before, behind = archive_of(dtype, shape)
    size = {"F32": 24, "U16": 2, "F8_E5M2": 65, "I64": 0}[dtype]
    (folder / "file").write_bytes(before + bytes(size) + behind)
    chunk = StoredChunk((0,) * len(shape), shape, "file", 0, len(before) + size + len(behind))
    entry, layout = chunk_entry(location_of(folder), "w", dtype, chunk)
    assert (entry.begin, len(before) % 64, entry.num_bytes, layout.shape) == (len(before), 0, size, shape)
    with zipfile.ZipFile(folder / "file") as archive:
        assert [member.file_size for member in archive.infolist()[1:]] == [6, 2, size]


class Called(str):
    """The name of what a pickle calls."""

    def __call__(self, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
        return str(self), arguments


class Names(pickle.Unpickler):
    """The standard library's reader, which is told names and calls nothing."""

    def find_class(self, module: str, name: str) -> Called:
        return Called(f"{module}.{name}")

    def persistent_load(self, identity: Any) -> Any:
        return identity


PYTORCH = {
    "BOOL": ("BoolStorage", "bool"), "U8": ("ByteStorage", "uint8"), "I8": ("CharStorage", "int8"),
    "I16": ("ShortStorage", "int16"), "F16": ("HalfStorage", "float16"), "BF16": ("BFloat16Storage", "bfloat16"),
    "I32": ("IntStorage", "int32"), "F32": ("FloatStorage", "float32"), "I64": ("LongStorage", "int64"),
    "F64": ("DoubleStorage", "float64"), "U16": ("", "uint16"), "U32": ("", "uint32"), "U64": ("", "uint64"),
    "F8_E4M3": ("", "float8_e4m3fn"), "F8_E5M2": ("", "float8_e5m2"),
}  # fmt: skip
"""The typed storage of each dtype, and its name; types without one are rebuilt from bytes, by version 3."""


@pytest.mark.parametrize("dtype", PYTORCH)
def test_tensors_are_described_as_pytorch_rebuilds_them(folder: Path, dtype: str) -> None:
    typed, name = PYTORCH[dtype]
    before, behind = archive_of(dtype, (2, 3, 4))
    size = 24 * DTYPE_BYTES[dtype]
    with zipfile.ZipFile(io.BytesIO(before + bytes(size) + behind)) as archive:
        found = Names(io.BytesIO(archive.read("archive/data.pkl"))).load()
    storage = ("storage", f"torch.{typed}" if typed else "torch.storage.UntypedStorage", "0", "cpu")
    tensor = (0, (2, 3, 4), (12, 4, 1), False, ("collections.OrderedDict", ()))
    if typed:
        assert found == ("torch._utils._rebuild_tensor_v2", ((*storage, 24), *tensor))
    else:
        assert found == ("torch._utils._rebuild_tensor_v3", ((*storage, size), *tensor, f"torch.{name}"))
    (folder / "file").write_bytes(before + bytes(size) + behind)
    chunk = StoredChunk((0, 0, 0), (2, 3, 4), "file", 0, len(before) + size + len(behind))
    assert chunk_entry(location_of(folder), "w", dtype, chunk)[0] == Entry(dtype, (2, 3, 4), len(before))


def test_numbers_from_4_gib_minus_one_on_take_fields_of_64_bits() -> None:
    for num_bytes, large in ((2**32 - 2, False), (2**32 - 1, True)):
        header, listed = _member("a", 0, num_bytes, 0)
        assert (len(header), len(listed)) == ((51, 67) if large else (31, 47))
        assert header[4] == listed[6] == (45 if large else 20)
        assert (num_bytes.to_bytes(8, "little") * 2 in header) == large
    for begin, large in ((2**32 - 2, False), (2**32 - 1, True)):
        end = _end(4, 99, begin)
        assert len(end) == (98 if large else 22)
        assert (begin + 99).to_bytes(8, "little") in end or not large


def numbers(*fields: tuple[int, int]) -> bytes:
    """Return numbers in so many bytes each."""
    return b"".join(value.to_bytes(num_bytes, "little") for num_bytes, value in fields)


NO_DISK, NO_COMMENT = (2, 0), (2, 0)


def test_a_directory_ends_as_zip_files_do() -> None:
    """By the tables of PKWARE's APPNOTE: 4.3.16, and before it 4.3.14 and 4.3.15 where a number is large."""
    counts, begin = ((2, 4), (2, 4)), 2**32 - 2
    short = b"PK\x05\x06" + numbers(NO_DISK, NO_DISK, *counts, (4, 99), (4, begin), NO_COMMENT)
    assert _end(4, 99, begin) == short
    begin = 2**40
    large = numbers((8, 44), (2, 45), (2, 45), (4, 0), (4, 0), (8, 4), (8, 4), (8, 99), (8, begin))
    locator = numbers((4, 0), (8, begin + 99), (4, 1))
    short = b"PK\x05\x06" + numbers(NO_DISK, NO_DISK, *counts, (4, 99), (4, 2**32 - 1), NO_COMMENT)
    assert _end(4, 99, begin) == b"PK\x06\x06" + large + b"PK\x06\x07" + locator + short


@pytest.mark.parametrize("begin", [0, 1000])
@pytest.mark.parametrize(("num_bytes", "version"), [(2**32 - 2, 20), (2**32 - 1, 45)])
def test_members_are_described_as_in_zip_files(begin: int, num_bytes: int, version: int) -> None:
    """By the tables of PKWARE's APPNOTE: 4.3.7 and 4.3.12, and for large ones 4.5.3; PyTorch's padding is named FB."""
    shown = (4, min(num_bytes, 2**32 - 1))
    extra = numbers((2, 1), (2, 16), (8, num_bytes), (8, num_bytes)) if version == 45 else b""
    january_1980 = (2, 33)
    fields = numbers((2, version), (2, 0), (2, 0), (2, 0), january_1980, (4, 0xABCD), shown, shown)
    room = -(begin + 30 + len("a/b") + len(extra) + 4) % 64
    padding = b"FB" + numbers((2, room)) + b"Z" * room
    comment, disk, attributes = (2, 0), (2, 0), ((2, 0), (4, 0))
    lengths = ((2, 3), (2, len(extra)))
    listed = b"PK\x01\x02" + numbers((2, version)) + fields
    listed += numbers(*lengths, comment, disk, *attributes, (4, begin)) + b"a/b" + extra
    for aligned, behind in ((True, extra + padding), (False, extra)):
        header = b"PK\x03\x04" + fields + numbers((2, 3), (2, len(behind))) + b"a/b" + behind
        assert _member("a/b", begin, num_bytes, 0xABCD, aligned=aligned) == (header, listed)
        assert not aligned or (begin + len(header)) % 64 == 0


def test_a_state_has_at_most_a_million_values_and_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_archives._MOST_VALUES == 1_000_000  # to go through as many takes seconds
    monkeypatch.setattr(torch_archives, "_MOST_VALUES", 5)
    assert [leaf for _, leaf in _leaves([1, {"a": 2, "b": 3}])] == [1, 2, 3]
    with pytest.raises(ValueError, match="a state of more than 5 values"):
        list(_leaves([1, {"a": 2, "b": []}, {}]))


def test_keys_that_lead_to_leaves_are_in_their_order() -> None:
    value = {"a": [1, {"b": (2, 3)}], 5: {}, "c": 4}
    assert list(_leaves(value)) == [(("a", 0), 1), (("a", 1, "b", 0), 2), (("a", 1, "b", 1), 3), (("c",), 4)]
    assert list(_leaves(7)) == [(("tensor",), 7)]
    for key in (None, 1.5, True, ("a",)):
        with pytest.raises(ValueError, match="other keys than texts and numbers"):
            list(_leaves({key: 1}))


def test_a_file_of_one_tensor_and_one_without_elements_is_read(folder: Path) -> None:
    saved(folder / "file", {"w": described((3, 4), (4, 1)), "none": described((0,), (1,)), "n": 3, "m": "x"})
    os.truncate(folder / "file", (folder / "file").stat().st_size - len(b"behind"))
    reading = read_saved(folder / "file")
    assert (reading.num_left_out, reading.only_read) == (2, str(folder / "file"))
    assert [tensor.name for tensor in reading.job.tensors] == ["w", "none"]
    held = {tensor.name: parts for tensor, parts in reading.held()}
    (part,) = held["w"]
    (piece,) = part.layout.pieces
    assert (piece.start, piece.extent, piece.offset, piece.strides) == ((0, 0), (3, 4), 0, (4, 1))
    assert bytes(part.sources[0].data(piece)) == bytes(range(48))
    assert held["none"] == []
