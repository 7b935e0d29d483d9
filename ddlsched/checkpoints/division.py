"""The cells into which a tensor falls when old and new boundaries both cut it: what plans are made of.

How tensors of other programs are divided is found from the chunks that are there, else from their names. What is found
decides which rank gets which part, never what is in it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.tensors import Axis, Cut, CutPart, Layout, Piece, Place, Tensor, dense_layout


class Box(NamedTuple):
    """A range in each dimension of a whole tensor."""

    start: tuple[int, ...]
    extent: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements in the box."""
        return math.prod(self.extent)


class Holding(NamedTuple):
    """Which shard has a cell, by its number, and in which of its pieces."""

    shard: int
    piece: int


class TensorCell(NamedTuple):
    """A box that every old and new piece either holds whole or not at all."""

    box: Box
    old: tuple[Holding, ...]
    new: tuple[Holding, ...]


_Held: TypeAlias = Mapping[Box, tuple[Holding, ...]]


@lru_cache(maxsize=16384)
def divided(old: tuple[Layout, ...], new: tuple[Layout, ...]) -> tuple[TensorCell, ...]:
    """Return the cells that new shards hold, with the old shards that have them (none, if none has)."""
    sources, targets = _atoms(old), _atoms(new)
    cells = []
    for target, holders in targets.items():
        found = [TensorCell(box, sources[source], holders) for source in sources if (box := _common(source, target))]
        cells += found
        if sum(cell.box.num_elements for cell in found) < target.num_elements:
            cells += [TensorCell(box, (), holders) for box in _without(target, [cell.box for cell in found])]
    return tuple(cells)


def _atoms(layouts: Sequence[Layout]) -> _Held:
    """Return disjoint boxes that together make up every piece, with those that hold each."""
    holders: dict[Box, list[Holding]] = defaultdict(list)
    for shard, layout in enumerate(layouts):
        for number, piece in enumerate(layout.pieces):
            holders[Box(piece.start, piece.extent)].append(Holding(shard, number))
    if not _disjoint(list(holders)):
        holders = _refined(holders)
    return {box: tuple(held) for box, held in holders.items()}


def _disjoint(boxes: Sequence[Box]) -> bool:
    """Return whether no two boxes overlap."""
    return not any(_common(a, b) for number, a in enumerate(boxes) for b in boxes[:number])


def _refined(holders: Mapping[Box, Sequence[Holding]]) -> dict[Box, list[Holding]]:
    """Return the boxes cut at every boundary of every other, so that they are equal or disjoint."""
    edges = _edges(holders)
    refined: dict[Box, list[Holding]] = defaultdict(list)
    for box, held in holders.items():
        for part in _grid(box, edges):
            refined[part] += held
    return refined


def _without(box: Box, taken: Sequence[Box]) -> list[Box]:
    """Return boxes that make up what of a box is in none of the taken ones."""
    return [part for part in _grid(box, _edges([box, *taken])) if not any(_common(part, other) for other in taken)]


def _edges(boxes: Iterable[Box]) -> list[set[int]]:
    by_dim = zip(*(zip(*box, strict=True) for box in boxes), strict=True)
    return [{edge for first, rows in ranges for edge in (first, first + rows)} for ranges in by_dim]


def _grid(box: Box, edges: Sequence[set[int]]) -> Iterable[Box]:
    """Yield the parts of a box that edges across it make."""
    ranges = []
    for first, rows, cuts in zip(*box, edges, strict=True):
        inside = sorted({first, first + rows, *(cut for cut in cuts if first < cut < first + rows)})
        ranges.append(list(pairwise(inside)))
    for chosen in product(*ranges):
        yield Box(tuple(a for a, _ in chosen), tuple(b - a for a, b in chosen))


def _common(one: Box, other: Box) -> Box | None:
    """Return what two boxes have in common, if anything."""
    start, extent = [], []
    for a, rows, b, others in zip(*one, *other, strict=True):
        low, high = max(a, b), min(a + rows, b + others)
        if low >= high:
            return None
        start.append(low)
        extent.append(high - low)
    return Box(tuple(start), tuple(extent))


def within(piece: Piece, box: Box) -> Piece:
    """Return the part of a piece that a box within it makes."""
    moved = sum((a - b) * stride for a, b, stride in zip(box.start, piece.start, piece.strides, strict=True))
    return Piece(box.start, box.extent, piece.offset + moved, piece.strides)


Chunked: TypeAlias = tuple[tuple[int, ...], frozenset[Box]]
"""A tensor's shape, and the boxes that its chunks are."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,4})(?:\.|$)")
_LAST = re.compile(
    r"(?:^|\.)(?:norm|ln_f|final_norm|final_layer_norm|final_layernorm|lm_head|output|output_layer|embed_out)\."
)


def place_by_name(name: str) -> tuple[Place, ...]:
    """Return a tensor's place: the number of its layer, else behind or before all layers, as its name says."""
    if found := _LAYER.search(name):
        return (int(found[1]),)
    return ("last",) if _LAST.search(name) else ("first",)


_ROWS = frozenset({
    "q_proj", "k_proj", "v_proj", "wq", "wk", "wv", "query", "key", "value", "query_key_value", "linear_qkv",
    "gate_proj", "up_proj", "w1", "w3", "dense_h_to_4h", "linear_fc1", "fc1", "fc_in",
    "embed_tokens", "tok_embeddings", "word_embeddings", "wte", "embed_in", "lm_head", "output", "output_layer",
    "embed_out",
})  # fmt: skip
_HALVES = frozenset({"gate_up_proj"})
_COLUMNS = frozenset({
    "o_proj", "wo", "out_proj", "linear_proj", "down_proj", "w2", "dense_4h_to_h", "linear_fc2", "fc2", "fc_out",
})  # fmt: skip
# GPT-2 of Hugging Face keeps its matrices transposed.
_TRANSPOSED = {"c_attn": (1, 3), "c_fc": (1, 1), "c_proj": (0, 1)}


