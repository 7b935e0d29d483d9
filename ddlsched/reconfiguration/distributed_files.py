"""Directories of PyTorch distributed checkpoints (``torch.distributed.checkpoint``), read in place without PyTorch.

Such a directory holds a pickle, ``.metadata``, which says in which file and where each chunk of each tensor is; a chunk
is what ``torch.save`` writes, an uncompressed zip archive with the elements in one member. Both are parsed by an
unpickler that makes nothing but plain values and refuses every name that these formats do not use: nothing in the
directory is run.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ddlsched.errors import InputError
from ddlsched.reconfiguration.locations import Location
from ddlsched.reconfiguration.safetensors_files import Entry
from ddlsched.reconfiguration.shards import Layout, Piece
from ddlsched.reconfiguration.tensors import DTYPE_BYTES

__all__ = ["DTYPES", "METADATA", "StoredChunk", "StoredTensor", "chunk_entry", "read_metadata"]

METADATA = ".metadata"

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "uint16": "U16",
    "int16": "I16", "float16": "F16", "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32",
    "uint64": "U64", "int64": "I64", "float64": "F64",
}  # fmt: skip
_STORAGES = {
    "BoolStorage": "BOOL", "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16", "HalfStorage": "F16",
    "BFloat16Storage": "BF16", "IntStorage": "I32", "FloatStorage": "F32", "LongStorage": "I64", "DoubleStorage": "F64",
    "UntypedStorage": "",
}  # fmt: skip


class StoredChunk(NamedTuple):
    """A box of a tensor, and the bytes of a file in which it is archived."""

    start: tuple[int, ...]
    extent: tuple[int, ...]
    file: str
    low: int
    high: int


class StoredTensor(NamedTuple):
    """A tensor of a directory; the dtype is that of safetensors files."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]


class _Record:
    """Stands for an object of a class that is only data."""

    def __init__(self, *_: Any) -> None:
        self.fields: dict[str, Any] = {}
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.fields = state if isinstance(state, dict) else {}
        self.state = state

    def __getattr__(self, name: str) -> Any:
        if name in ("fields", "state"):
            raise AttributeError(name)
        return self.fields.get(name)


class _Plain(pickle.Unpickler):
    """An unpickler that knows some names, each as a function that makes a plain value, and no other."""

    def __init__(self, content: bytes, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(io.BytesIO(content))
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of the format") from None

    def persistent_load(self, identity: Any) -> Any:
        return identity


def _unpickled(content: bytes, names: Mapping[tuple[str, str], Any], where: str) -> Any:
    try:
        return _Plain(content, names).load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        why = str(error) or type(error).__name__
        raise InputError(f"{where}: cannot be read ({why}); expected a PyTorch distributed checkpoint's") from None


def _joined(*parts: str) -> str:
    return "/".join(parts)


_META = "torch.distributed.checkpoint.metadata"
_METADATA_NAMES: dict[tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): str,
    (_META, "_MEM_FORMAT_ENCODING"): int,
    **{
        (_META, name): _Record
        for name in (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
        )
    },
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Record,
    ("collections", "OrderedDict"): dict,
    **{("pathlib", name): _joined for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")},
}


def read_metadata(place: Location) -> dict[str, StoredTensor]:
    """Return the tensors of a directory by name; entries that are other Python objects are left out.

    Raises
    ------
    InputError
        The metadata cannot be read, names what is no part of the format, or contradicts itself.
    """
    where = place.name_of(METADATA)
    found = _unpickled(place.read_all(METADATA), _METADATA_NAMES, where)
    try:
        stored = {(index.fqn, index.offset): info for index, info in found.storage_data.items()}
        items = found.state_dict_metadata.items()
        return {name: _tensor(name, item, stored, place) for name, item in items if item.size is not None}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: is incomplete ({error!r}); expected a PyTorch distributed checkpoint's metadata"
        ) from None


