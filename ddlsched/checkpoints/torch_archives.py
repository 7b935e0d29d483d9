"""Archives of single tensors as ``torch.save`` writes them: where their elements lie, and the bytes around them.

Such an archive is an uncompressed zip file with a pickle that describes the tensor and a member with its elements.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ddlsched.checkpoints.division import named_tensor
from ddlsched.checkpoints.locations import Location, location_of
from ddlsched.checkpoints.plain_pickles import Name, Persistent, PickledCall, number_of, pickled, shape_of, unpickled
from ddlsched.checkpoints.reading import Held, PartsReading, stored_part
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Piece
from ddlsched.errors import InputError

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
_STORAGE_OF = {dtype: name for name, dtype in _STORAGES.items()}


class StoredChunk(NamedTuple):
    """A box of a tensor, and the bytes of a file in which it is archived."""

    start: tuple[int, ...]
    extent: tuple[int, ...]
    file: str
    low: int
    high: int


class _Range(io.RawIOBase):
    """Some bytes of a file, as a file: what a zip archive is read from without reading what is in it."""

    def __init__(self, place: Location, chunk: StoredChunk, most_bytes: int) -> None:
        self._place, self._chunk, self._at, self._most_bytes = place, chunk, 0, most_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._at, self._chunk.high - self._chunk.low)[whence]
        if base + offset < 0:
            raise OSError(f"byte {base + offset} of an archive")
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        if size > self._most_bytes:
            raise zipfile.BadZipFile("its directory or a description is too long")
        low = self._chunk.low + self._at
        high = self._chunk.high if size < 0 else min(low + size, self._chunk.high)
        self._at += max(high - low, 0)
        return bytes(self._place.read(self._chunk.file, low, max(high, low)))


class SavedTensor(NamedTuple):
    """A tensor as its pickle describes it: in which storage it lies, from which element on, and how."""

    storage: Any
    offset: Any
    size: Any
    strides: Any
    own_dtype: Any

    @property
    def dtype(self) -> str:
        """By the name of safetensors files."""
        _, of_storage, *_ = self.storage
        return str(self.own_dtype or of_storage)


def _rebuilt(storage: Any, offset: Any, size: Any, strides: Any, _grad: Any, _hooks: Any, *more: Any) -> SavedTensor:
    return SavedTensor(storage, offset, size, strides, more[0] if more else None)


_NAMES: dict[tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in {**DTYPES, **_STORAGES}.items()},
    ("torch.storage", "UntypedStorage"): "",
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, _grad, _hooks: tensor,
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
    with _damage_explained(where):
        archive = SavedArchive(place, chunk, where)
        found = archive.value
        if not isinstance(found, SavedTensor):
            raise KeyError("data.pkl holds no tensor")
        if (found.dtype, shape_of(found.size)) != (dtype, chunk.extent):
            text = f"is {found.dtype} {list(found.size)}"
            raise InputError(f"{where}: {text}; expected {dtype} {list(chunk.extent)}, as the metadata says")
        entry, strides = archive.entry(found)
    return entry, Layout(chunk.extent, (Piece(chunk.start, chunk.extent, 0, strides),))


@contextmanager
def _damage_explained(where: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (*_DAMAGED, TypeError, ValueError) as error:
        raise InputError(f"{where}: is no archive of a tensor ({error}); expected what torch.save writes") from None


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


class SavedArchive:
    """What ``torch.save`` wrote: its value, in which tensors stand for their elements, and where these are.

    Parameters
    ----------
    place, chunk
        The bytes of a file that it is.
    where
        How messages call it.
    most_bytes
        Of its description, and of the directory of its members.
    """

    def __init__(self, place: Location, chunk: StoredChunk, where: str, most_bytes: int = 1 << 20) -> None:
        self._begin, self._where, self._most_bytes = chunk.low, where, most_bytes
        self._stream = _Range(place, chunk, most_bytes)
        self._archive = zipfile.ZipFile(self._stream)
        description = next(name for name in self._archive.namelist() if name.endswith("/data.pkl"))
        self._folder = description.removesuffix("data.pkl")
        self.value = unpickled(self._content("data.pkl"), _NAMES, where)
        if self._content("byteorder") != b"little":
            raise InputError(f"{where}: is big-endian; expected little-endian")

    def _content(self, name: str) -> bytes:
        """Return a small member, which is not compressed: few bytes of another could become very many."""
        member = self._archive.getinfo(self._folder + name)
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > self._most_bytes:
            raise KeyError(f"{name} is compressed, or too long")
        return self._archive.read(member)

    def entry(self, tensor: SavedTensor) -> tuple[Entry, tuple[int, ...]]:
        """Return where a tensor's first element is in the file, and its strides; the tensor lies within its storage."""
        shape, strides, offset = shape_of(tensor.size), shape_of(tensor.strides), number_of(tensor.offset)
        last = offset + sum((rows - 1) * stride for rows, stride in zip(shape, strides, strict=True))
        elements = self._archive.getinfo(f"{self._folder}data/{tensor.storage[2]}")
        if elements.compress_type != zipfile.ZIP_STORED:
            raise KeyError("the elements are compressed")
        size, num_bytes = DTYPE_BYTES[tensor.dtype], elements.file_size
        if prod(shape) and (offset < 0 or (last + 1) * size > num_bytes):
            text = f"has {num_bytes} bytes; expected {prod(shape)} elements of {tensor.dtype}"
            raise InputError(f"{self._where}: {text}")
        # The name and the extra field of a member's own header may differ in length from those of the directory.
        self._stream.seek(elements.header_offset + 26)
        lengths = self._stream.read(4)
        header = 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        begin = self._begin + elements.header_offset + header
        return Entry(tensor.dtype, shape, begin + offset * size), strides


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
    hooks = PickledCall(Name("collections", "OrderedDict"), ())
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
    return pickled(
        PickledCall(Name("torch._utils", "_rebuild_tensor_v3" if untyped else "_rebuild_tensor_v2"), arguments)
    )


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


