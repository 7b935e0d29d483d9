"""How gloo's ring divides a message; that sums stay the same to the bit is tested with PyTorch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.errors import TestbedError
from ddlsched.real import torch as hook
from ddlsched.real.torch import part_length


@pytest.mark.long
@given(st.integers(1, 10**8), st.integers(2, 64), st.sampled_from([2, 4, 8]))
def test_the_parts_of_all_ranks_hold_the_message_and_little_more(count: int, ranks: int, item_bytes: int) -> None:
    length = part_length(count, ranks, item_bytes)
    assert ranks * length >= count
    segments = max(2, -(-count * item_bytes // 2**20 // ranks) + 1)  # of a part, each rounded up to whole items
    assert ranks * length < count + ranks * (segments + 1)


@pytest.mark.long
@given(st.integers(1, 10**5), st.integers(2, 16))
def test_a_width_that_divides_into_itself_is_near(width: int, ranks: int) -> None:
    found = next(w for w in range(max(width, 2), width + 100) if part_length(ranks * w, ranks, 4) == w)
    assert found < width + 10


@pytest.mark.parametrize(("ranks", "width"), [(3, 2), (3, 100_001), (8, 200_003)])
def test_item_27_a_chunk_is_widened_until_a_part_of_it_is_as_wide(
    ranks: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(range(10))
    monkeypatch.setattr(hook, "part_length", lambda *size: (next(tries), part_length(*size))[1])
    chunk: Any = SimpleNamespace(_ranks=ranks, _tensor=SimpleNamespace(element_size=lambda: 4))
    found = hook.RingChunk._width(chunk, width)
    assert found >= width
    assert part_length(ranks * found, ranks, 4) == found


@pytest.mark.parametrize("whole", [True, False])
def test_item_27_what_was_reduced_in_a_chunk_of_its_own_is_written_back(whole: bool) -> None:
    done: list[str] = []
    streams = SimpleNamespace(after_collective=nullcontext, finish=lambda *_: done.append("finished"))
    client = SimpleNamespace(sent=lambda *_, last: done.append(f"sent, last: {last}"))
    part: Any = None if whole else SimpleNamespace(write_back=lambda: done.append("written"))
    sending: Any = SimpleNamespace(
        _streams=streams,
        _client=client,
        _lock=nullcontext(),
        _left=1,
        _task=0,
        _iteration=0,
        _result=None,
        _tensor=None,
    )
    hook._Sending._ended(sending, SimpleNamespace(wait=lambda: None), part, 0)
    assert done == [*([] if whole else ["written"]), "sent, last: True", "finished"]


def test_an_error_in_a_future_is_raised_and_a_tensor_is_handed_on() -> None:
    assert hook._tensor_of(SimpleNamespace(value=lambda: "tensor")) == "tensor"
    with pytest.raises(TestbedError, match=r"^the gate is gone$"):
        hook._tensor_of(SimpleNamespace(value=lambda: TestbedError("the gate is gone")))


def test_only_the_first_error_reaches_a_result() -> None:
    kept: list[object] = []
    result = SimpleNamespace(done=lambda: bool(kept), set_result=kept.append)
    sending: Any = SimpleNamespace(_lock=nullcontext(), _result=result)
    first = TestbedError("first")
    for error in (first, TestbedError("second")):
        hook._Sending.fail(sending, error)
    assert kept == [first]
