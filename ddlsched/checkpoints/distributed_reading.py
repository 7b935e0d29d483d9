"""A PyTorch distributed checkpoint as the source of a change of parallelism."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ddlsched.checkpoints.arrays import local_array
from ddlsched.checkpoints.checkpoint import Checkpoint, described_in
from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.distributed_files import METADATA, Metadata, read_metadata
from ddlsched.checkpoints.division import Box
from ddlsched.checkpoints.division_rules import found_division, place_by_name
from ddlsched.checkpoints.files_beside import HUGGING_FACE_FILES, MEGATRON_FILES, files_beside, has_file
from ddlsched.checkpoints.locations import Location, location_of
from ddlsched.checkpoints.reading import Reading, Replicas
from ddlsched.checkpoints.stored_parts import PartsReading, stored_part, whole_parts
from ddlsched.checkpoints.tensors import Kind, Tensor
from ddlsched.checkpoints.torch_archives import chunk_entry
from ddlsched.errors import InputError

__all__ = ["OWN_DESCRIPTION", "is_distributed", "read_distributed"]

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
        (:func:`~ddlsched.checkpoints.division_rules.found_division`).

    Raises
    ------
    InputError
        Something cannot be read, or the directory lacks a tensor of the description or has one more, or shapes or
        dtypes differ.
    """
    place = location_of(directory)
    stored = read_metadata(place)
    beside = files_beside(place, (*MEGATRON_FILES, *HUGGING_FACE_FILES))
    parts = dict(_parts(place, stored)) | {
        name: whole_parts("U8", (size,), place, name, 0) for name, size in beside.items()
    }
    known = _with_bytes(_described(place, stored, like), stored, beside)
    _refuse_differences(stored, beside, known, place)
    if like is not None or not known.iteration:
        known = dataclasses.replace(known, iteration=_step(place, stored, parts))
    return PartsReading(known, parts, place)


def _described(place: Location, stored: Metadata, like: Path | str | None) -> Checkpoint:
    """Return what is known of the tensors, or of all, apart from what must be read."""
    if like is not None:
        known = Checkpoint.read(like)
        return dataclasses.replace(known, dataset={}, random={}, sha256={}, xxh3={}, paths=stored.paths)
    if has_file(place, OWN_DESCRIPTION):
        return described_in(place, OWN_DESCRIPTION)
    kinds = {
        name: (tensor.shape, frozenset(Box(chunk.start, chunk.extent) for chunk in tensor.chunks))
        for name, tensor in stored.tensors.items()
    }
    degrees, cuts = found_division(kinds)
    tensors = [
        Tensor(name=name, shape=tensor.shape, dtype=tensor.dtype, places=place_by_name(name), cuts=cuts[name])
        for name, tensor in stored.tensors.items()
    ]
    return Checkpoint(collection=TensorCollection(tensors=tuple(tensors), parallelism=degrees), paths=stored.paths)


def _with_bytes(known: Checkpoint, stored: Metadata, beside: Mapping[str, int]) -> Checkpoint:
    """Return a description with the objects and files that it does not name yet."""
    old = known.collection
    sizes = {name: chunk.high - chunk.low for name, chunk in stored.objects.items()}
    more = [
        Tensor(name=name, shape=(size,), dtype="U8", places=place_by_name(name), kind=kind)
        for kind, found in _kinds(sizes, beside)
        for name, size in found.items()
        if name not in old.by_name
    ]
    return dataclasses.replace(known, collection=dataclasses.replace(old, tensors=(*old.tensors, *more)))


def _kinds(objects: Mapping[str, int], beside: Mapping[str, int]) -> tuple[tuple[Kind, Mapping[str, int]], ...]:
    return ("object", objects), ("file", beside)


def _parts(place: Location, stored: Metadata) -> Iterator[tuple[str, list[Replicas]]]:
    for name, tensor in stored.tensors.items():
        found = [(chunk_entry(place, name, tensor.dtype, chunk), chunk.file) for chunk in tensor.chunks]
        yield name, [stored_part(layout, place, file, entry) for (entry, layout), file in found]
    for name, held in stored.objects.items():
        yield name, whole_parts("U8", (held.high - held.low,), place, held.file, held.low)


def _refuse_differences(stored: Metadata, beside: Mapping[str, int], known: Checkpoint, place: Location) -> None:
    where = place.name_of(METADATA)
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in stored.tensors.items()}
    found |= {name: ("U8", (held.high - held.low,)) for name, held in stored.objects.items()}
    found |= {name: ("U8", (size,)) for name, size in beside.items()}
    for tensor in known.collection.tensors:
        if tensor.name not in found:
            raise InputError(f"{where}: tensor {tensor.name} is missing; expected {tensor.dtype} {list(tensor.shape)}")
        dtype, shape = found[tensor.name]
        if (dtype, shape) != (tensor.dtype, tensor.shape):
            text = f"tensor {tensor.name} is {dtype} {list(shape)}"
            raise InputError(f"{where}: {text}; expected {tensor.dtype} {list(tensor.shape)}")
    unknown = sorted(set(found) - set(known.collection.by_name))
    if unknown:
        raise InputError(f"{where}: tensor {unknown[0]} is in no description; expected those described and no other")


def _step(place: Location, stored: Metadata, parts: Mapping[str, Sequence[Replicas]]) -> int:
    """Return how many steps the optimiser has counted, 0 if it has not."""
    for name, tensor in stored.tensors.items():
        if name.rpartition(".")[2] == "step" and tensor.shape == () and tensor.dtype in ("I64", "I32", "F32", "F64"):
            ((_, (source,)),) = parts[name]
            return max(int(np.nan_to_num(local_array(place, source.file, source.entry)[0])), 0)
    return 0