_MOST_BYTES = 1 << 26
"""Of what describes the tensors."""
_MOST_DEPTH, _MOST_VALUES = 32, 1_000_000
_Path: TypeAlias = tuple[str | int, ...]


def read_saved(file: Path) -> PartsReading:
    """Return a file of ``torch.save`` as what :func:`~ddlsched.checkpoints.resharding.reshard` reads.

    A tensor is called by the keys that lead to it, joined by points, as PyTorch's distributed checkpoints do. What is
    no tensor is left out, and counted.

    Raises
    ------
    InputError
        It is damaged, holds a class that is not part of a plain state, or no tensor.
    """
    place, where = location_of(file.parent), str(file)
    chunk = StoredChunk((), (), file.name, 0, place.num_bytes(file.name))
    held: list[Held] = []
    paths, left_out = dict[str, _Path](), 0
    with _damage_explained(where):
        archive = SavedArchive(place, chunk, where, _MOST_BYTES)
        for path, found in _leaves(archive.value):
            if not isinstance(found, SavedTensor):
                left_out += 1
                continue
            name, (entry, strides) = ".".join(map(str, path)), archive.entry(found)
            if name in paths:
                raise InputError(f"{where}: two tensors would be called {name}; expected names of their own")
            layout = Layout(entry.shape, (Piece((0,) * len(entry.shape), entry.shape, 0, strides),))
            parts = [stored_part(layout, place, file.name, entry)] if entry.num_bytes else []
            held.append((named_tensor(name, entry.shape, entry.dtype), parts))
            paths[name] = path
    if not held:
        raise InputError(f"{where}: holds no tensor; expected the state of a model or a training run")
    reading = PartsReading.undivided(held, place, paths=paths)
    reading.num_left_out, reading.only_read = left_out, where
    return reading


def _leaves(value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield what lies in nested dictionaries and lists, each with the keys that lead to it."""
    left: list[tuple[_Path, Any]] = [((), value)]
    for _ in range(_MOST_VALUES + 1):
        if not left:
            return
        path, found = left.pop()
        if isinstance(found, dict):
            items = list(found.items())
        elif isinstance(found, list | tuple) and not isinstance(found, SavedTensor):
            items = list(enumerate(found))
        else:
            yield path or ("tensor",), found
            continue
        if len(path) == _MOST_DEPTH or not all(type(key) in (str, int) for key, _ in items):
            raise ValueError("a state of other keys than texts and numbers, or of too many levels")
        left += [((*path, key), item) for key, item in reversed(items)]
    raise ValueError(f"a state of more than {_MOST_VALUES:,} values")
