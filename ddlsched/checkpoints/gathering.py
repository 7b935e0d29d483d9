"""The bytes of a chunk, put together from the files of its sources."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ddlsched.checkpoints.copying import Chunk, Copy, is_contiguous, side_by_side, span
from ddlsched.checkpoints.partial_folder import Target
from ddlsched.checkpoints.reading import Source
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Piece
from ddlsched.deferred import np

See: TypeAlias = Callable[[str, int, memoryview], None]
"""Told the name of a file that is read, the first byte, and what was read."""

GATHERED_BYTES = 1 << 20
"""Of a chunk whose rows lie apart: what it is put together from stays in a processor's cache."""

_LONG_ROW_BYTES = 256
"""From here on rows are written from where they were read, one by one; shorter ones are gathered by numpy."""
_KEPT_LISTS = 16


@dataclass(frozen=True, kw_only=True)
class NewArray:
    """An array that is to be put together: from what, and into which files."""

    tensor: str
    dtype: str
    sources: tuple[Source, ...]
    copies: tuple[Copy, ...] = ()
    targets: tuple[Target, ...] = ()


class _Rows(NamedTuple):
    """What is read of a source's file, in bytes."""

    source: Source
    low: int
    high: int


class Buffers:
    """What one thread puts chunks together in; grows to the longest row that is asked for.

    Parameters
    ----------
    num_bytes
        Of a chunk, and of what is read at a time.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._wanted = self._read = memoryview(b"")
        self._begins: dict[_Rows, int] = {}
        self._views: dict[object, list[memoryview]] = {}
        self._see: See | None = None

    def forget(self, see: See | None = None) -> None:
        """Keep nothing of what was read: files may have changed since. Lists of parts of the memory stay.

        ``see`` is told what is read from local files from now on.
        """
        self._begins.clear()
        self._see = see

    def wanted(self, num_bytes: int) -> memoryview:
        """Return room for a chunk."""
        if len(self._wanted) < num_bytes:
            self._wanted = memoryview(bytearray(max(num_bytes, min(self.num_bytes, GATHERED_BYTES))))
        return self._wanted[:num_bytes]

    def data(self, source: Source, piece: Piece) -> memoryview:
        """Return the bytes from a piece's first element to its last; they stay until something else is read."""
        low, high = source.byte_range(piece)
        self._begins.clear()
        self._make_room(high - low)
        return self._filled(0, _Rows(source, low, high))

    def begins(self, wanted: Sequence[_Rows]) -> list[int] | None:
        """Return where in :meth:`memory` rows are, which stay for the next chunk; None: together they are too many."""
        # In order, not as sets would have them: chunks that lie alike are then read to the same places.
        missing = dict.fromkeys(rows for rows in wanted if rows not in self._begins)
        if not self._fits(missing):
            self._begins.clear()
            missing = dict.fromkeys(wanted)
            if not self._fits(missing):
                return None
        self._make_room(self.num_bytes)
        for rows in missing:
            begin = self._used()
            self._filled(begin, rows)
            self._begins[rows] = begin
        return [self._begins[rows] for rows in wanted]

    def views(self, key: object, made: Callable[[memoryview], list[memoryview]]) -> list[memoryview]:
        """Return parts of the memory that are made once for each key: most chunks of a tensor lie alike."""
        if key not in self._views:
            if len(self._views) >= _KEPT_LISTS:
                self._views.clear()
            self._views[key] = made(self._read)
        return self._views[key]

    def _used(self) -> int:
        return max((begin + rows.high - rows.low for rows, begin in self._begins.items()), default=0)

    def _fits(self, more: Iterable[_Rows]) -> bool:
        return self._used() + sum(rows.high - rows.low for rows in more) <= self.num_bytes

    def _make_room(self, num_bytes: int) -> None:
        if len(self._read) < num_bytes:
            self._read = memoryview(bytearray(num_bytes))
            self._views.clear()

    def _filled(self, begin: int, rows: _Rows) -> memoryview:
        """Return a part of the memory, read from a file."""
        source, low, high = rows
        found = self._read[begin : begin + high - low]
        descriptor = source.place.descriptor(source.file)
        if descriptor is None or os.preadv(descriptor, [found], low) < high - low:
            found[:] = source.place.read(source.file, low, high)  # which reads on, or says what is wrong
        if self._see is not None:
            self._see(source.file, low, found)
        return found


class ThreadBuffers(threading.local):
    """Buffers for each thread that asks for them, made once: most arrays of a checkpoint lie alike.

    Parameters
    ----------
    num_bytes
        Of each.
    """

    def __init__(self, num_bytes: int) -> None:
        self._buffers = Buffers(num_bytes)  # Each thread runs this when it first asks.

    def own(self, see: See | None = None) -> Buffers:
        """Return this thread's, in which nothing is that was read before; ``see`` is told what is."""
        self._buffers.forget(see)
        return self._buffers


