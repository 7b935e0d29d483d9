"""The elastic-scaling experiment: its README says what its tables say, and its runs run."""

from __future__ import annotations

import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.comparisons.sweeps.sweep import sweep

FOLDER = EXPERIMENTS / "elastic_scaling"
(run,) = scripts_of("elastic_scaling", "run")


def test_the_runs_are_all_of_the_grid():
    grid = 2 * 3 * 3 * 4 * 6
    distinct = {str((sorted(one.labels.items()), one.seed)) for one in run.runs([40], None)}
    assert len(distinct) == grid


@pytest.mark.long
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
