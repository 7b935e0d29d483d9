"""How gloo's ring divides a message; that sums stay the same to the bit is tested with PyTorch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddlsched.real.torch import part_length


@given(st.integers(1, 10**8), st.integers(2, 64), st.sampled_from([2, 4, 8]))
def test_the_parts_of_all_ranks_hold_the_message_and_little_more(count: int, ranks: int, item_bytes: int) -> None:
    length = part_length(count, ranks, item_bytes)
    assert ranks * length >= count
    segments = max(2, -(-count * item_bytes // 2**20 // ranks) + 1)  # of a part, each rounded up to whole items
    assert ranks * length < count + ranks * (segments + 1)


@given(st.integers(1, 10**5), st.integers(2, 16))
def test_a_width_that_divides_into_itself_is_near(width: int, ranks: int) -> None:
    found = next(w for w in range(max(width, 2), width + 100) if part_length(ranks * w, ranks, 4) == w)
    assert found < width + 10
