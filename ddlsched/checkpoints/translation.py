"""From Hugging Face's names and layouts of weights to Megatron-core's, and back.

Nothing is copied: what comes out is a reading of the same files, in which tensors have other names, and their rows
other places.

References
----------
Hugging Face: ``transformers`` 5, ``modeling_llama``, ``modeling_mistral``, ``modeling_qwen2``, ``modeling_qwen3``,
``modeling_gpt2``. Megatron-core 0.16: ``GPTModel`` with one norm before attention and one before the feed-forward
layers (``get_gpt_layer_local_spec`` and the Transformer Engine's save the same names); ``linear_qkv`` holds, group by
group, the queries of a group, its key, its value; ``linear_fc1`` of a gated layer the gate, then what it gates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddlsched.checkpoints.division import named_tensor
from ddlsched.checkpoints.reading import Held, PartsReading, Reading, Replicas
from ddlsched.checkpoints.tensors import Layout, Piece, Tensor
from ddlsched.errors import InputError
from ddlsched.units import is_whole


class Rows(StrEnum):
    """How the rows of Hugging Face's tensors lie in Megatron-core's."""

    same = "same"
    """As they are."""
    behind = "behind"
    """Those of each tensor behind those of the one before."""
    groups = "groups"
    """Queries, keys and values, group by group."""
    vocabulary = "vocabulary"
    """As they are, then padding."""


class Weight(NamedTuple):
    """A tensor of Megatron-core; ``{}`` is the number of a layer.

    ``theirs`` are Hugging Face's tensors that it holds; ``transposed`` says that these have their rows as columns.
    """

    megatron: str
    theirs: tuple[str, ...]
    rows: Rows = Rows.same
    transposed: bool = False


_TABLE = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, tuple[Weight, ...]])
FAMILIES: Mapping[str, tuple[Weight, ...]] = _TABLE | dict.fromkeys(("mistral", "qwen2", "qwen3"), _TABLE["llama"])
"""By ``model_type`` of Hugging Face's ``config.json``."""

_STATE = re.compile(r"optimiser\.(exp_avg|exp_avg_sq|master)\.(.*)")
_NAMES = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"embedding\.word\.(\w+)", r"embedding.word_embeddings.\1"),
        (r"embedding\.position\.(\w+)", r"embedding.position_embeddings.\1"),
        (r"embedding\.token_type\.(\w+)", r"embedding.tokentype_embeddings.\1"),
        (r"layers\.(\d+)\.input_norm\.(\w+)", r"decoder.layers.\1.self_attention.linear_qkv.layer_norm_\2"),
        (r"layers\.(\d+)\.attention\.qkv\.(\w+)", r"decoder.layers.\1.self_attention.linear_qkv.\2"),
        (r"layers\.(\d+)\.attention\.dense\.(\w+)", r"decoder.layers.\1.self_attention.linear_proj.\2"),
        (r"layers\.(\d+)\.post_attention_norm\.(\w+)", r"decoder.layers.\1.mlp.linear_fc1.layer_norm_\2"),
        (r"layers\.(\d+)\.mlp\.h_to_4h\.(\w+)", r"decoder.layers.\1.mlp.linear_fc1.\2"),
        (r"layers\.(\d+)\.mlp\.4h_to_h\.(\w+)", r"decoder.layers.\1.mlp.linear_fc2.\2"),
        (r"final_norm\.(\w+)", r"decoder.final_layernorm.\1"),
        (r"output\.weight", r"output_layer.weight"),
    )
)


def megatron_name(tensor: Tensor) -> str:
    """Return Megatron-core's name of a tensor of a model without experts; of any other, its own.

    Raises
    ------
    InputError
        Queries, keys and values lie apart, while Megatron-core has those of each head together.
    """
    state = _STATE.fullmatch(tensor.name)
    weight = state[2] if state else tensor.name
    for old, new in _NAMES:
        if found := old.fullmatch(weight):
            if ".qkv." in weight and any(len(cut.parts) > 1 for cut in tensor.cuts):
                text = "queries, keys and values lie one behind the other"
                raise InputError(f"tensor {tensor.name}: {text}; expected those of each head together")
            renamed = found.expand(new)
            kind = {"master": "fp32_param"}.get(state[1], state[1]) if state else ""
            return f"optimizer.state.{kind}.{renamed}" if state else renamed
    return tensor.name


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
    held = {tensor.name: (tensor, parts) for tensor, parts in old.held()}
    olds = {
        named: named.weight.theirs if to_megatron else (named.weight.megatron,)
        for named in _named_weights(config.get("model_type"), old)
    }
    found = {named: names for named, names in olds.items() if all(name in held for name in names)}
    if not found:
        return reading
    model, made = _model(config, reading.place.name_of(_CONFIG)), _to_megatron if to_megatron else _to_hugging_face
    new = [one for of, names in found.items() for one in made(of.weight, model, [held[name] for name in names])]
    stacks = {of.weight.megatron: of.stack for of in found if to_megatron and of.stack is not None}
    return _replaced(old, {name for names in found.values() for name in names}, new, stacks)


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


