"""Archives of single tensors as ``torch.save`` writes them: where their elements lie, and the bytes around them.

Such an archive is an uncompressed zip file with a pickle that describes the tensor and a member with its elements.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ddlsched.checkpoints.locations import Location
from ddlsched.checkpoints.plain_pickles import Called, Name, Persistent, pickled, shape_of, unpickled
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.shards import Layout, Piece
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.errors import InputError

__all__ = ["DTYPES", "TORCH_NAMES", "Archive", "StoredChunk", "archive_of", "chunk_entry", "object_archive"]

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "uint16": "U16",
    "int16": "I16", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32",
    "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
"""Names of safetensors files by PyTorch's."""
_STORAGES = {
    "BoolStorage": "BOOL", "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16", "HalfStorage": "F16",
    "BFloat16Storage": "BF16", "IntStorage": "I32", "FloatStorage": "F32", "LongStorage": "I64", "DoubleStorage": "F64",
    "UntypedStorage": "",
}  # fmt: skip
TORCH_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_STORAGE_OF = {dtype: name for name, dtype in _STORAGES.items() if dtype}


class StoredChunk(NamedTuple):
    """A box of a tensor, and the bytes of a file in which it is archived."""

    start: tuple[int, ...]
    extent: tuple[int, ...]
    file: str
    low: int
    high: int


class _Range(io.RawIOBase):
    """Some bytes of a file, as a file: what a zip archive is read from without reading what is in it."""

    def __init__(self, place: Location, chunk: StoredChunk) -> None:
        self._place, self._chunk, self._at = place, chunk, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._chunk.high - self._chunk.low)[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        low = self._chunk.low + self._at
        high = self._chunk.high if size < 0 else min(low + size, self._chunk.high)
        self._at += max(high - low, 0)
        return bytes(self._place.read(self._chunk.file, low, max(high, low)))


def _rebuilt(storage: Any, offset: int, size: Any, stride: Any, _grad: Any, _hooks: Any, *more: Any) -> Any:
    return storage, offset, size, stride, more[0] if more else None


_NAMES: dict[tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in {**DTYPES, **_STORAGES}.items()},
    ("torch.storage", "UntypedStorage"): "",
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt,
    ("collections", "OrderedDict"): dict,
}


def chunk_entry(place: Location, name: str, dtype: str, chunk: StoredChunk) -> tuple[Entry, Layout]:
    """Return where a chunk's elements are in its file, and how they lie there.

    Raises
    ------
    InputError
        The chunk is no archive of such a tensor.
    """
    where = f"{place.name_of(chunk.file)}: tensor {name} at {list(chunk.start)}"
    try:
        begin, num_bytes, found = _archived(place, chunk, where)
        (_, storage_dtype, _, _, _), offset, size, strides, own_dtype = found
        shape, strides = shape_of(size), shape_of(strides)
        if (own_dtype or storage_dtype, shape) != (dtype, chunk.extent):
            text = f"is {own_dtype or storage_dtype} {list(size)}"
            raise InputError(f"{where}: {text}; expected {dtype} {list(chunk.extent)}, as the metadata says")
        last = offset + sum((rows - 1) * stride for rows, stride in zip(shape, strides, strict=True))
    except (*_DAMAGED, TypeError, ValueError) as error:
        raise InputError(f"{where}: is no archive of a tensor ({error}); expected what torch.save writes") from None
    if prod(shape) and not 0 <= offset * DTYPE_BYTES[dtype] <= last * DTYPE_BYTES[dtype] < num_bytes:
        raise InputError(f"{where}: has {num_bytes} bytes; expected {prod(shape)} elements of {dtype}")
    entry = Entry(dtype, chunk.extent, begin + offset * DTYPE_BYTES[dtype])
    return entry, Layout(chunk.extent, (Piece(chunk.start, chunk.extent, 0, strides),))


_DAMAGED = (
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,
    StopIteration,
    struct.error,
    zlib.error,
)
"""What the zip module raises of archives that are none."""


def _archived(place: Location, chunk: StoredChunk, where: str) -> tuple[int, int, Any]:
    """Return where an archive's elements begin in the file, their bytes, and what the tensor is made of."""
    stream = _Range(place, chunk)
    with zipfile.ZipFile(stream) as archive:
        description = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = description.removesuffix("data.pkl")
        found = unpickled(archive.read(description), _NAMES, where)
        if not isinstance(found, tuple) or len(found) != 5 or not isinstance(found[0], tuple):
            raise KeyError("data.pkl holds no tensor")
        if archive.read(folder + "byteorder") != b"little":
            raise InputError(f"{where}: is big-endian; expected little-endian")
        elements = archive.getinfo(f"{folder}data/{found[0][2]}")
        if elements.compress_type != zipfile.ZIP_STORED:
            raise KeyError("the elements are compressed")
        # The name and the extra field of a member's own header may differ in length from those of the directory.
        stream.seek(elements.header_offset + 26)
        lengths = stream.read(4)
    header = 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return chunk.low + elements.header_offset + header, elements.file_size, found


