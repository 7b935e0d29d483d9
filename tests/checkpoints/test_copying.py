"""Chunks: together they hold every element that is copied, once, and each keeps to its bounds."""

from __future__ import annotations

import numpy as np
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


@settings(max_examples=examples(25, by_default=8))
@given(data=st.data(), most_elements=st.sampled_from((1, 3, 8, 1000)))
def test_chunks_of_any_tensors(data: st.DataObject, most_elements: int) -> None:
    old = data.draw(odd_collections())
    new = data.draw(under_odd(old))
    for tensor in new.tensors:
        assert_chunks_hold_each_copy_once(old, new, tensor, most_elements)


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
