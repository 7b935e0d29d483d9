"""Which part of a tensor a rank holds: boxes of the whole tensor, and where each lies in the rank's own array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ddlsched.checkpoints.tensors import Cut, CutPart, padded_size
from ddlsched.errors import InputError

__all__ = ["Layout", "Piece", "dense_layout", "flat_layout"]

_Run = tuple[int, int]
"""First row and number of rows; the first row of padding is -1."""
_PADDING = -1


class Piece(NamedTuple):
    """A box of the whole tensor, and where it lies in a rank's array; all numbers count elements."""

    start: tuple[int, ...]
    extent: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements in the box."""
        return math.prod(self.extent)

    def rows(self, first: int, number: int) -> Piece:
        """Return some rows of it, the first one counted within it."""
        start, extent = (self.start[0] + first, *self.start[1:]), (number, *self.extent[1:])
        return Piece(start, extent, self.offset + first * self.strides[0], self.strides)

    def row(self, number: int) -> Piece:
        """Return one row of it, of one dimension less."""
        return Piece(self.start[1:], self.extent[1:], self.offset + number * self.strides[0], self.strides[1:])


class Layout(NamedTuple):
    """The shape of a rank's array, and the pieces in it; what no piece covers is padding."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        """Elements of the array, padding included."""
        return math.prod(self.shape)


@lru_cache(maxsize=65536)
def dense_layout(shape: tuple[int, ...], cuts: tuple[Cut, ...], place: tuple[_Run, ...]) -> Layout:
    """Return what a rank holds.

    Parameters
    ----------
    shape
        Of the whole tensor.
    cuts
        How it is divided.
    place
        The rank's index in the group of each cut, and the size of that group.

    Raises
    ------
    InputError
        A dimension does not divide among the ranks.
    """
    runs: list[list[_Run]] = [[(0, size)] for size in shape]
    for cut, (index, degree) in zip(cuts, place, strict=True):
        runs[cut.dim] = _cut(runs[cut.dim], cut, index, degree)
    local = tuple(sum(rows for _, rows in dimension) for dimension in runs)
    return Layout(local, tuple(_pieces(runs, _row_major(local))))


def _cut(runs: list[_Run], cut: Cut, index: int, degree: int) -> list[_Run]:
    size = sum(rows for _, rows in runs)
    padded = padded_size(size, cut.pad_multiple, degree)
    if padded > size:
        runs = [*runs, (_PADDING, padded - size)]
    kept: list[_Run] = []
    begin = 0
    for part in cut.parts or (CutPart(padded),):
        low, high = _share(part, cut, index, degree)
        kept += _rows(runs, begin + low, begin + high)
        begin += part.size
    return kept


def _share(part: CutPart, cut: Cut, index: int, degree: int) -> tuple[int, int]:
    """Return the first row of a part that a rank holds, and the first behind."""
    size, units = part.size, part.units or part.size
    if cut.uneven:
        each = -(-units // degree) * (size // max(units, 1))
        return min(index * each, size), min((index + 1) * each, size)
    if units % degree == 0:
        return index * size // degree, (index + 1) * size // degree
    if part.shared and degree % units == 0:
        unit = index * units // degree
        return unit * size // units, (unit + 1) * size // units
    what = f"{units} blocks of {size // units} rows" if part.units else f"{size} rows"
    raise InputError(f"{what} of dimension {cut.dim} do not divide among {degree} {cut.axis}-parallel ranks")


def _rows(runs: Sequence[_Run], low: int, high: int) -> Iterator[_Run]:
    """Yield the rows from ``low`` to ``high`` of runs that lie one behind the other."""
    begin = 0
    for first, rows in runs:
        a, b = max(low, begin), min(high, begin + rows)
        if a < b:
            yield (first if first == _PADDING else first + a - begin), b - a
        begin += rows


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _pieces(runs: Sequence[Sequence[_Run]], strides: tuple[int, ...]) -> Iterator[Piece]:
    placed = []
    for dimension, stride in zip(runs, strides, strict=True):
        begins = [sum(rows for _, rows in dimension[:number]) * stride for number in range(len(dimension))]
        placed.append([(*run, at) for run, at in zip(dimension, begins, strict=True) if run[0] != _PADDING])
    for chosen in product(*placed):
        extent = tuple(rows for _, rows, _ in chosen)
        if 0 not in extent:
            yield Piece(tuple(first for first, _, _ in chosen), extent, sum(at for _, _, at in chosen), strides)


@lru_cache(maxsize=65536)
def flat_layout(whole: Layout, low: int, high: int) -> Layout:
    """Return the elements from ``low`` to ``high`` of a layout's array, laid out as an array of one dimension."""
    pieces = []
    for start, extent in _boxes(whole.shape, low, high):
        for piece in whole.pieces:
            common = _intersection(start, extent, piece, _row_major(whole.shape))
            if common is not None:
                pieces.append(common._replace(offset=common.offset - low))
    return Layout((high - low,), tuple(pieces))


def _boxes(shape: Sequence[int], low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the boxes (start, extent) of an array that a range of its elements in row-major order makes up."""
    if low >= high:
        return
    if len(shape) <= 1:
        yield ((low,), (high - low,)) if shape else ((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-low // row), high // row
    if first > last or low % row:
        number = low // row
        yield from _within_row(shape, number, low - number * row, min(high - number * row, row))
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if first <= last and high % row:
        yield from _within_row(shape, last, 0, high - last * row)


def _within_row(
    shape: Sequence[int], number: int, low: int, high: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for start, extent in _boxes(shape[1:], low, high):
        yield (number, *start), (1, *extent)


def _intersection(
    start: tuple[int, ...], extent: tuple[int, ...], piece: Piece, strides: tuple[int, ...]
) -> Piece | None:
    """Return what a box of a rank's array and a piece in that array have in common."""
    begins, sizes, rest = [], [], piece.offset
    for low, rows, stride, piece_rows in zip(start, extent, strides, piece.extent, strict=True):
        at, rest = divmod(rest, stride)
        a, b = max(low, at), min(low + rows, at + piece_rows)
        if a >= b:
            return None
        begins.append(a - at)
        sizes.append(b - a)
    moved = tuple(first + begin for first, begin in zip(piece.start, begins, strict=True))
    offset = piece.offset + sum(begin * stride for begin, stride in zip(begins, strides, strict=True))
    return Piece(moved, tuple(sizes), offset, strides)
