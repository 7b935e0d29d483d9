"""The metadata of PyTorch distributed checkpoints (``torch.distributed.checkpoint``), parsed without PyTorch.

Such a directory holds a pickle, ``.metadata``, which says in which file and where each chunk of each tensor is, and
each Python object. Nothing in the directory is run.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddlsched.checkpoints.files_beside import is_file_name
from ddlsched.checkpoints.locations import Location
from ddlsched.checkpoints.plain_pickles import Record, number_of, shape_of, text_of, unpickled
from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.checkpoints.torch_archives import DTYPES, StoredChunk
from ddlsched.errors import InputError

__all__ = ["METADATA", "Metadata", "StoredTensor", "read_metadata"]

METADATA = ".metadata"


class StoredTensor(NamedTuple):
    """A tensor of a directory; the dtype is that of safetensors files."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What a directory holds.

    Parameters
    ----------
    tensors, objects
        By key; an object is the bytes of a file that ``torch.save`` wrote, which are not looked into.
    paths
        Where each key lies in the nested state, as PyTorch's default planner says; empty if it does not.
    """

    tensors: Mapping[str, StoredTensor]
    objects: Mapping[str, StoredChunk] = field(default_factory=dict)
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)


_META = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
_RECORDS = {
    _META: (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata",
    ),
    # Megatron-core keeps the plans of its ranks.
    _PLANNER: ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}  # fmt: skip
_NAMES: dict[tuple[str, str], Any] = {
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    ("torch", "Size"): shape_of,
    ("torch.serialization", "_get_layout"): text_of,
    (_META, "_MEM_FORMAT_ENCODING"): number_of,
    (_PLANNER, "WriteItemType"): number_of,
    **{(module, name): Record for module, names in _RECORDS.items() for name in names},
    ("collections", "OrderedDict"): dict,
    **{("pathlib", name): text_of for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")},
}


def read_metadata(place: Location) -> Metadata:
    """Return what a directory holds.

    Raises
    ------
    InputError
        The metadata cannot be read, names what is no part of the format, or contradicts itself.
    """
    where = place.name_of(METADATA)
    found = unpickled(place.read_all(METADATA), _NAMES, where)
    try:
        stored = {(index.fqn, index.offset): info for index, info in found.storage_data.items()}
        items = found.state_dict_metadata.items()
        return Metadata(
            tensors={name: _tensor(name, item, stored, place) for name, item in items if item.size is not None},
            objects={
                name: _stored(name, (), (), stored[name, None], place) for name, item in items if item.size is None
            },
            paths=_paths(found.planner_data, found.state_dict_metadata),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{where}: is incomplete ({repr(error)[:200]}); expected a PyTorch distributed checkpoint's metadata"
        ) from None


def _paths(planner_data: Any, names: Mapping[str, Any]) -> dict[str, tuple[str | int, ...]]:
    """Return the paths of keys, none where a planner other than the default one has left something else."""
    if not isinstance(planner_data, dict):
        return {}
    return {name: path for name, path in planner_data.items() if name in names and _is_path(path)}


def _is_path(path: Any) -> bool:
    return isinstance(path, tuple) and bool(path) and all(type(part) in (str, int) for part in path)


def _tensor(name: str, item: Any, stored: Mapping[Any, Any], place: Location) -> StoredTensor:
    dtype, shape = item.properties.state[0], shape_of(item.size)
    if dtype not in DTYPE_BYTES:
        text = f"tensor {name} is {reprlib.repr(dtype)}"
        raise InputError(f"{place.name_of(METADATA)}: {text}; expected a dtype of safetensors")
    chunks = []
    for chunk in item.chunks:
        start, extent = shape_of(chunk.offsets), shape_of(chunk.sizes)
        ends = tuple(first + rows for first, rows in zip(start, extent, strict=True))
        if len(ends) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
            text = f"tensor {name} of {list(shape)} has a chunk up to {list(ends)}"
            raise InputError(f"{place.name_of(METADATA)}: {text}; expected chunks within it")
        if 0 not in extent:
            chunks.append(_stored(name, start, extent, stored[name, start], place))
    return StoredTensor(dtype, shape, tuple(chunks))


def _stored(name: str, start: tuple[int, ...], extent: tuple[int, ...], info: Any, place: Location) -> StoredChunk:
    file, low, length = info.relative_path, info.offset, info.length
    if info.transform_descriptors:
        text = f"tensor {name} is stored through {reprlib.repr(info.transform_descriptors)}"
        raise InputError(f"{place.name_of(METADATA)}: {text}; expected plain storage")
    if not is_file_name(file) or not place.holds(file):
        raise InputError(f"{place.name_of(METADATA)}: {file!r} leaves the directory; expected a file in it")
    if low < 0 or length < 0 or low + length > place.num_bytes(file):
        text = f"tensor {name}: bytes {low} to {low + length} of a file of {place.num_bytes(file)}"
        raise InputError(f"{place.name_of(file)}: {text}: the file is truncated")
    return StoredChunk(start, extent, file, low, low + length)
