"""The bytes of a chunk, put together from the files of its sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ddlsched.reconfiguration.copying import Chunk, Copy, is_contiguous, span
from ddlsched.reconfiguration.files_in_parts import Target
from ddlsched.reconfiguration.reading import Source
from ddlsched.reconfiguration.shards import Piece
from ddlsched.reconfiguration.tensors import DTYPE_BYTES

__all__ = ["GATHERED_BYTES", "Buffers", "NewArray", "filled", "is_run"]

GATHERED_BYTES = 1 << 20
"""Of a chunk whose rows lie apart: what it is put together from stays in a processor's cache."""


@dataclass(frozen=True, kw_only=True)
class NewArray:
    """An array that is to be put together: from what, and into which files."""

    tensor: str
    dtype: str
    sources: tuple[Source, ...]
    copies: tuple[Copy, ...]
    targets: tuple[Target, ...] = ()


class Buffers:
    """What one thread puts chunks together in; grows to the longest row that is asked for.

    Parameters
    ----------
    num_bytes
        Of a chunk, and of what it is read from at a time.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._wanted = self._read = memoryview(b"")

    def wanted(self, num_bytes: int) -> memoryview:
        """Return room for a chunk."""
        if len(self._wanted) < num_bytes:
            self._wanted = memoryview(bytearray(max(num_bytes, min(self.num_bytes, GATHERED_BYTES))))
        return self._wanted[:num_bytes]

    def data(self, source: Source, piece: Piece) -> memoryview:
        """Return the bytes from a piece's first element to its last; they stay until the next call."""
        low, high = source.byte_range(piece)
        if (descriptor := source.place.descriptor(source.file)) is None:
            return source.place.read(source.file, low, high)
        if len(self._read) < high - low:
            self._read = memoryview(bytearray(high - low))
        found = self._read[: high - low]
        if os.preadv(descriptor, [found], low) < high - low:
            return source.data(piece)  # which reads on, or says what is wrong
        return found


def is_run(chunk: Chunk) -> bool:
    """Return whether a chunk's bytes lie in one source as they are wanted."""
    first = chunk.copies[0]
    whole = len(chunk.copies) == 1 and first.write.num_elements == chunk.high - chunk.low
    return whole and is_contiguous(first.read)


def filled(array: NewArray, chunk: Chunk, buffers: Buffers) -> memoryview:
    """Return a chunk's bytes: a source's own if they lie there as wanted, else gathered in the buffers."""
    if is_run(chunk):
        first = chunk.copies[0]
        return buffers.data(array.sources[first.source], first.read)
    size = DTYPE_BYTES[array.dtype]
    num_bytes = (chunk.high - chunk.low) * size
    wanted = buffers.wanted(num_bytes)
    if sum(copy.write.num_elements for copy in chunk.copies) * size < num_bytes:
        wanted[:] = bytes(num_bytes)
    for copy in chunk.copies:
        for part in _parts(copy, max(buffers.num_bytes // size, 1)):
            _gather(buffers.data(array.sources[part.source], part.read), part, wanted, chunk.low, size)
    return wanted


def _parts(copy: Copy, most_elements: int) -> Iterator[Copy]:
    """Yield a copy in parts that are read at a time, by its first dimension; only single rows may be longer."""
    source, read, write = copy
    low, high = span(read)
    if high - low <= most_elements or not read.extent:
        yield copy
        return
    step = max(most_elements // max(read.strides[0], 1), 1)
    for first in range(0, read.extent[0], step):
        rows = min(step, read.extent[0] - first)
        part = Copy(source, _some_rows(read, first, rows), _some_rows(write, first, rows))
        yield from _parts(_without_first(part), most_elements) if rows == 1 else (part,)


def _some_rows(piece: Piece, first: int, rows: int) -> Piece:
    start, extent = (piece.start[0] + first, *piece.start[1:]), (rows, *piece.extent[1:])
    return Piece(start, extent, piece.offset + first * piece.strides[0], piece.strides)


def _without_first(copy: Copy) -> Copy:
    """Return a copy of one row as its row, of one dimension less."""
    read, write = (Piece(p.start[1:], p.extent[1:], p.offset, p.strides[1:]) for p in copy[1:])
    return Copy(copy.source, read, write)


def _gather(data: memoryview, copy: Copy, wanted: memoryview, low: int, size: int) -> None:
    """Copy what was read of a piece to its places in a chunk that begins at element ``low``."""
    begin = (copy.write.offset - low) * size
    if is_contiguous(copy.read) and is_contiguous(copy.write):
        wanted[begin : begin + len(data)] = data
        return
    import numpy as np  # Most changes copy whole runs, and start sooner without it.

    dtype = np.dtype(f"V{size}")
    strides = [tuple(stride * size for stride in piece.strides) for piece in copy[1:]]
    np.ndarray(copy.write.extent, dtype, wanted, begin, strides[1])[...] = np.ndarray(
        copy.read.extent, dtype, data, 0, strides[0]
    )
