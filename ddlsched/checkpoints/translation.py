"""From Hugging Face's names and layouts of weights to Megatron-core's, and back.

Nothing is copied: what comes out is a reading of the same files, in which tensors have other names, and their rows
other places.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ddlsched.checkpoints.division import named_tensor
from ddlsched.checkpoints.name_families import FAMILIES, Rows, Weight
from ddlsched.checkpoints.reading import PartsReading, Reading, Replicas
from ddlsched.checkpoints.tensors import Layout, Piece, Tensor
from ddlsched.errors import InputError
from ddlsched.units import is_whole

__all__ = ["with_hugging_face_names", "with_megatron_names"]

_CONFIG = "config.json"


class _Model(NamedTuple):
    """What the layout of a model's weights follows from."""

    heads: int
    groups: int
    head_size: int
    vocabulary: int


class _Run(NamedTuple):
    """Rows that stay together: where they begin in one of Hugging Face's tensors, and in Megatron-core's."""

    tensor: int
    theirs: int
    megatron: int
    rows: int


class _Named(NamedTuple):
    """A weight under its very names, and where it lies in the stack of all layers."""

    weight: Weight
    stack: tuple[str | int, ...] | None = None


class _New(NamedTuple):
    """A tensor under its new name, its parts, and where it lies in a nested state, if that is known."""

    tensor: Tensor
    parts: list[Replicas]
    path: tuple[str | int, ...] | None


def with_megatron_names(reading: Reading) -> Reading:
    """Return a checkpoint with Hugging Face's names as one with Megatron-core's; any other as it is.

    Which model it is says the ``config.json`` that lies, or was carried along, beside the tensors. Tensors that its
    family does not have keep their names. A layer's tensors are marked to be stacked with those of other layers.

    Raises
    ------
    InputError
        ``config.json`` contradicts the tensors, or lacks a number.
    """
    return _translated(reading, to_megatron=True)


def with_hugging_face_names(reading: Reading) -> Reading:
    """Return a checkpoint with Megatron-core's names as one with Hugging Face's; any other as it is.

    Padding of the vocabulary is left out. What else has no name of Hugging Face's keeps its own.

    Raises
    ------
    InputError
        As :func:`with_megatron_names`.
    """
    return _translated(reading, to_megatron=False)


def _translated(reading: Reading, *, to_megatron: bool) -> Reading:
    config = _config(reading)
    old = PartsReading.of(reading)
    tensors = old.described.collection.by_name
    olds = {
        named: named.weight.theirs if to_megatron else (named.weight.megatron,)
        for named in _named_weights(config.get("model_type"), old)
    }
    found = {named: names for named, names in olds.items() if all(name in tensors for name in names)}
    if not found:
        return reading
    model, parts = _model(config, reading.place.name_of(_CONFIG)), old.parts()
    made = _to_megatron if to_megatron else _to_hugging_face
    new = [one for named, names in found.items() for one in made(named, model, [(tensors[n], parts[n]) for n in names])]
    return _replaced(old, {name for names in found.values() for name in names}, new)


def _named_weights(kind: object, reading: PartsReading) -> Iterator[_Named]:
    """Yield the weights that a model of a kind may have, each layer's under its own names."""
    places = {place for tensor in reading.job.tensors for place in tensor.places}
    layers = sorted(place for place in places if isinstance(place, int))
    for weight in FAMILIES.get(kind, ()) if isinstance(kind, str) else ():
        if "{}" not in weight.megatron:
            yield _Named(weight)
            continue
        for layer in layers:
            theirs = tuple(name.format(layer) for name in weight.theirs)
            stack = (weight.megatron.replace(".{}.", "."), layer)
            yield _Named(weight._replace(megatron=weight.megatron.format(layer), theirs=theirs), stack)


_Old: TypeAlias = tuple[Tensor, list[Replicas]]


def _to_megatron(named: _Named, model: _Model, old: Sequence[_Old]) -> list[_New]:
    weight = named.weight
    shapes = [_turned(tensor.shape, weight) for tensor, _ in old]
    runs = _runs(weight, model, [shape[0] for shape in shapes], sum(shape[0] for shape in shapes))
    parts = [
        moved
        for number, (_, of_tensor) in enumerate(old)
        for part in of_tensor
        for moved in _moved(
            _turned_part(part, weight), [(run.theirs, run.megatron, run.rows) for run in runs if run.tensor == number]
        )
    ]
    shape = (sum(run.rows for run in runs), *shapes[0][1:])
    return [_New(named_tensor(weight.megatron, shape, old[0][0].dtype), parts, named.stack)]


def _to_hugging_face(named: _Named, model: _Model, old: Sequence[_Old]) -> list[_New]:
    weight = named.weight
    ((tensor, parts),) = old
    rows, *rest = tensor.shape
    sizes = _sizes(weight, model, rows)
    runs = _runs(weight, model, sizes, rows)
    return [
        _New(
            named_tensor(name, _turned((size, *rest), weight), tensor.dtype),
            [
                _turned_part(moved, weight)
                for part in parts
                for moved in _moved(
                    part, [(run.megatron, run.theirs, run.rows) for run in runs if run.tensor == number]
                )
            ],
            None,
        )
        for number, (name, size) in enumerate(zip(weight.theirs, sizes, strict=True))
    ]


def _turned(values: tuple[int, ...], weight: Weight) -> tuple[int, ...]:
    return values[::-1] if weight.transposed else values


