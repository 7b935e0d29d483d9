"""The cells into which a tensor falls when old and new boundaries both cut it: what plans are made of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from ddlsched.checkpoints.tensors import Layout, Piece

__all__ = ["Box", "Holding", "TensorCell", "divided", "within"]


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
    """Return whether no two boxes overlap, seen from their total against that of the box around them, if that tells."""
    if len(boxes) < 2:
        return True
    corners = [[a + b for a, b in zip(*box, strict=True)] for box in boxes]
    low = [min(values) for values in zip(*(box.start for box in boxes), strict=True)]
    high = [max(values) for values in zip(*corners, strict=True)]
    around = math.prod(b - a for a, b in zip(low, high, strict=True))
    if sum(box.num_elements for box in boxes) > around:
        return False
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
