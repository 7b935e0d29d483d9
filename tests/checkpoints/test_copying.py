"""Chunks: together they hold every element that is copied, once, and each keeps to its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import collections, odd_collections, under, under_odd
from tiers import examples

from ddlsched.checkpoints.arrays import view_of
from ddlsched.checkpoints.copying import Copy, chunks, is_contiguous, span
from ddlsched.checkpoints.division import divided, within
from ddlsched.checkpoints.tensors import Piece


def assert_chunks_hold_each_copy_once(old, new, tensor, most_elements: int) -> None:
    before, after = old.shards(old.by_name[tensor.name]), new.shards(tensor)
    cells = divided(tuple(shard.layout for shard in before), tuple(shard.layout for shard in after))
    for number, shard in enumerate(after):
        copies = [
            Copy(
                cell.old[0].shard,
                within(before[cell.old[0].shard].layout.pieces[cell.old[0].piece], cell.box),
                within(shard.layout.pieces[held.piece], cell.box),
            )
            for cell in cells
            for held in cell.new
            if held.shard == number
        ]
        written = np.zeros(shard.layout.num_elements, int)
        expected = np.zeros_like(written)
        for copy in copies:
            view_of(expected, copy.write)[...] += 1
        end = 0
        for low, high, parts in chunks(copies, most_elements):
            assert end <= low < high
            end = high
            for part in parts:
                first, behind = span(part.write)
                assert low <= first < behind <= high
                assert part.read.extent == part.write.extent
                view_of(written, part.write)[...] += 1
            assert high - low <= max(most_elements, _longest_row(parts))
        np.testing.assert_array_equal(written, expected)
        assert written.max(initial=0) <= 1


def _longest_row(parts: tuple[Copy, ...]) -> int:
    return max(max(part.write.strides, default=1) for part in parts)


@pytest.mark.long
@settings(max_examples=examples(25, by_default=8))
@given(data=st.data(), most_elements=st.sampled_from((1, 3, 8, 1000)))
def test_chunks_of_any_tensors(data: st.DataObject, most_elements: int) -> None:
    old = data.draw(odd_collections())
    new = data.draw(under_odd(old))
    for tensor in new.tensors:
        assert_chunks_hold_each_copy_once(old, new, tensor, most_elements)


@pytest.mark.long
@settings(max_examples=examples(3))
@given(data=st.data(), most_elements=st.sampled_from((5, 100, 10_000)))
def test_chunks_of_transformers(data: st.DataObject, most_elements: int) -> None:
    old = data.draw(collections())
    new = data.draw(under(old))
    for tensor in new.tensors[::7]:
        assert_chunks_hold_each_copy_once(old, new, tensor, most_elements)


def test_a_long_run_is_cut_and_stays_a_run() -> None:
    whole = Piece((0, 0), (100, 10), 0, (10, 1))
    found = list(chunks([Copy(0, whole, whole)], 95))
    assert [(chunk.low, chunk.high) for chunk in found] == [(low, min(low + 90, 1000)) for low in range(0, 1000, 90)]
    assert all(is_contiguous(chunk.copies[0].read) for chunk in found)


def test_columns_of_two_sources_are_merged_row_by_row() -> None:
    left, right = (Piece((0, first), (100, 5), first, (10, 1)) for first in (0, 5))
    own = Piece((0, 0), (100, 5), 0, (5, 1))
    found = list(chunks([Copy(0, own, left), Copy(1, own._replace(start=(0, 5)), right)], 40))
    assert len(found) == 25
    assert all(len(chunk.copies) == 2 and chunk.high - chunk.low == 40 for chunk in found)


def test_rows_that_lie_far_apart_are_copied_one_by_one() -> None:
    whole = Piece((0, 0), (3, 10), 0, (1000, 1))
    assert [chunk[:2] for chunk in chunks([Copy(0, whole, whole)], 100)] == [(0, 10), (1000, 1010), (2000, 2010)]


def told(copies: list[Copy], most_elements: int) -> list[tuple[int, int, list[tuple[int, int, tuple[int, ...]]]]]:
    """Return each chunk, and of what it holds the source, where it begins and its extent."""
    return [
        (low, high, [(part.source, part.write.offset, part.write.extent) for part in parts])
        for low, high, parts in chunks(copies, most_elements)
    ]


def rows(number: int, width: int, offset: int, stride: int, source: int = 0) -> Copy:
    write = Piece((0, 0), (number, width), offset, (stride, 1))
    return Copy(source, write._replace(offset=0, strides=(width, 1)), write)


def run(elements: int, offset: int, source: int = 0) -> Copy:
    return Copy(source, Piece((0,), (elements,), 0, (1,)), Piece((0,), (elements,), offset, (1,)))


ROWS = [
    # What fits is one chunk, to the last element: two rows of three in rows of five end at element 8.
    ([rows(2, 3, 0, 5)], 8, [(0, 8, [(0, 0, (2, 3))])]),
    ([rows(2, 3, 0, 5)], 7, [(0, 5, [(0, 0, (1, 3))]), (5, 8, [(0, 5, (1, 3))])]),
    ([rows(3, 3, 4, 5)], 10, [(4, 14, [(0, 4, (2, 3))]), (14, 17, [(0, 14, (1, 3))])]),
    ([rows(3, 3, 4, 5)], 12, [(4, 14, [(0, 4, (2, 3))]), (14, 17, [(0, 14, (1, 3))])]),
    ([rows(3, 3, 4, 5)], 13, [(4, 17, [(0, 4, (3, 3))])]),
    # Rows too long for a chunk are apart, and if one is longer, it is whole.
    ([rows(2, 3, 0, 5)], 4, [(0, 3, [(0, 0, (3,))]), (5, 8, [(0, 5, (3,))])]),
    ([rows(2, 3, 0, 5)], 5, [(0, 5, [(0, 0, (1, 3))]), (5, 8, [(0, 5, (1, 3))])]),
    ([run(5, 2)], 2, [(2, 4, [(0, 2, (2,))]), (4, 6, [(0, 4, (2,))]), (6, 7, [(0, 6, (1,))])]),
    # Dimensions of one row say nothing.
    ([Copy(0, Piece((0, 0, 0), (1, 3, 1), 7, (9, 1, 1)), Piece((0, 0, 0), (1, 3, 1), 1, (90, 1, 1)))], 3,
     [(1, 4, [(0, 1, (3,))])]),
    ([Copy(0, Piece((), (), 7, ()), Piece((), (), 4, ()))], 1, [(4, 5, [(0, 4, ())])]),
    # Runs behind each other share a chunk as long as they fit; what begins behind a full chunk begins another.
    ([run(2, 0), run(3, 2, 1)], 5, [(0, 5, [(0, 0, (2,)), (1, 2, (3,))])]),
    ([run(2, 0), run(3, 2, 1)], 4, [(0, 2, [(0, 0, (2,))]), (2, 5, [(1, 2, (3,))])]),
    ([run(3, 2, 1), run(2, 0)], 4, [(0, 2, [(0, 0, (2,))]), (2, 5, [(1, 2, (3,))])]),
    ([run(2, 0), run(2, 10, 1)], 12, [(0, 12, [(0, 0, (2,)), (1, 10, (2,))])]),
    ([run(2, 0), run(2, 10, 1)], 11, [(0, 2, [(0, 0, (2,))]), (10, 12, [(1, 10, (2,))])]),
    # Columns of one row each from two sources are cut between rows.
    ([rows(4, 2, 0, 5), rows(4, 3, 2, 5, 1)], 10,
     [(0, 10, [(0, 0, (2, 2)), (1, 2, (2, 3))]), (10, 20, [(0, 10, (2, 2)), (1, 12, (2, 3))])]),
    ([rows(4, 2, 3, 5), rows(3, 3, 5, 5, 1)], 5,
     [(3, 8, [(0, 3, (1, 2)), (1, 5, (1, 3))]), (8, 13, [(0, 8, (1, 2)), (1, 10, (1, 3))]),
      (13, 18, [(0, 13, (1, 2)), (1, 15, (1, 3))]), (18, 20, [(0, 18, (1, 2))])]),
    # Where each edge would cut a row of the other, all stays together.
    ([rows(3, 3, 0, 5), rows(3, 4, 2, 5, 1)], 5, [(0, 16, [(0, 0, (3, 3)), (1, 2, (3, 4))])]),
    # A run, or a single element, between the rows of others goes with the row in which it begins.
    ([rows(3, 2, 0, 5), run(3, 2, 1), Copy(2, Piece((), (), 0, ()), Piece((), (), 8, ()))], 5,
     [(0, 5, [(0, 0, (1, 2)), (1, 2, (3,))]), (5, 10, [(0, 5, (1, 2)), (2, 8, ())]), (10, 12, [(0, 10, (1, 2))])]),
    # The first copy's begin is no edge here, as rows of the second one go on beyond it; the second one's begin is.
    ([run(2, 3), rows(2, 4, 6, 5, 1), rows(3, 1, 10, 5, 2)], 12,
     [(3, 11, [(0, 3, (2,)), (1, 6, (1, 4)), (2, 10, (1,))]), (11, 21, [(1, 11, (1, 4)), (2, 15, (2,))])]),
    ([run(2, 10), run(2, 12, 1)], 4, [(10, 14, [(0, 10, (2,)), (1, 12, (2,))])]),
    ([run(2, 10), run(2, 12, 1)], 3, [(10, 12, [(0, 10, (2,))]), (12, 14, [(1, 12, (2,))])]),
    ([], 5, []),
]  # fmt: skip


@pytest.mark.parametrize(("copies", "most_elements", "expected"), ROWS)
def test_chunks_by_hand(copies: list[Copy], most_elements: int, expected: object) -> None:
    assert told(copies, most_elements) == expected


def test_parts_of_a_copy_say_where_they_are_in_the_tensor() -> None:
    """Rows 7 to 9 of column 4 of a tensor, of six elements from the second one on each."""
    whole = Piece((7, 4, 2), (3, 1, 6), 50, (20, 20, 1))
    copy = Copy(1, whole, whole._replace(offset=0, strides=(6, 6, 1)))
    (all_rows,) = chunks([copy], 18)
    assert all_rows.copies == (Copy(1, Piece((7, 2), (3, 6), 50, (20, 1)), Piece((7, 2), (3, 6), 0, (6, 1))),)
    first, second = chunks([copy], 12)
    assert first.copies == (Copy(1, Piece((7, 2), (2, 6), 50, (20, 1)), Piece((7, 2), (2, 6), 0, (6, 1))),)
    assert second.copies == (Copy(1, Piece((9, 2), (1, 6), 90, (20, 1)), Piece((9, 2), (1, 6), 12, (6, 1))),)


@pytest.mark.parametrize(
    ("extent", "strides", "contiguous", "elements"),
    [
        ((), (), True, 1),
        ((5,), (1,), True, 5),
        ((5,), (2,), False, 9),
        ((1,), (7,), True, 1),
        ((2, 3), (3, 1), True, 6),
        ((2, 3), (4, 1), False, 7),
        ((2, 1, 3), (3, 90, 1), True, 6),
        ((2, 3), (1, 2), False, 6),
        ((2, 3), (0, 1), False, 3),
    ],
)
def test_what_a_piece_spans_and_whether_it_is_a_run(
    extent: tuple[int, ...], strides: tuple[int, ...], contiguous: bool, elements: int
) -> None:
    piece = Piece((0,) * len(extent), extent, 11, strides)
    assert (is_contiguous(piece), span(piece)) == (contiguous, (11, 11 + elements))