def _to_megatron(weight: Weight, model: _Model, old: Sequence[Held]) -> list[Held]:
    shapes = [_turned(tensor.shape, weight) for tensor, _ in old]
    if len({(tensor.dtype, shape[1:]) for (tensor, _), shape in zip(old, shapes, strict=True)}) > 1:
        raise InputError(f"tensor {weight.megatron}: {', '.join(weight.theirs)} differ; expected one dtype and width")
    runs = _runs(weight, model, [shape[0] for shape in shapes], sum(shape[0] for shape in shapes))
    parts = [
        moved
        for number, (_, of_tensor) in enumerate(old)
        for part in of_tensor
        for moved in _moved(_turned_part(part, weight), runs, number)
    ]
    shape = (sum(run.rows for run in runs), *shapes[0][1:])
    return [(named_tensor(weight.megatron, shape, old[0][0].dtype), parts)]


def _to_hugging_face(weight: Weight, model: _Model, old: Sequence[Held]) -> list[Held]:
    ((tensor, parts),) = old
    rows, *rest = tensor.shape
    sizes = _sizes(weight, model, rows)
    back = [run._replace(theirs=run.megatron, megatron=run.theirs) for run in _runs(weight, model, sizes, rows)]
    return [
        (
            named_tensor(name, _turned((size, *rest), weight), tensor.dtype),
            [_turned_part(moved, weight) for part in parts for moved in _moved(part, back, number)],
        )
        for number, (name, size) in enumerate(zip(weight.theirs, sizes, strict=True))
    ]


def _turned(values: tuple[int, ...], weight: Weight) -> tuple[int, ...]:
    return values[::-1] if weight.transposed else values


def _sizes(weight: Weight, model: _Model, rows: int) -> list[int]:
    """Return the rows of each of Hugging Face's tensors that a tensor of so many rows holds."""
    if len(weight.theirs) == 3:  # Queries, keys and values, not all in one.
        return [heads * model.head_size for heads in (model.heads, model.groups, model.groups)]
    if weight.rows is Rows.vocabulary:
        return [min(rows, model.vocabulary)]
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
    begins = [*accumulate(expected, initial=0)]
    runs, at = [], 0
    for group in range(model.groups):
        for number, size in enumerate(whole // model.groups for whole in expected):
            theirs = group * size + (begins[number] if packed else 0)
            runs.append(_Run(0 if packed else number, theirs, at, size))
            at += size
    return runs


def _moved(part: Replicas, runs: Sequence[_Run], tensor: int) -> Iterator[Replicas]:
    """Yield a part of a tensor with its rows where runs have them, if it has any of these."""
    pieces = []
    for piece, (of, first, to, number) in product(part.layout.pieces, runs):
        begin, *others = piece.start
        low, high = max(first, begin), min(first + number, begin + piece.extent[0])
        if of == tensor and low < high:
            pieces.append(piece.rows(low - begin, high - low)._replace(start=(low + to - first, *others)))
    if pieces:
        yield Replicas(Layout(part.layout.shape, tuple(pieces)), part.sources)


def _turned_part(part: Replicas, weight: Weight) -> Replicas:
    """Return a part with its columns as rows, if the weight's are transposed."""
    if not weight.transposed:
        return part
    pieces = tuple(
        Piece(piece.start[::-1], piece.extent[::-1], piece.offset, piece.strides[::-1]) for piece in part.layout.pieces
    )
    return Replicas(Layout(part.layout.shape, pieces), part.sources)


def _replaced(old: PartsReading, used: set[str], new: Sequence[Held], stacks: Mapping[str, Any]) -> PartsReading:
    """Return a checkpoint with some tensors in place of others; ``stacks`` is where they lie in a nested state."""
    known = old.described
    kept = [(tensor, parts) for tensor, parts in old.held() if tensor.name not in used]
    names = {tensor.name: tensor.name for tensor, _ in kept}
    paths = {name: path for name, path in known.paths.items() if name in names}
    return old.renewed([*new, *kept], names, {**paths, **stacks})


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