def _sizes(weight: Weight, model: _Model, rows: int) -> list[int]:
    """Return the rows of each of Hugging Face's tensors that a tensor of so many rows holds."""
    if weight.rows is Rows.groups and len(weight.theirs) == 3:
        return [heads * model.head_size for heads in (model.heads, model.groups, model.groups)]
    if weight.rows is Rows.vocabulary and rows >= model.vocabulary:
        return [model.vocabulary]
    if rows % len(weight.theirs):
        raise InputError(f"tensor {weight.megatron}: has {rows} rows; expected a multiple of {len(weight.theirs)}")
    return [rows // len(weight.theirs)] * len(weight.theirs)


def _runs(weight: Weight, model: _Model, sizes: Sequence[int], rows: int) -> list[_Run]:
    """Return which rows go where; ``rows`` is the size of Megatron-core's tensor."""
    if weight.rows is Rows.groups:
        return _grouped(weight, model, sizes, rows)
    if weight.rows is Rows.vocabulary and sizes[0] != model.vocabulary:
        text = f"has {sizes[0]} rows, and {_CONFIG} says vocab_size {model.vocabulary}"
        raise InputError(f"tensor {weight.megatron}: {text}; expected as many, or more of padding")
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    return [_Run(number, 0, begin, size) for number, (begin, size) in enumerate(zip(begins, sizes, strict=True))]


def _grouped(weight: Weight, model: _Model, sizes: Sequence[int], rows: int) -> list[_Run]:
    expected = [heads * model.head_size for heads in (model.heads, model.groups, model.groups)]
    if rows != sum(expected) or list(sizes) not in (expected, [rows]):
        text = f"queries, keys and values have {list(sizes)} rows, and {_CONFIG} says {expected}"
        raise InputError(f"tensor {weight.megatron}: {text}; expected the same")
    packed = len(sizes) == 1  # All in one tensor, queries first.
    begins = [0, expected[0], expected[0] + expected[1]]
    runs, at = [], 0
    for group in range(model.groups):
        for number, size in enumerate(whole // model.groups for whole in expected):
            theirs = group * size + (begins[number] if packed else 0)
            runs.append(_Run(0 if packed else number, theirs, at, size))
            at += size
    return runs


def _moved(part: Replicas, rows: Sequence[tuple[int, int, int]]) -> Iterator[Replicas]:
    """Yield a part with its rows elsewhere, if it has any of them: where runs begin, where they are to, their rows."""
    pieces = tuple(
        _of_rows(piece, max(first, piece.start[0]), min(first + number, piece.start[0] + piece.extent[0]), to - first)
        for piece in part.layout.pieces
        for first, to, number in rows
        if max(first, piece.start[0]) < min(first + number, piece.start[0] + piece.extent[0])
    )
    if pieces:
        yield Replicas(Layout(part.layout.shape, pieces), part.sources)


def _of_rows(piece: Piece, low: int, high: int, by: int) -> Piece:
    """Return the rows of a piece from one to another, moved by some rows."""
    found = piece.rows(low - piece.start[0], high - low)
    return found._replace(start=(low + by, *piece.start[1:]))


def _turned_part(part: Replicas, weight: Weight) -> Replicas:
    """Return a part with its columns as rows, if the weight's are transposed."""
    if not weight.transposed:
        return part
    pieces = tuple(
        Piece(piece.start[::-1], piece.extent[::-1], piece.offset, piece.strides[::-1]) for piece in part.layout.pieces
    )
    return Replicas(Layout(part.layout.shape, pieces), part.sources)


def _replaced(old: PartsReading, used: set[str], new: Sequence[_New]) -> PartsReading:
    """Return a checkpoint with some tensors in place of others."""
    known = old.described
    kept = [tensor for tensor in known.collection.tensors if tensor.name not in used]
    collection = dataclasses.replace(known.collection, tensors=(*(made.tensor for made in new), *kept))
    names = {tensor.name: tensor.name for tensor in kept}
    paths = {name: path for name, path in known.paths.items() if name in names}
    paths |= {made.tensor.name: made.path for made in new if made.path is not None}
    checkpoint = dataclasses.replace(known.with_hashes_of(names), collection=collection, paths=paths, files=())
    all_parts = old.parts()
    parts = {made.tensor.name: made.parts for made in new} | {name: all_parts[name] for name in names}
    return PartsReading(checkpoint, parts, old.place)


def _config(reading: Reading) -> dict[str, Any]:
    """Return the configuration beside the tensors, empty if there is none."""
    tensor = reading.job.by_name.get(_CONFIG)
    if tensor is None or tensor.kind != "file" or not tensor.num_bytes:
        return {}
    part, *_ = reading.replicas(tensor)
    try:
        found = json.loads(bytes(part.sources[0].data(part.layout.pieces[0])))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _model(config: Mapping[str, Any], where: str) -> _Model:
    heads = _number(config, where, "num_attention_heads", "n_head")
    hidden = _number(config, where, "hidden_size", "n_embd")
    groups = _number(config, where, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    head_size = _number(config, where, "head_dim") if config.get("head_dim") else hidden // heads
    if heads % groups:
        raise InputError(f"{where}: {heads} heads in {groups} groups; expected groups of as many heads")
    return _Model(heads, groups, head_size, _number(config, where, "vocab_size"))


def _number(config: Mapping[str, Any], where: str, *names: str) -> int:
    value: Any = next((config[name] for name in names if name in config), None)
    if not is_whole(value, 1):
        raise InputError(f"{where}, field {names[0]}: {value!r}; expected a whole number from 1, to translate names")
    return int(value)