def _tensor(name: str, item: Any, stored: Mapping[Any, Any], place: Location) -> StoredTensor:
    dtype, shape = item.properties.state[0], _sizes(item.size)
    if dtype not in DTYPE_BYTES:
        raise InputError(f"{place.name_of(METADATA)}: tensor {name} is {dtype!r}; expected a dtype of safetensors")
    chunks = tuple(_chunk(name, chunk, stored, place) for chunk in item.chunks)
    for chunk in chunks:
        ends = tuple(first + rows for first, rows in zip(chunk.start, chunk.extent, strict=True))
        if len(ends) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
            text = f"tensor {name} of {list(shape)} has a chunk up to {list(ends)}"
            raise InputError(f"{place.name_of(METADATA)}: {text}; expected chunks within it")
    return StoredTensor(dtype, shape, chunks)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"{value!r} is no shape")
    return value


def _chunk(name: str, chunk: Any, stored: Mapping[Any, Any], place: Location) -> StoredChunk:
    start, extent = _sizes(chunk.offsets), _sizes(chunk.sizes)
    info = stored[name, start]
    file, low, length = info.relative_path, info.offset, info.length
    if info.transform_descriptors:
        text = f"tensor {name} is stored through {list(info.transform_descriptors)}"
        raise InputError(f"{place.name_of(METADATA)}: {text}; expected plain storage")
    if not isinstance(file, str) or "/" in file or "\\" in file or file in ("", ".", "..") or not place.holds(file):
        raise InputError(f"{place.name_of(METADATA)}: {file!r} leaves the directory; expected a file in it")
    if low < 0 or length < 0 or low + length > place.num_bytes(file):
        text = f"tensor {name}: bytes {low} to {low + length} of a file of {place.num_bytes(file)}"
        raise InputError(f"{place.name_of(file)}: {text}: the file is truncated")
    return StoredChunk(start, extent, file, low, low + length)


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


_CHUNK_NAMES: dict[tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in {**DTYPES, **_STORAGES}.items()},
    ("torch.storage", "UntypedStorage"): "",
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt,
    ("collections", "OrderedDict"): dict,
}


def chunk_entry(place: Location, name: str, tensor: StoredTensor, chunk: StoredChunk) -> tuple[Entry, Layout]:
    """Return where a chunk's elements are in its file, and how they lie there.

    Raises
    ------
    InputError
        The chunk is no archive of such a tensor.
    """
    where = f"{place.name_of(chunk.file)}: tensor {name} at {list(chunk.start)}"
    try:
        begin, num_bytes, found = _archived(place, chunk, where)
    except (zipfile.BadZipFile, KeyError, StopIteration, NotImplementedError) as error:
        raise InputError(f"{where}: is no archive of a tensor ({error}); expected what torch.save writes") from None
    (_, storage_dtype, _, _, _), offset, size, strides, dtype = found
    if (dtype or storage_dtype, _sizes(size)) != (tensor.dtype, chunk.extent):
        text = f"is {dtype or storage_dtype} {list(size)}"
        raise InputError(f"{where}: {text}; expected {tensor.dtype} {list(chunk.extent)}, as the metadata says")
    last = offset + sum((rows - 1) * stride for rows, stride in zip(size, strides, strict=True))
    if prod(size) and not 0 <= last * DTYPE_BYTES[tensor.dtype] < num_bytes:
        raise InputError(f"{where}: has {num_bytes} bytes; expected {prod(size)} elements of {tensor.dtype}")
    entry = Entry(tensor.dtype, chunk.extent, begin + offset * DTYPE_BYTES[tensor.dtype])
    return entry, Layout(chunk.extent, (Piece(chunk.start, chunk.extent, 0, tuple(strides)),))


def _archived(place: Location, chunk: StoredChunk, where: str) -> tuple[int, int, Any]:
    """Return where an archive's elements begin in the file, their bytes, and what the tensor is made of."""
    stream = _Range(place, chunk)
    with zipfile.ZipFile(stream) as archive:
        description = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = description.removesuffix("data.pkl")
        found = _unpickled(archive.read(description), _CHUNK_NAMES, where)
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
