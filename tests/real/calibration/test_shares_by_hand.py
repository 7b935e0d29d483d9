"""Parts of the fit of shares by size, worked out row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlsched.real.calibration import fit, shares
from ddlsched.real.calibration.measurements import Measurements
from ddlsched.real.calibration.shares import ShareRows

KNOWN = {"latency_s": 0.001, "per_byte_s": 1e-8, "step_s": 0.0005}


def _rows(*rows: tuple[float, float, float, float, float]) -> ShareRows:
    return ShareRows(*np.array(rows, np.float64).T)


PAIRS = _rows(
    (2e5, 8e5, 2, 0, 0.011), (2e5, 1.6e6, 2, 0, 0.014), (4e5, 1.6e6, 4, 0, 0.03), (8e5, 1.6e6, 4, 0, 0.034),
    (1e5, 2e5, 4, 0, 0.0085),
)  # fmt: skip


def test_an_all_reduce_alone_keeps_its_links_busy_with_bytes_and_steps() -> None:
    """On 2 servers 2 steps move a message, on 4 servers 6 steps move half as much again."""
    assert shares._alone_s(PAIRS, KNOWN) == pytest.approx([0.003, 0.003, 0.009, 0.015, 0.0045])
    without = {"latency_s": 0.001, "per_byte_s": 1e-8}
    assert shares._alone_s(PAIRS, without) == pytest.approx([0.002, 0.002, 0.006, 0.012, 0.0015])


def _by_hand(pairs: ShareRows, windows: list[float]) -> tuple[float, float]:
    """Return exponent and window by trying each window, row by row."""
    found = []
    for window in windows:
        points = []
        for small, large, servers, _, seconds in zip(*vars(pairs).values(), strict=True):
            steps = 2 * (servers - 1)
            alone_s = KNOWN["per_byte_s"] * small * steps / servers + KNOWN["step_s"] * steps
            share = min(max(alone_s / (seconds - KNOWN["latency_s"]), 0.02), 0.98)
            in_flight = min(large / servers, window) / min(small / servers, window)
            points.append((math.log(in_flight), math.log((1 - share) / share)))
        exponent = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
        exponent = min(max(exponent, 0.0), shares.LARGEST_EXPONENT)
        found.append((sum((exponent * x - y) ** 2 for x, y in points), -window, exponent))
    _, window, exponent = min(found)
    return exponent, -window


@pytest.mark.parametrize("number", [4, 7, 61])
def test_the_window_and_the_exponent_have_the_least_squares(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Windows lie between the smallest and the largest part of a message, and beyond all of them."""
    monkeypatch.setattr(shares, "_WINDOWS", number)
    least, most = 1e5 / 4, 1.6e6 / 2
    windows = [least * (most / least) ** (place / (number - 1)) for place in range(1, number)]
    for slower in (1.0, 1.3, 0.8):
        rows = ShareRows(*list(vars(PAIRS).values())[:4], PAIRS.seconds * np.array([1.0, slower, 1.0, slower, 1.0]))
        exponent, window = shares._exponent_and_window(rows, KNOWN)
        expected = _by_hand(rows, [*windows, math.inf])
        assert (exponent, window) == pytest.approx(expected, rel=1e-9)


def test_of_windows_that_fit_alike_the_largest_is_taken() -> None:
    """Where the smaller message is hardly held up, the exponent is 0, with any window."""
    rows = _rows((2e5, 8e5, 2, 0, 0.0042), (4e5, 8e5, 2, 0, 0.0063))
    assert shares._exponent_and_window(rows, KNOWN) == (0.0, math.inf)


@pytest.mark.parametrize(("longer_s", "price_s"), [(0.004, 0.00075), (-0.01, 0.0)])
def test_a_chunk_costs_the_mean_of_what_a_further_one_takes(longer_s: float, price_s: float) -> None:
    """8e5 bytes in chunks of 3e5 are three, two of them further ones; one chunk counts as a further one.

    Two settings take a half of it and all of it longer, so that a chunk costs a quarter and a half; two cost nothing.
    """
    alone_s = [0.01, 0.016, 0.01, 0.01]  # on 2, 4, 2 and 2 servers, with the latency
    rows = _rows(
        (8e5, 0, 2, 3e5, alone_s[0] + longer_s / 2), (8e5, 0, 4, 3e5, alone_s[1] + longer_s),
        (8e5, 0, 2, 8e5, alone_s[2]), (8e5, 0, 2, 2e5, alone_s[3]),
    )  # fmt: skip
    assert shares._chunk_s(rows, KNOWN) == pytest.approx(price_s)


def test_rings_of_several_servers_multiply_bytes_and_steps() -> None:
    """Of 100 bytes on 4 servers 150 are moved in 6 steps, with 3 jobs at once three times that."""
    form = shares._STEPS
    rows = Measurements(
        message_bytes=np.array([100.0, 100.0]), jobs=np.array([1.0, 3.0]), seconds=np.array([1.0, 1.0]),
        servers=np.array([2.0, 4.0]),
    )  # fmt: skip
    assert form.amounts(rows).tolist() == [[1.0, 100.0, 2.0], [1.0, 450.0, 18.0]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "constants", "outside"), [(10, 3, 0.002355), (4, 2, 5.83e-10), (1000, 2, 0.02475)]
)
def test_intervals_of_few_settings_are_widened(settings: int, constants: int, outside: float) -> None:
    """Student's 97.5th percentiles are 2.3646 with 7, 4.3027 with 2 and 1.9623 with 998 degrees of freedom."""
    assert fit.share_outside(settings, constants) == pytest.approx(outside, rel=2e-3)
