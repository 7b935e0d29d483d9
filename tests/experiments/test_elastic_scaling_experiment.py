"""The elastic-scaling experiment: its README says what its tables say, and its runs run."""

from __future__ import annotations

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import Interval

FOLDER = EXPERIMENTS / "elastic_scaling"
(run,) = scripts_of("elastic_scaling", "run")


def test_the_readme_shows_the_expected_ratios():
    readme = (FOLDER / "README.md").read_text()
    ratios = pd.read_csv(FOLDER / "expected" / "ratios.csv")
    for (_, _, workload), rows in ratios.groupby(["claim", "cluster", "workload"]):
        cells = [interval_text(Interval(r.ratio, r.low, r.high, r.seeds), decimals=2) for r in rows.itertuples()]
        shown = [line for line in readme.splitlines() if line.startswith(f"| {workload} ")]
        assert any(all(cell in line for cell in cells) for line in shown), (workload, cells)


def test_the_runs_are_all_of_the_grid_and_the_sweeps():
    grid = 2 * 3 * 3 * 4 * 6
    distinct = {str((sorted(one.labels.items()), one.seed)) for one in run.runs([40], None)}
    assert len(distinct) == grid + 7 * 3 * 3


def test_a_run_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "HOURS", 0.3)
    runs = [
        run.run_of(("balanced", "high", 40), "drop", policy, seed, 1, 10)
        for policy in ("elastic", "largest batch")
        for seed in (1, 2)
    ]
    done = sweep(runs, tmp_path, processes=1)
    assert not done.failures
    measured = run.Measured(done)
    table = measured.of("completed", room="drop")
    assert (table["elastic"] >= table["largest batch"]).all()
    dropped = measured.table["dropped_share"]
    assert ((1 - dropped) * measured.table["submitted"]).to_numpy() == pytest.approx(measured.table["completed"])
    assert measured.table["utilisation"].between(0, 1).all()
    ratio = measured.ratio("completed", "largest batch", elastic_over=True, room="drop")
    assert ratio.mean >= 1.0


def test_the_readme_shows_the_expected_sweeps():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    printed = run.sweep_text(pd.read_csv(FOLDER / "expected" / "sweeps.csv"))
    assert all(line in readme for line in printed.splitlines() if line.startswith("|"))
