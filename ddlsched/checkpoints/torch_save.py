"""A file that ``torch.save`` wrote, with tensors in nested dictionaries and lists, as the source of a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import TensorCollection
from ddlsched.checkpoints.division_rules import named_tensor
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.parallelism import StoredParallelism
from ddlsched.checkpoints.reading import Replicas
from ddlsched.checkpoints.shards import Layout, Piece
from ddlsched.checkpoints.stored_parts import PartsReading, stored_part
from ddlsched.checkpoints.torch_archives import SavedArchive, SavedTensor, StoredChunk, damage_explained
from ddlsched.errors import InputError

__all__ = ["read_saved"]

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
    parts: dict[str, list[Replicas]] = {}
    tensors, paths, left_out = [], {}, 0
    with damage_explained(where):
        archive = SavedArchive(place, chunk, where, _MOST_BYTES)
        for path, found in _leaves(archive.value):
            if not isinstance(found, SavedTensor):
                left_out += 1
                continue
            name, (entry, strides) = ".".join(map(str, path)), archive.entry(found)
            if name in parts:
                raise InputError(f"{where}: two tensors would be called {name}; expected names of their own")
            layout = Layout(entry.shape, (Piece((0,) * len(entry.shape), entry.shape, 0, strides),))
            parts[name] = [stored_part(layout, place, file.name, entry)] if entry.num_bytes else []
            tensors.append(named_tensor(name, entry.shape, entry.dtype))
            paths[name] = path
    if not tensors:
        raise InputError(f"{where}: holds no tensor; expected the state of a model or a training run")
    collection = TensorCollection(tensors=tuple(tensors), parallelism=StoredParallelism())
    reading = PartsReading(Checkpoint(collection=collection, paths=paths), parts, place)
    reading.num_left_out, reading.only_read = left_out, where
    return reading


def _leaves(value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield what lies in nested dictionaries and lists, each with the keys that lead to it."""
    left: list[tuple[_Path, Any]] = [((), value)]
    for _ in range(_MOST_VALUES):
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
