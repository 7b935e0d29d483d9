"""Megatron-core's distributed checkpoints (``torch_dist``): PyTorch's, with layers stacked and two files beside them.

References
----------
https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/dist_checkpointing.html: a tensor that all layers
have is one whose first dimension is the layer (``decoder.layers.mlp.linear_fc1.weight``), unless the layers differ
(``decoder.layers.0. ...``); ``common.pt`` holds what is no sharded tensor, ``metadata.json`` the names of the backends.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.distributed_reading import METADATA, OWN_DESCRIPTION, divided_as_stored, read_distributed
from ddlsched.checkpoints.distributed_writing import TorchFiles
from ddlsched.checkpoints.file_forms import MEGATRON_FILES, has_file
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import Held, PartsReading, Reading, Replicas
from ddlsched.checkpoints.tensors import Layout, Piece, Tensor
from ddlsched.checkpoints.torch_archives import object_archive
from ddlsched.checkpoints.translation import megatron_name
from ddlsched.errors import InputError

_COMMON, _BACKENDS = MEGATRON_FILES
_STACKED = re.compile(r"((?:^|\.)layers\.)(?!\d)")


def is_megatron(directory: Path | str) -> bool:
    """Return whether a distributed checkpoint is Megatron-core's."""
    return has_file(location_of(directory), _COMMON)


def read_megatron(directory: Path | str) -> PartsReading:
    """Return a Megatron-core checkpoint as what :func:`~ddlsched.checkpoints.resharding.reshard` reads.

    A stacked tensor becomes one a layer, with the layer's number in its name. Objects and ``common.pt`` are kept as
    they are: a state of random numbers that is a rank's own stays that rank's.

    Raises
    ------
    InputError
        Something cannot be read, or stacked tensors have different numbers of layers.
    """
    reading = PartsReading.of(read_distributed(directory))
    held, paths = reading.held(), dict(reading.described.paths)
    _refuse_other_depths(reading.job.tensors, reading)
    new = [(tensor, parts) for tensor, parts in held if not _is_stacked(tensor)]
    for tensor, parts in held:
        for layer in range(tensor.shape[0]) if _is_stacked(tensor) else ():
            single = _layer_of(tensor, layer)
            new.append((single, [one for part in parts for one in _part_of_layer(part, layer)]))
            paths[single.name] = (tensor.name, layer)
    same = {tensor.name: tensor.name for tensor, _ in new}
    divided = None if has_file(reading.place, OWN_DESCRIPTION) else divided_as_stored(new, halves=True)
    return reading.renewed(new, same, paths, divided)


def _is_stacked(tensor: Tensor) -> bool:
    return tensor.kind == "values" and bool(tensor.shape) and _STACKED.search(tensor.name) is not None


def _refuse_other_depths(tensors: Sequence[Tensor], reading: Reading) -> None:
    depths = {tensor.shape[0]: tensor.name for tensor in tensors if _is_stacked(tensor)}
    if len(depths) > 1:
        (first, name), (other, another), *_ = depths.items()
        text = f"tensors {name} and {another} have {first} and {other} layers"
        raise InputError(f"{reading.place.name_of(METADATA)}: {text}; expected as many in all that are stacked")


def _layer_of(tensor: Tensor, layer: int) -> Tensor:
    """Return one layer's tensor of a stack."""
    name = _STACKED.sub(rf"\g<1>{layer}.", tensor.name, count=1)
    cuts = tuple(dataclasses.replace(cut, dim=cut.dim - 1) for cut in tensor.cuts if cut.dim)
    return dataclasses.replace(tensor, name=name, shape=tensor.shape[1:], places=(layer,), cuts=cuts)


def _part_of_layer(part: Replicas, layer: int) -> Iterator[Replicas]:
    """Yield what a part of a stack has of a layer."""
    for piece in part.layout.pieces:
        if piece.start[0] <= layer < piece.start[0] + piece.extent[0]:
            single = piece.row(layer - piece.start[0])
            yield Replicas(Layout(single.extent, (single,)), part.sources)


def stacked(reading: Reading) -> PartsReading:
    """Return a checkpoint as Megatron-core has it.

    Tensors of layers are stacked again that were when it was Megatron-core's; those of this package's models get the
    names that Megatron-core gives them (:func:`~ddlsched.checkpoints.translation.megatron_name`).

    Raises
    ------
    InputError
        Layers of a stack are missing, or a model is not divided as Megatron-core does.
    """
    old = PartsReading.of(reading)
    new: list[Held] = []
    names, paths = {}, {}
    stacks: dict[str, dict[int, Held]] = defaultdict(dict)
    for tensor, parts in old.held():
        name = megatron_name(tensor)
        renamed = dataclasses.replace(tensor, name=name), parts
        match old.described.paths.get(tensor.name):
            case (str(stack), int(layer)) if _STACKED.search(stack):
                stacks[stack][layer] = renamed
                continue
            case tuple(path):
                paths[name] = path
        names[tensor.name] = name
        new.append(renamed)
    for name, layers in stacks.items():
        stacked_parts = [_stacked_part(part, layer) for layer, (_, held) in layers.items() for part in held]
        new.append((_stack(name, {layer: tensor for layer, (tensor, _) in layers.items()}), stacked_parts))
    return old.renewed(new, names, paths)


def _stack(name: str, layers: Mapping[int, Tensor]) -> Tensor:
    first, *_ = layers.values()
    if sorted(layers) != list(range(len(layers))) or len({(one.dtype, one.shape) for one in layers.values()}) > 1:
        raise InputError(f"tensor {name}: its layers are {sorted(layers)}; expected all from 0, of one dtype and shape")
    cuts = tuple(dataclasses.replace(cut, dim=cut.dim + 1) for cut in first.cuts)
    places = tuple(sorted(layers))
    return dataclasses.replace(first, name=name, shape=(len(layers), *first.shape), places=places, cuts=cuts, flat="")


def _stacked_part(part: Replicas, layer: int) -> Replicas:
    pieces = tuple(
        Piece((layer, *start), (1, *extent), offset, (math.prod(extent), *strides))
        for start, extent, offset, strides in part.layout.pieces
    )
    return Replicas(Layout((1, *part.layout.shape), pieces), part.sources)


class _MegatronFiles(TorchFiles):
    """PyTorch's form with the files beside it, made anew where they are not carried along."""

    def descriptions(self, job: Checkpoint, held: Checkpoint) -> Mapping[str, bytes]:
        made = {
            _COMMON: object_archive({"iteration": job.iteration, "checkpoint_version": 3.0}),
            _BACKENDS: json.dumps(_TORCH_DIST).encode(),
        }
        new = {name: content for name, content in made.items() if name not in held.collection.by_name}
        return {**super().descriptions(job, held), **new}


_TORCH_DIST = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
MEGATRON = _MegatronFiles()
"""The form of Megatron-core's distributed checkpoints; layers are stacked by :func:`stacked`."""
