"""The elastic-scaling experiment: its README says what its tables say, and its runs run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest

from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.results.paired_comparison import interval_text
from ddlsched.results.statistics import Interval

FOLDER = Path(__file__).parents[2] / "experiments" / "elastic_scaling"


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("elastic_scaling_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "elastic_scaling_run", module)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("charts", None)


def test_the_readme_shows_the_expected_ratios():
    readme = (FOLDER / "README.md").read_text()
    ratios = pd.read_csv(FOLDER / "expected" / "ratios.csv")
    for (_, _, workload), rows in ratios.groupby(["claim", "cluster", "workload"]):
        cells = [interval_text(Interval(r.ratio, r.low, r.high, r.seeds), decimals=2) for r in rows.itertuples()]
        shown = [line for line in readme.splitlines() if line.startswith(f"| {workload} ")]
        assert any(all(cell in line for cell in cells) for line in shown), (workload, cells)


def test_the_runs_are_all_of_the_grid_and_the_sweeps(experiment):
    grid = 2 * 3 * 3 * 4 * 6
    distinct = {str((sorted(run.labels.items()), run.seed)) for run in experiment.runs([40], None)}
    assert len(distinct) == grid + 7 * 3 * 3


def test_a_run_is_measured(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "HOURS", 0.3)
    runs = [
        experiment.run_of(("balanced", "high", 40), "drop", policy, seed, 1, 10)
        for policy in ("elastic", "largest batch")
        for seed in (1, 2)
    ]
    done = sweep(runs, tmp_path, processes=1)
    assert not done.failures
    measured = experiment.Measured(done)
    table = measured.of("completed", room="drop")
    assert (table["elastic"] >= table["largest batch"]).all()
    dropped = measured.table["dropped_share"]
    assert ((1 - dropped) * measured.table["submitted"]).to_numpy() == pytest.approx(measured.table["completed"])
    assert measured.table["utilisation"].between(0, 1).all()
    ratio = measured.ratio("completed", "largest batch", elastic_over=True, room="drop")
    assert ratio.mean >= 1.0