class Archive(NamedTuple):
    """The bytes of an archive before and behind a tensor's elements."""

    before: bytes
    behind: bytes


_ALIGNMENT = 64
_LARGE = 0xFFFFFFFF
"""From here on a number takes a field of 64 bits."""


@lru_cache(maxsize=4096)
def archive_of(dtype: str, shape: tuple[int, ...]) -> Archive:
    """Return the archive of a dense tensor, which ``torch.load`` reads.

    The elements have no checksum, as with ``torch.serialization.set_crc32_options(False)``: nothing reads them for it.
    """
    num_bytes = prod(shape) * DTYPE_BYTES[dtype]
    before, directory = _beginning(_description(dtype, shape))
    header, listed = _member("archive/data/0", len(before), num_bytes, 0, aligned=True)
    before += header
    return Archive(before, directory + listed + _end(4, len(directory + listed), len(before) + num_bytes))


def object_archive(value: object) -> bytes:
    """Return the archive of a plain value, which ``torch.load`` reads."""
    members, directory = _beginning(pickled(value))
    return members + directory + _end(3, len(directory), len(members))


def _beginning(description: bytes) -> tuple[bytes, bytes]:
    """Return the members that every archive begins with, and their lines in the directory."""
    members, directory = b"", b""
    for name, content in (("data.pkl", description), ("byteorder", b"little"), ("version", b"3\n")):
        header, listed = _member(f"archive/{name}", len(members), len(content), zlib.crc32(content))
        members += header + content
        directory += listed
    return members, directory


def _description(dtype: str, shape: tuple[int, ...]) -> bytes:
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    untyped = dtype not in _STORAGE_OF
    storage = Name("torch.storage", "UntypedStorage") if untyped else Name("torch", _STORAGE_OF[dtype])
    size = prod(shape) * (DTYPE_BYTES[dtype] if untyped else 1)
    hooks = Called(Name("collections", "OrderedDict"), ())
    arguments: tuple[object, ...] = (
        Persistent(("storage", storage, "0", "cpu", size)),
        0,
        shape,
        strides,
        False,
        hooks,
    )
    if untyped:
        arguments = (*arguments, Name("torch", TORCH_NAMES[dtype]))
    return pickled(Called(Name("torch._utils", "_rebuild_tensor_v3" if untyped else "_rebuild_tensor_v2"), arguments))


def _member(name: str, begin: int, num_bytes: int, checksum: int, *, aligned: bool = False) -> tuple[bytes, bytes]:
    """Return a member's header, and its line in the directory."""
    large = num_bytes >= _LARGE
    version, shown = (45, _LARGE) if large else (20, num_bytes)
    sizes = struct.pack("<HHQQ", 1, 16, num_bytes, num_bytes) if large else b""
    fields = struct.pack("<HHHHHIII", version, 0, 0, 0, 33, checksum, shown, shown)
    text = name.encode()
    padding = b""
    if aligned:
        room = -(begin + 30 + len(text) + len(sizes) + 4) % _ALIGNMENT
        padding = b"FB" + struct.pack("<H", room) + b"Z" * room
    header = b"PK\x03\x04" + fields + struct.pack("<HH", len(text), len(sizes + padding)) + text + sizes + padding
    behind = struct.pack("<HHHHHII", len(text), len(sizes), 0, 0, 0, 0, begin)
    return header, b"PK\x01\x02" + struct.pack("<H", version) + fields + behind + text + sizes


def _end(count: int, directory_bytes: int, begin: int) -> bytes:
    """Return what is behind a directory of so many members that begins at this byte."""
    if begin < _LARGE:
        return b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, directory_bytes, begin, 0)
    large = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, directory_bytes, begin)
    locator = struct.pack("<IQI", 0, begin + directory_bytes, 1)
    short = struct.pack("<HHHHIIH", 0, 0, count, count, directory_bytes, _LARGE, 0)
    return b"PK\x06\x06" + large + b"PK\x06\x07" + locator + b"PK\x05\x06" + short
