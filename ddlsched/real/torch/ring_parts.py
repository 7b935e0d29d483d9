"""Cuts a tensor into chunks whose all-reduces add in the very order in which that of the whole tensor does.

Gloo's ring divides a message into as many parts as ranks; where an element lies decides at which rank its sum begins. A
plain slice of the tensor would be divided anew, and float sums would come out otherwise in the last bit. So a chunk
takes a slice of *each* part: the elements of part r stay in part r.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["RingChunk", "part_length"]

_MOST_SEGMENT_BYTES = 1 << 20
"""Of gloo's all-reduce."""


def part_length(count: int, ranks: int, item_bytes: int) -> int:
    """Return how many elements gloo's ring puts into a part of a message of ``count`` elements.

    References
    ----------
    gloo/allreduce.cc, ``ring``.
    """
    whole_bytes = count * item_bytes
    most_bytes = item_bytes * (_MOST_SEGMENT_BYTES // item_bytes)
    segments = _up(max(-(-whole_bytes // most_bytes), 2 * ranks), ranks)
    segment_bytes = _up(-(-whole_bytes // segments), item_bytes)
    return segments // ranks * segment_bytes // item_bytes


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class RingChunk:
    """Chunk ``number`` of ``chunks`` of a flat tensor that ``ranks`` ranks reduce."""

    def __init__(self, tensor: Any, ranks: int, number: int, chunks: int) -> None:
        self._tensor, self._ranks = tensor, ranks
        self._length = part_length(len(tensor), ranks, tensor.element_size())
        self._first = self._length * number // chunks
        self._last = self._length * (number + 1) // chunks
        width = self._width(self._last - self._first)
        self.data = tensor.new_zeros(ranks * width)
        """What is to be reduced: the chunk's elements, padded with zeros."""
        self._rows = self.data.view(ranks, width)
        for row, part in self._parts():
            row.copy_(part)

    def _width(self, width: int) -> int:
        """Return the next larger width that gloo divides into parts of just this width."""
        width = max(width, 2)
        while part_length(self._ranks * width, self._ranks, self._tensor.element_size()) != width:
            width += 1
        return width

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        for rank in range(self._ranks):
            first = rank * self._length
            part = self._tensor[first + self._first : min(first + self._last, first + self._length)]
            yield self._rows[rank, : len(part)], part

    def write_back(self) -> None:
        """Put the reduced elements where they came from."""
        for row, part in self._parts():
            part.copy_(row)
