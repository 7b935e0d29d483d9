"""The error that sampled runs state is the one that was measured."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import sampling_error

from ddlsched.results.draws import STATED


def test_what_is_stated_of_a_class_is_what_the_table_has_rounded_up() -> None:
    table = pd.read_csv(sampling_error.TABLE)
    classes = table[table["cluster"] == "all"].set_index("class")
    assert set(classes.index) == set(STATED)
    for name, stated in STATED.items():
        assert stated.average_percent == math.ceil(10 * classes.loc[name, "average_rms"]) / 10
        assert stated.jobs_percent == math.ceil(10 * classes.loc[name, "job_p95"]) / 10


@pytest.mark.slow
def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    sampling_error.main(["--out", str(tmp_path / "table.csv")])
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.read_csv(sampling_error.TABLE))


def test_exact_runs_of_other_lengths_stay_near_and_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sampling_error.CLUSTERS, "few", sampling_error.Cluster(8, "microsoft-160:scale=0.1"))
    exact, other = sampling_error.pair("free", "srsf", "first-fit", "few", 1, hair=True)
    error = sampling_error.measured(exact, other)
    assert other.leapt_iterations == 0
    assert 0 < abs(error["average"]) < 0.05


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    assert sampling_error.Kept(file).of("a", lambda: {"jobs": [0.1]}) == {"jobs": [0.1]}
    assert sampling_error.Kept(file).of("a", lambda: pytest.fail("measured again")) == {"jobs": [0.1]}
    assert sampling_error.Kept(file).of("b", lambda: 2) == 2
    assert len(file.read_text().splitlines()) == 2
