"""What one thread reads and puts together: which rows are kept, where they are, and when they are gathered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ddlsched.checkpoints import gathering
from ddlsched.checkpoints.copying import Chunk, Copy, side_by_side
from ddlsched.checkpoints.gathering import (
    Buffers,
    NewArray,
    ThreadBuffers,
    _in_order,
    _parts,
    _row_begins,
    _Rows,
    _rows_around,
    filled,
    is_run,
)
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.reading import Source
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import Piece

CONTENT = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """An array of 20 x 99 elements of two bytes behind 10 others."""
    (tmp_path / "file").write_bytes(CONTENT + b"behind")
    return Source(location_of(tmp_path), "file", Entry("U16", (20, 99), 10))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which bytes are read, in order."""
    found: list[tuple[int, int]] = []
    preadv = os.preadv

    def noted(descriptor: int, parts: list[memoryview], at: int, *flags: int) -> int:
        found.append((at, at + len(parts[0])))
        return preadv(descriptor, parts, at, *flags)

    monkeypatch.setattr(os, "preadv", noted)
    monkeypatch.setattr(os, "pread", None)  # What was read whole is not read again.
    return found


def piece(extent: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Piece:
    return Piece((0,) * len(extent), extent, offset, strides)


@pytest.mark.parametrize(
    ("extent", "read", "write", "run", "begins"),
    [
        ((6,), (1,), (1,), 6, [(0, 0)]),
        ((2, 3), (3, 1), (3, 1), 6, [(0, 0)]),
        ((2, 3), (5, 1), (3, 1), 3, [(0, 0), (5, 3)]),
        ((2, 3), (3, 1), (7, 1), 3, [(0, 0), (3, 7)]),
        ((2, 3), (1, 2), (3, 1), 1, [(0, 0), (2, 1), (4, 2), (1, 3), (3, 4), (5, 5)]),
        ((1, 3), (90, 1), (70, 1), 3, [(0, 0)]),
        ((2, 1, 3), (9, 50, 1), (4, 60, 1), 3, [(0, 0), (9, 4)]),
        ((2, 2, 3), (12, 3, 1), (20, 3, 1), 6, [(0, 0), (12, 20)]),
        ((), (), (), 1, [(0, 0)]),
    ],
)
def test_what_lies_side_by_side_where_it_is_read_and_written(
    extent: tuple[int, ...], read: tuple[int, ...], write: tuple[int, ...], run: int, begins: list[tuple[int, int]]
) -> None:
    copy = Copy(0, piece(extent, read), piece(extent, write))
    assert side_by_side(copy.read, copy.write) == run
    assert _row_begins(copy, run) == begins


def test_rows_are_in_the_order_of_their_places_with_zeros_between_them() -> None:
    copies = [
        Copy(0, piece((2, 3), (3, 1)), piece((2, 3), (10, 1))),
        Copy(0, piece((2,), (1,)), piece((2,), (1,))),
    ]
    memory = memoryview(bytes(range(100)))
    found = list(_in_order(memory, copies, [(20, 10), (40, 0)], 2, 44))
    parts = [range(40, 44), [0] * 6, range(20, 26), [0] * 14, range(26, 32), [0] * 8]
    assert [bytes(part) for part in found] == [bytes(part) for part in parts]
    (whole,) = _in_order(memory, [Copy(0, piece((4,), (1,)), piece((4,), (1,)))], [(7, 0)], 1, 4)
    assert bytes(whole) == bytes(range(7, 11))


@pytest.mark.parametrize(
    ("of", "low", "high"),
    [
        (piece((2, 4), (99, 1), 2 * 99 + 5), 2 * 99, 4 * 99),
        (piece((2, 99), (99, 1), 99), 99, 3 * 99),
        (piece((1, 4), (99, 1), 19 * 99 + 5), 19 * 99, 20 * 99),
        (piece((5,), (1,), 7), 7, 12),
        (piece((), (), 7), 7, 8),
        (piece((2, 2), (1980, 990), 3), 0, 1980),
    ],
)
def test_whole_rows_are_read_around_a_piece(source: Source, of: Piece, low: int, high: int) -> None:
    assert _rows_around(source, of) == _Rows(source, 10 + 2 * low, 10 + 2 * high)


def test_rows_stay_until_there_is_no_more_room(source: Source, read: list[tuple[int, int]]) -> None:
    buffers = Buffers(100)
    rows = [_Rows(source, low, low + 40) for low in (0, 40, 80)]
    assert buffers.begins(rows[:2]) == [0, 40]
    assert buffers.begins([rows[1], rows[0], rows[1]]) == [40, 0, 40]
    assert read == [(0, 40), (40, 80)]
    assert buffers.begins([_Rows(source, 0, 20)]) == [80]  # Just fits.
    assert buffers.begins([rows[1], rows[2]]) == [0, 40]  # Does not: all is read anew.
    assert read[2:] == [(0, 20), (40, 80), (80, 120)]
    assert buffers.begins([*rows[:2], _Rows(source, 0, 21)]) is None
    assert buffers.begins(rows[1:2]) == [0]
    assert bytes(buffers._read[:40]) == CONTENT[40:80]
    buffers.forget()
    assert buffers.begins(rows[1:2]) == [0]
    assert len(read) == 7


def test_a_run_that_is_read_is_over_what_was_kept(source: Source, read: list[tuple[int, int]]) -> None:
    seen: list[tuple[str, int, bytes]] = []
    buffers = Buffers(100)
    buffers.forget(lambda file, low, data: seen.append((file, low, bytes(data))))
    assert buffers.begins([_Rows(source, 0, 40)]) == [0]
    assert bytes(buffers.data(source, piece((60,), (1,), 3))) == CONTENT[16:136]  # More than a chunk has.
    assert len(buffers._read) == 120
    assert buffers.begins([_Rows(source, 0, 40)]) == [0]
    assert read == [(0, 40), (16, 136), (0, 40)]
    assert seen == [("file", low, CONTENT[low:high]) for low, high in read]


def test_lists_of_views_are_made_once_and_anew_for_another_memory(source: Source) -> None:
    made: list[object] = []

    def views(key: object) -> None:
        buffers.views(key, lambda memory: made.append(key) or [memory])  # type: ignore[func-returns-value]

    buffers = Buffers(10)
    for key in (1, 2, 1, *range(3, 17), 1, 17, 17, 1):
        views(key)
    assert made == [*range(1, 17), 17, 1]  # Sixteen are kept, and none of them beside a seventeenth.
    buffers.data(source, piece((9,), (1,)))  # Takes more memory.
    views(17)
    buffers.data(source, piece((9,), (1,)))  # Does not.
    views(17)
    assert made[18:] == [17]


def test_a_short_read_is_gone_on_with(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: 5)
    assert bytes(Buffers(10).data(source, piece((9,), (1,)))) == CONTENT[10:28]


def test_room_for_a_chunk_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHERED_BYTES", 64)
    buffers = Buffers(100)
    first = buffers.wanted(10)
    assert (len(first), len(first.obj), len(buffers.wanted(64))) == (10, 64, 64)  # type: ignore[arg-type]
    assert buffers.wanted(64).obj is first.obj
    assert (len(buffers.wanted(70)), buffers.wanted(3).obj is first.obj) == (70, False)
    assert len(Buffers(20).wanted(3).obj) == 20  # type: ignore[arg-type]
    monkeypatch.undo()
    assert len(Buffers(1 << 30).wanted(3).obj) == 1 << 20  # type: ignore[arg-type]


def test_each_thread_has_its_buffers_and_begins_with_nothing(source: Source, read: list[tuple[int, int]]) -> None:
    buffers = ThreadBuffers(100)
    own = buffers.own()
    own.begins([_Rows(source, 0, 40)])
    assert buffers.own() is own
    assert own.num_bytes == 100
    own.begins([_Rows(source, 0, 40)])
    assert len(read) == 2


def chunk_of(*copies: Copy, low: int, high: int) -> Chunk:
    return Chunk(low, high, copies)


@pytest.mark.parametrize(
    ("copies", "elements", "whole"),
    [
        ([Copy(0, piece((6,), (1,), 5), piece((6,), (1,)))], 6, True),
        ([Copy(0, piece((6,), (1,), 5), piece((6,), (1,)))], 7, False),
        ([Copy(0, piece((2, 3), (4, 1)), piece((2, 3), (3, 1)))], 6, False),
        ([Copy(0, piece((3,), (1,)), piece((3,), (1,)))] * 2, 3, False),
    ],
)
def test_a_chunk_that_lies_in_one_source_is_a_run(copies: list[Copy], elements: int, whole: bool) -> None:
    assert [is_run(Chunk(low, low + elements, tuple(copies))) for low in (0, 9)] == [whole] * 2


def test_what_lies_elsewhere_is_read_to_the_same_places() -> None:
    fsspec.filesystem("memory").pipe("/gathered/file", CONTENT)
    source = Source(location_of("memory://gathered"), "file", Entry("U16", (20, 99), 10))
    buffers = Buffers(100)
    assert bytes(buffers.data(source, piece((60,), (1,), 3))) == CONTENT[16:136]
    assert buffers.begins([_Rows(source, 40, 80), _Rows(source, 0, 40)]) == [0, 40]
    assert bytes(buffers._read[:80]) == CONTENT[40:80] + CONTENT[:40]


def test_short_rows_are_gathered_and_long_ones_are_not(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of 40 elements, 80 bytes, of which the first two are wanted, at 3 and 53 of what is padded to 100."""
    copy = Copy(0, piece((2, 40), (99, 1), 5), piece((2, 40), (50, 1), 1003))
    array = NewArray(tensor="t", dtype="U16", sources=(source,))
    expected = np.zeros(100, "<u2")
    whole = np.frombuffer(CONTENT, "<u2", 20 * 99, 10).reshape(20, 99)
    expected[3:43], expected[53:93] = whole[0, 5:45], whole[1, 5:45]
    chunk = Chunk(1000, 1100, (copy,))
    buffers = Buffers(1000)
    buffers.wanted(300)[:] = b"x" * 300  # What an earlier chunk left.
    for long_row_bytes, parts in ((81, 1), (80, 5)):
        monkeypatch.setattr(gathering, "_LONG_ROW_BYTES", long_row_bytes)
        found = filled(array, chunk, buffers)
        assert len(found) == parts
        assert b"".join(found) == expected.tobytes()
    monkeypatch.setattr(gathering, "_LONG_ROW_BYTES", 80)
    few = Buffers(100)  # Less than two rows: they are gathered after all, part by part.
    assert [bytes(part) for part in filled(array, chunk, few)] == [expected.tobytes()]


@pytest.mark.parametrize(("width", "parts"), [(255, 1), (256, 2)])
def test_rows_of_256_bytes_are_long(source: Source, width: int, parts: int) -> None:
    wide = source._replace(entry=Entry("U8", (4, 300), 10))
    copy = Copy(0, piece((2, width), (300, 1), 7), piece((2, width), (width, 1)))
    array = NewArray(tensor="t", dtype="U8", sources=(wide,))
    found = filled(array, Chunk(0, 2 * width, (copy,)), Buffers(1000))
    assert len(found) == parts
    assert b"".join(found) == CONTENT[17 : 17 + width] + CONTENT[317 : 317 + width]


def test_a_buffer_below_an_element_holds_one_at_a_time(source: Source, read: list[tuple[int, int]]) -> None:
    copy = Copy(0, piece((3, 2), (99, 1)), piece((3, 2), (2, 1)))
    array = NewArray(tensor="t", dtype="U16", sources=(source,))
    (found,) = filled(array, Chunk(0, 6, (copy,)), Buffers(1))
    begins = [10 + 2 * (99 * row + column) for row in range(3) for column in range(2)]
    assert bytes(found) == b"".join(CONTENT[begin : begin + 2] for begin in begins)
    assert read == [(begin, begin + 2) for begin in begins]


def test_what_is_read_at_a_time_is_bounded_by_rows() -> None:
    copy = Copy(2, piece((5, 3), (10, 1), 7), piece((5, 3), (3, 1), 100))

    def told(most: int) -> list[tuple[int, int, tuple[int, ...]]]:
        return [(part.read.offset, part.write.offset, part.read.extent) for part in _parts(copy, most)]

    assert told(43) == [(7, 100, (5, 3))]
    assert told(42) == [(7, 100, (4, 3)), (47, 112, (3,))]
    assert told(20) == [(7, 100, (2, 3)), (27, 106, (2, 3)), (47, 112, (3,))]
    assert told(19) == [(7 + 10 * row, 100 + 3 * row, (3,)) for row in range(5)]
    assert told(2)[:3] == [(7, 100, (2,)), (9, 102, ()), (17, 103, (2,))]
    assert all(part.source == 2 for part in _parts(copy, 2))


def test_scattered_elements_are_gathered(source: Source) -> None:
    """Every other element of a column of three, turned."""
    array: Any = NewArray(tensor="t", dtype="U16", sources=(source,))
    copy = Copy(0, piece((2, 3), (2, 99), 4), piece((2, 3), (3, 1), 50))
    whole = np.frombuffer(CONTENT, "<u2", 20 * 99, 10).reshape(20, 99)
    found = filled(array, Chunk(50, 56, (copy,)), Buffers(1000))
    assert b"".join(found) == whole[:3, 4:8:2].T.tobytes()