def is_run(chunk: Chunk) -> bool:
    """Return whether a chunk's bytes lie in one source as they are wanted."""
    first = chunk.copies[0]
    whole = len(chunk.copies) == 1 and first.write.num_elements == chunk.high - chunk.low
    return whole and is_contiguous(first.read)


def filled(array: NewArray, chunk: Chunk, buffers: Buffers) -> Sequence[memoryview]:
    """Return a chunk's bytes, in parts: of what was read if rows are long, else gathered in one."""
    if is_run(chunk):
        first = chunk.copies[0]
        return [buffers.data(array.sources[first.source], first.read)]
    found = _long_rows(array, chunk, buffers)
    return [_gathered(array, chunk, buffers)] if found is None else found


def _long_rows(array: NewArray, chunk: Chunk, buffers: Buffers) -> Sequence[memoryview] | None:
    """Return the rows of a chunk where they were read; None if they are too short to be handled one by one."""
    size = DTYPE_BYTES[array.dtype]
    if any(side_by_side(copy.read, copy.write) * size < _LONG_ROW_BYTES for copy in chunk.copies):
        return None
    wanted = [_rows_around(array.sources[copy.source], copy.read) for copy in chunk.copies]
    begins = buffers.begins(wanted)
    if begins is None:
        return None
    # From where the memory begins, and where the chunk does.
    starts = [
        (begin + array.sources[copy.source].byte_range(copy.read)[0] - rows.low, (copy.write.offset - chunk.low) * size)
        for copy, rows, begin in zip(chunk.copies, wanted, begins, strict=True)
    ]
    shapes = [(copy.read.extent, copy.read.strides, copy.write.strides) for copy in chunk.copies]
    num_bytes = (chunk.high - chunk.low) * size

    def made(memory: memoryview) -> list[memoryview]:
        return list(_in_order(memory, chunk.copies, starts, size, num_bytes))

    return buffers.views((*starts, *shapes, size, num_bytes), made)


def _rows_around(source: Source, piece: Piece) -> _Rows:
    """Return the whole rows of a source's array around a piece: other new arrays need the rest of them."""
    low, high = span(piece)
    if piece.extent:
        row = piece.strides[0]
        low, high = low // row * row, min(-(-high // row) * row, math.prod(source.entry.shape))
    size = DTYPE_BYTES[source.entry.dtype]
    return _Rows(source, source.entry.begin + low * size, source.entry.begin + high * size)


def _row_begins(copy: Copy, run: int) -> list[tuple[int, int]]:
    """Return where each row of ``run`` elements begins, from the first one on, as it is read and as it is written."""
    begins, left = [(0, 0)], copy.read.num_elements
    for rows, read, write in zip(copy.read.extent, copy.read.strides, copy.write.strides, strict=True):
        if left == run:
            break
        left //= rows
        begins = [(a + row * read, b + row * write) for a, b in begins for row in range(rows)]
    return begins


def _in_order(
    memory: memoryview, copies: Sequence[Copy], starts: Sequence[tuple[int, int]], size: int, num_bytes: int
) -> Iterator[memoryview]:
    """Yield the rows of a chunk in the order of their places in it, with zeros between them."""
    rows: list[tuple[int, int, int]] = []
    for copy, (start, begin) in zip(copies, starts, strict=True):
        run = side_by_side(copy.read, copy.write)
        rows += [(begin + to * size, start + at * size, run * size) for at, to in _row_begins(copy, run)]
    end = 0
    for begin, start, length in sorted(rows):
        if begin > end:
            yield memoryview(bytes(begin - end))
        yield memory[start : start + length]
        end = begin + length
    if num_bytes > end:
        yield memoryview(bytes(num_bytes - end))


def _gathered(array: NewArray, chunk: Chunk, buffers: Buffers) -> memoryview:
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
        part = Copy(source, read.rows(first, rows), write.rows(first, rows))
        single = Copy(source, read.row(first), write.row(first))
        yield from _parts(single, most_elements) if rows == 1 else (part,)


def _gather(data: memoryview, copy: Copy, wanted: memoryview, low: int, size: int) -> None:
    """Copy what was read of a piece to its places in a chunk that begins at element ``low``."""
    begin = (copy.write.offset - low) * size
    if is_contiguous(copy.read) and is_contiguous(copy.write):
        wanted[begin : begin + len(data)] = data
        return

    dtype = np.dtype(f"V{size}")
    strides = [tuple(stride * size for stride in piece.strides) for piece in copy[1:]]
    np.ndarray(copy.write.extent, dtype, wanted, begin, strides[1])[...] = np.ndarray(
        copy.read.extent, dtype, data, 0, strides[0]
    )
