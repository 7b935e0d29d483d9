"""The benchmark of sweeps runs and counts."""

from __future__ import annotations

import runpy

from training_data import ROOT


def test_the_benchmark_counts_what_it_estimates() -> None:
    parts = runpy.run_path(str(ROOT / "benchmarks" / "design_sweep.py"))
    (one, _), (four, seconds) = parts["swept"](1), parts["swept"](2)
    assert four == 4 * one > 1000
    assert seconds > 0
    assert parts["one_by_one"](2) > 0
