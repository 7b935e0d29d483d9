"""PyTorch distributed checkpoints (``torch.distributed.checkpoint``) as the source of a change, read without PyTorch.

Such a directory holds a pickle, ``.metadata``, which says in which file and where each chunk of each tensor is, and
each Python object. Nothing in the directory is run.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.checkpoints.checkpoint import Checkpoint, described_in
from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.division import Box, found_division, place_by_name
from ddlsched.checkpoints.file_forms import HUGGING_FACE_FILES, MEGATRON_FILES, files_beside, has_file, held_bytes
from ddlsched.checkpoints.locations import Location, location_of, refuse_leaving
from ddlsched.checkpoints.plain_pickles import Record, number_of, shape_of, text_of, unpickled
from ddlsched.checkpoints.reading import Held, PartsReading, Reading, stored_part
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Tensor
from ddlsched.checkpoints.torch_archives import DTYPES, StoredChunk, chunk_entry
from ddlsched.errors import InputError

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
    objects: Mapping[str, StoredChunk]
    paths: Mapping[str, tuple[str | int, ...]]


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
    refuse_leaving(place, file, place.name_of(METADATA))
    if low < 0 or length < 0 or low + length > place.num_bytes(file):
        text = f"tensor {name}: bytes {low} to {low + length} of a file of {place.num_bytes(file)}"
        raise InputError(f"{place.name_of(file)}: {text}: the file is truncated")
    return StoredChunk(start, extent, file, low, low + length)


OWN_DESCRIPTION = "ddlsched.json"
"""A description, as in ``checkpoint.json``, of a distributed checkpoint that this package wrote."""


def is_distributed(directory: Path | str) -> bool:
    """Return whether a folder or URL holds a PyTorch distributed checkpoint."""
    try:
        return location_of(directory).num_bytes(METADATA) > 0
    except InputError:
        return False


def read_distributed(directory: Path | str, like: Path | str | None = None) -> Reading:
    """Return a PyTorch distributed checkpoint as what :func:`~ddlsched.checkpoints.resharding.reshard` reads.

    Parameters
    ----------
    directory
        Folder or URL with ``.metadata``.
    like
        A checkpoint of this package whose tensors have the same names, shapes and dtypes: how each is to be divided is
        taken from it, and the model. None: as the directory's ``ddlsched.json`` says, which also holds iteration, data
        set and random numbers; without one, as the chunks are cut
        (:func:`~ddlsched.checkpoints.division.found_division`).

    Raises
    ------
    InputError
        Something cannot be read, or the directory lacks a tensor of the description or has one more, or shapes or
        dtypes differ.
    """
    place = location_of(directory)
    stored = read_metadata(place)
    held = list(_held(place, stored))
    known = _with_bytes(_described(place, stored, held, like), held)
    _refuse_differences(held, known, place)
    if like is not None or not known.iteration:
        known = dataclasses.replace(known, iteration=_step(held))
    return PartsReading(known, held, place)


def _held(place: Location, stored: Metadata) -> Iterator[Held]:
    """Yield the tensors, the objects and the files beside them."""
    for name, tensor in stored.tensors.items():
        entries = [(chunk_entry(place, name, tensor.dtype, chunk), chunk.file) for chunk in tensor.chunks]
        parts = [stored_part(layout, place, file, entry) for (entry, layout), file in entries]
        yield Tensor(name=name, shape=tensor.shape, dtype=tensor.dtype, places=place_by_name(name)), parts
    for name, chunk in stored.objects.items():
        yield held_bytes("object", name, chunk.high - chunk.low, place, chunk.file, chunk.low)
    yield from files_beside(place, (*MEGATRON_FILES, *HUGGING_FACE_FILES))


def _described(place: Location, stored: Metadata, held: Sequence[Held], like: Path | str | None) -> Checkpoint:
    """Return what is known of the tensors, or of all, apart from what must be read."""
    if like is not None:
        known = Checkpoint.read(like)
        return dataclasses.replace(known, dataset={}, random={}, sha256={}, xxh3={}, paths=stored.paths)
    if has_file(place, OWN_DESCRIPTION):
        return described_in(place, OWN_DESCRIPTION)
    return Checkpoint(collection=divided_as_stored(held), paths=stored.paths)


def divided_as_stored(held: Sequence[Held], *, halves: bool = False) -> TensorCollection:
    """Return tensors as ranks divide them that have these parts; ``halves`` is that of :func:`~.found_division`."""
    kinds = {
        tensor.name: (tensor.shape, frozenset(Box(*part.layout.pieces[0][:2]) for part in parts))
        for tensor, parts in held
        if tensor.kind == "values"
    }
    degrees, cuts = found_division(kinds, halves=halves)
    divided = (dataclasses.replace(tensor, cuts=cuts.get(tensor.name, ())) for tensor, _ in held)
    return TensorCollection(tensors=tuple(divided), parallelism=degrees)


def _with_bytes(known: Checkpoint, held: Sequence[Held]) -> Checkpoint:
    """Return a description with the objects and files that it does not name yet."""
    old = known.collection
    more = [tensor for tensor, _ in held if tensor.kind != "values" and tensor.name not in old.by_name]
    return dataclasses.replace(known, collection=dataclasses.replace(old, tensors=(*old.tensors, *more)))


def _refuse_differences(held: Sequence[Held], known: Checkpoint, place: Location) -> None:
    where, there = place.name_of(METADATA), {tensor.name: tensor for tensor, _ in held}
    for tensor in known.collection.tensors:
        expected, found = f"expected {tensor.dtype} {list(tensor.shape)}", there.get(tensor.name)
        if found is None:
            raise InputError(f"{where}: tensor {tensor.name} is missing; {expected}")
        if (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            raise InputError(f"{where}: tensor {tensor.name} is {found.dtype} {list(found.shape)}; {expected}")
    unknown = sorted(set(there) - set(known.collection.by_name))
    if unknown:
        raise InputError(f"{where}: tensor {unknown[0]} is in no description; expected those described and no other")


def _step(held: Sequence[Held]) -> int:
    """Return how many steps the optimiser has counted, 0 if it has not."""
    for tensor, parts in held:
        name = tensor.name.rpartition(".")[2]
        if name == "step" and tensor.shape == () and tensor.dtype in ("I64", "I32", "F32", "F64"):
            ((layout, (source,)),) = parts
            return max(int(np.nan_to_num(source.view(layout.pieces[0]))), 0)
    return 0
