"""From the cells of a rank's array to chunks of bounded size, each filled from its sources and written in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddlsched.checkpoints.tensors import Piece


class Copy(NamedTuple):
    """A box that is copied: which source has it, and where it lies in the source's and in the new array."""

    source: int
    read: Piece
    write: Piece


class Chunk(NamedTuple):
    """The elements from ``low`` to ``high`` of a new array, and what is copied there; the rest is padding."""

    low: int
    high: int
    copies: tuple[Copy, ...]


def span(piece: Piece) -> tuple[int, int]:
    """Return the first element of a piece in its array, and the one behind its last."""
    last = sum((rows - 1) * stride for rows, stride in zip(piece.extent, piece.strides, strict=True))
    return piece.offset, piece.offset + last + 1


def is_contiguous(piece: Piece) -> bool:
    """Return whether a piece is one run of its array, in row-major order."""
    return side_by_side(piece, piece) == piece.num_elements


def side_by_side(one: Piece, other: Piece) -> int:
    """Return how many elements, the last ones of each row first, lie side by side in two pieces of one extent."""
    run = 1
    for rows, a, b in zip(reversed(one.extent), reversed(one.strides), reversed(other.strides), strict=True):
        if rows != 1 and (a != run or b != run):
            break
        run *= rows
    return run


def chunks(copies: Sequence[Copy], most_elements: int) -> Iterator[Chunk]:
    """Yield chunks of at most ``most_elements`` that together hold all copies to one array, in ascending order.

    Only copies with single rows longer than that make longer chunks.
    """
    parts = sorted(
        (part for copy in copies for part in _slabs(copy, most_elements)), key=lambda copy: copy.write.offset
    )
    group: list[Copy] = []
    end = -1
    for part in parts:
        low, high = span(part.write)
        if group and low >= end and high - group[0].write.offset > most_elements:
            yield from _rows(group, end, most_elements)
            group = []
        group.append(part)
        end = max(end, high)
    if group:
        yield from _rows(group, end, most_elements)


def _slabs(copy: Copy, most_elements: int) -> Iterator[Copy]:
    """Yield a copy without its dimensions of one row, and apart by rows too long for a chunk."""
    read, write = _squeezed(copy.read), _squeezed(copy.write)
    if len(write.extent) < 2 or write.strides[0] <= most_elements:
        yield Copy(copy.source, read, write)
        return
    for row in range(write.extent[0]):
        yield from _slabs(Copy(copy.source, read.row(row), write.row(row)), most_elements)


def _squeezed(piece: Piece) -> Piece:
    kept = [dim for dim, rows in enumerate(piece.extent) if rows > 1]
    start, extent, strides = (tuple(values[dim] for dim in kept) for values in (piece[0], piece[1], piece[3]))
    return Piece(start, extent, piece.offset, strides)


def _rows(group: Sequence[Copy], end: int, most_elements: int) -> Iterator[Chunk]:
    """Yield the chunks of copies whose places in the array lie between each other's rows."""
    begin = group[0].write.offset
    row = max((copy.write.strides[0] for copy in group if copy.write.extent), default=1)
    edge = None if end - begin <= most_elements else _edge(group, row)
    if edge is None:
        yield Chunk(begin, end, tuple(group))
        return
    step = max(most_elements // row, 1) * row
    for low in range(begin - (begin - edge) % row, end, step):
        high = low + step
        found = tuple(part for copy in group if (part := _between(copy, row, low, high)) is not None)
        if found:
            yield Chunk(max(low, begin), min(high, end), found)


def _edge(group: Sequence[Copy], row: int) -> int | None:
    """Return where the array can be cut, there and every ``row`` elements on, through no row of a copy."""
    widths = [(copy.write.offset, _width(copy.write, row)) for copy in group]
    edges = (edge for edge, _ in widths if all((low - edge) % row + width <= row for low, width in widths))
    return next(edges, None)


def _width(piece: Piece, row: int) -> int:
    """Return the elements from the first to the last of one row of a piece."""
    low, high = span(piece)
    return high - low - (piece.extent[0] - 1) * row if piece.extent and piece.strides[0] == row else high - low


def _between(copy: Copy, row: int, low: int, high: int) -> Copy | None:
    """Return the rows of a copy that begin between two elements of the array; each ends there too."""
    write, read = copy.write, copy.read
    if not write.extent or write.strides[0] != row:
        return copy if low <= write.offset < high else None
    first = max(-(-(low - write.offset) // row), 0)
    behind = min(-(-(high - write.offset) // row), write.extent[0])
    if first >= behind:
        return None
    return Copy(copy.source, read.rows(first, behind - first), write.rows(first, behind - first))
