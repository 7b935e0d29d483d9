"""What is kept of recorded slices: the same values in fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ddlsched.engine.field_values import SliceKind
from ddlsched.engine.outcome import KeptSlices
from ddlsched.engine.records import make_records
from ddlsched.testing.conformance_runs import run_example


@pytest.mark.parametrize(("short", "bytes_each"), [(False, 72), (True, 52)])
def test_what_is_kept_is_what_was_appended(short: bool, bytes_each: int) -> None:
    rng = np.random.default_rng(1)
    pieces = [make_records("slice", count) for count in (3, 0, 40, 1000)]
    for piece in pieces:
        for name in piece.dtype.names:
            piece[name] = rng.integers(-1, 2**62 if name in ("iteration", "start_ns", "end_ns") else 2**31, len(piece))
    kept = KeptSlices(short)
    for piece in pieces:
        kept.append(piece)
    whole = np.concatenate(pieces)
    assert kept.all().dtype.itemsize == bytes_each
    assert all(np.array_equal(kept.all()[name], whole[name]) for name in whole.dtype.names)


def test_what_is_sent_has_a_rate_and_nothing_else() -> None:
    slices = run_example(0, timeline=True).finished.slices
    sent = slices["kind"] == SliceKind.TRANSFER
    assert (slices["rate"][sent] > 0).all()
    assert (slices["rate"][~sent] == 0).all()
    assert 0 < sent.sum() < len(slices)
