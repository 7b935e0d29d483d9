"""The benchmark of sweeps runs and counts."""

from __future__ import annotations

import design_sweep


def test_the_benchmark_counts_what_it_estimates() -> None:
    (one, _), (four, seconds) = design_sweep.swept(1), design_sweep.swept(2)
    assert four == 4 * one > 1000
    assert seconds > 0
    assert design_sweep.one_by_one(2) > 0
