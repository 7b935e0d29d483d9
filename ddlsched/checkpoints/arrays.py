"""Tensors as numpy arrays: the part that a rank holds, whole tensors from their parts, small checkpoints in one go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.locations import Location
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.safetensors_files import header_bytes
from ddlsched.checkpoints.tensors import Layout, Piece, Tensor, numpy_dtype
from ddlsched.errors import InputError
from ddlsched.io.files import replacing

Array: TypeAlias = npt.NDArray[Any]


def view_of(flat: Array, piece: Piece) -> Array:
    """Return a piece of a rank's array, given as one dimension, without a copy."""
    strides = tuple(stride * flat.itemsize for stride in piece.strides)
    return np.lib.stride_tricks.as_strided(flat[piece.offset :], piece.extent, strides)


def box_of(piece: Piece) -> tuple[slice, ...]:
    """Return the index of a piece's box in the whole tensor."""
    return tuple(slice(first, first + rows) for first, rows in zip(piece.start, piece.extent, strict=True))


def part_of(whole: Array, layout: Layout) -> Array:
    """Return what a rank holds of a whole tensor; padding is zero."""
    flat = np.zeros(layout.num_elements, dtype=whole.dtype)
    for piece in layout.pieces:
        view_of(flat, piece)[...] = whole[box_of(piece)]
    return flat.reshape(layout.shape)


def whole_tensor(checkpoint: Checkpoint, place: Location, name: str) -> Array:
    """Return a whole tensor, of type :func:`numpy_dtype`, put together from the first replica of each part.

    Raises
    ------
    InputError
        The checkpoint has no such tensor, or a file of it cannot be used.
    """
    tensor = checkpoint.collection.by_name.get(name)
    if tensor is None:
        raise InputError(f"{place.name_of('')}: has no tensor {name!r}")
    whole = np.zeros(tensor.shape, dtype=numpy_dtype(tensor.dtype))
    reading = Reading(checkpoint, place)
    for layout, ranks in checkpoint.collection.shards(tensor):
        source = reading.source(ranks[0], name)
        for piece in layout.pieces:
            whole[box_of(piece)] = source.view(piece)
    return whole


def write_rank(directory: Path, checkpoint: Checkpoint, rank: int, part: Callable[[Tensor, Layout], Array]) -> None:
    """Write one rank's file, whole or not at all.

    Parameters
    ----------
    part
        Returns the rank's array of a tensor, of the layout's shape and :func:`numpy_dtype`.
    """
    held = checkpoint.collection.arrays[rank]
    tensors = checkpoint.collection.by_name
    header, _ = header_bytes({name: (tensors[name].dtype, layout.shape) for name, layout in held.items()})
    with replacing(directory / checkpoint.files[rank], "file of a rank") as path, path.open("wb") as file:
        file.write(header)
        for name, layout in held.items():
            array = part(tensors[name], layout)
            if (array.shape, array.dtype) != (layout.shape, numpy_dtype(tensors[name].dtype)):
                raise InputError(
                    f"rank {rank}, tensor {name}: is {array.dtype} {list(array.shape)}; "
                    f"expected {numpy_dtype(tensors[name].dtype)} {list(layout.shape)}"
                )
            file.write(np.ascontiguousarray(array).ravel().view(np.uint8).data)


def write_checkpoint(directory: Path, checkpoint: Checkpoint, wholes: Mapping[str, Array]) -> None:
    """Write a checkpoint whose whole tensors fit into memory: each rank's file, then the description.

    Parameters
    ----------
    wholes
        Whole tensors by name, of :func:`numpy_dtype`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(checkpoint.collection.num_ranks):
        write_rank(directory, checkpoint, rank, lambda tensor, layout: part_of(wholes[tensor.name], layout))
    checkpoint.write_description(directory)