def cuts_by_name(name: str, shape: Sequence[int]) -> tuple[Cut, ...]:
    """Return how tensor-parallel ranks divide a matrix, or its bias, that is called as in well-known models.

    The usual way: the first matrices of attention and of feed-forward layers and vocabularies by rows, the second by
    columns; what is not known is whole on each rank. Of their optimiser's state, the same.
    """
    words = set(name.split("."))
    if not 1 <= len(shape) <= 2:
        return ()
    for word, (dim, parts) in _TRANSPOSED.items():
        if word in words and (len(shape) == 2 or dim == 1):
            return (_cut(min(dim, len(shape) - 1), shape, parts),)
    if words & _ROWS:
        return (_cut(0, shape, 1),)
    if words & _HALVES:
        return (_cut(0, shape, 2),)
    return (_cut(1, shape, 1),) if words & _COLUMNS and len(shape) == 2 else ()


def named_tensor(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor that lies, and is divided, as its name says."""
    return Tensor(name=name, shape=shape, dtype=dtype, places=place_by_name(name), cuts=cuts_by_name(name, shape))


def _cut(dim: int, shape: Sequence[int], parts: int) -> Cut:
    equal = parts > 1 and shape[dim] % parts == 0
    return Cut(dim=dim, parts=(CutPart(shape[dim] // parts),) * parts if equal else (), uneven=True)


def found_division(
    tensors: Mapping[str, Chunked], *, halves: bool = False
) -> tuple[StoredParallelism, dict[str, tuple[Cut, ...]]]:
    """Return degrees and cuts under which ranks hold the chunks that are there.

    Tried are all tp and dp whose product is the most chunks that a tensor has, each tensor being whole, or cut along a
    dimension over tensor-parallel ranks, the first one over data-parallel ranks, or both, in parts as ``torch.chunk``
    makes them (DTensor, FSDP2, HSDP, tensor parallelism with FSDP2). The degrees that explain most tensors are taken,
    of these the fewest tensor-parallel ranks. A tensor that they do not explain gets the cuts that its name says, and
    so do all, if each is one chunk.

    Parameters
    ----------
    tensors
        By name.
    halves
        Whether there are no data-parallel cuts, but matrices may be two halves that are cut by themselves, as gate and
        up projections are by Megatron-core.
    """
    kinds = set(tensors.values())
    most = max((len(boxes) for _, boxes in kinds), default=1)
    if most <= 1:
        return StoredParallelism(), {name: cuts_by_name(name, shape) for name, (shape, _) in tensors.items()}
    best, explained = StoredParallelism(), dict[Chunked, tuple[Cut, ...]]()
    for degrees in _degrees(most, halves):
        found = {kind: cuts for kind in kinds if (cuts := _explanation(kind, degrees, halves)) is not None}
        if len(found) > len(explained):
            best, explained = degrees, found
        if len(found) == len(kinds):
            break
    return best, {name: explained.get(kind, cuts_by_name(name, kind[0])) for name, kind in tensors.items()}


def _degrees(most: int, halves: bool) -> Iterator[StoredParallelism]:
    if halves:
        yield from (StoredParallelism(tp=tp) for tp in (most // 2, most) if tp > 1)
        return
    for tp in range(1, most + 1):
        if most % tp == 0:
            yield StoredParallelism(tp=tp, dp=most // tp)


def _explanation(kind: Chunked, degrees: StoredParallelism, halves: bool) -> tuple[Cut, ...] | None:
    """Return the cuts that make these chunks, if any do."""
    shape, boxes = kind
    for cuts in _candidates(shape, boxes, halves):
        groups = [range({"tensor": degrees.tp, "data": degrees.dp}[cut.axis]) for cut in cuts]
        most = math.prod(len(group) * max(len(cut.parts), 1) for group, cut in zip(groups, cuts, strict=True))
        if any(len(group) == 1 for group in groups) or most < len(boxes):
            continue
        places = (
            tuple((index, len(of)) for index, of in zip(chosen, groups, strict=True)) for chosen in product(*groups)
        )
        pieces = (piece for place in places for piece in dense_layout(shape, cuts, place).pieces)
        if {Box(piece.start, piece.extent) for piece in pieces} == boxes:
            return cuts
    return None


def _candidates(shape: Sequence[int], boxes: frozenset[Box], halves: bool) -> Iterator[tuple[Cut, ...]]:
    """Yield the ways to cut exactly the dimensions along which there is more than one chunk."""
    dims = [dim for dim in range(len(shape)) if len({box.start[dim] for box in boxes}) > 1]
    if not dims:
        yield ()
    if len(dims) == 1:
        (dim,) = dims
        if dim == 0:
            yield (_over("data", dim),)
        yield (_over("tensor", dim),)
        yield _over("tensor", dim), _over("data", dim)
        if halves and shape[dim] % 2 == 0:
            yield (dataclasses.replace(_over("tensor", dim), parts=(CutPart(shape[dim] // 2),) * 2),)
    if len(dims) == 2:
        yield _over("tensor", dims[1]), _over("data", dims[0])


def _over(axis: Axis, dim: int) -> Cut:
    return Cut(dim=dim, axis=axis, uneven=True)
