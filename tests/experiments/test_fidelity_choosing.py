"""The grid over the constants of connection-shares: its best is the nearest to what was measured on training mixes."""

from __future__ import annotations

import shutil
from math import inf
from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.real.testbed.run_models import RunModel, simulated_runs

choosing, mixes, run = scripts_of("fidelity", "choosing", "mixes", "run")
MEASURED = EXPERIMENTS / "fidelity" / "measured"
CHOSEN = (0.25, 3e5, 0.03)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two mixes, of each half one, whose measured times are those that the chosen constants simulate."""
    shutil.copytree(MEASURED, tmp_path, dirs_exist_ok=True)
    rows = pd.read_csv(tmp_path / "measured.csv", dtype={"servers": str})
    rows = rows[rows.mix.isin(["seed-0", "seed-1"]) & (rows.policy == mixes.BASELINE) & (rows.repeat == 0)]
    model = {"own": RunModel(contention=run.fitted(MEASURED).by_name["connection-shares"].contention)}
    simulated = simulated_runs([mixes.mix_of(0, (mixes.BASELINE,))], model).set_index("job_id").jct_s
    training = rows.mix == "seed-0"
    rows.loc[training, "jct_s"] = rows.job_id[training].map(simulated)
    rows.to_csv(tmp_path / "measured.csv", index=False)
    return tmp_path


def test_the_point_that_made_the_times_is_the_best(folder: Path) -> None:
    found = choosing.searched(folder, [(0.0, inf, 0.0), CHOSEN, (0.5, inf, 0.06)])
    assert tuple(found.loc[0, list(choosing.CONSTANTS)]) == CHOSEN
    assert found.error[0] < 1e-6 < 1e-3 < found.error[1] <= found.error[2]


def test_held_out_mixes_are_not_looked_at(folder: Path) -> None:
    measured, training = choosing.training_runs(folder)
    assert [mix.name for mix in training] == measured.mix.unique().tolist() == ["seed-0"]


def test_the_grid_has_the_chosen_point_and_no_two_that_are_the_same_model() -> None:
    points = choosing.grid()
    assert points.count(CHOSEN) == 1
    assert [point for point in points if point[0] == 0] == [(0.0, inf, loss) for loss in choosing.LOSSES]


def test_the_text_tells_best_chosen_and_how_flat_it_is() -> None:
    rows = [(0.125, 3e5, 0.02, 0.06), (*CHOSEN, 0.062), (0.5, inf, 0.03, 0.09)]
    found = pd.DataFrame(rows, columns=[*choosing.CONSTANTS, "error"])
    chosen = run.fitted(MEASURED).by_name["connection-shares"].contention
    lines = choosing.text(found, chosen).splitlines()
    assert lines[1] == "  best: exponent 0.125, window 300 kB, loss 0.02: 6.00 %"
    assert lines[2] == "  chosen, number 2: exponent 0.25, window 300 kB, loss 0.03: 6.20 %"
    assert lines[3] == "  within 0.5 points of the best: 2"
    assert lines[4:] == [
        "least error by exponent, whatever the others (%): 0.125: 6.00, 0.25: 6.20, 0.5: 9.00",
        "least error by window_bytes, whatever the others (%): 300000: 6.00, inf: 9.00",
        "least error by loss, whatever the others (%): 0.02: 6.00, 0.03: 6.20",
    ]
