"""The error that sampled runs state is the one that was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import sampling_error

import ddlsched
from ddlsched.results.draws import STATED


def test_what_is_stated_of_a_class_is_what_the_table_has_rounded_up() -> None:
    table = pd.read_csv(sampling_error.TABLE)
    classes = table[table["class"].notna()].set_index("class")
    assert set(classes.index) == set(STATED)
    for name, stated in STATED.items():
        assert stated.average_percent == math.ceil(10 * classes.loc[name, "average_rms"]) / 10
        assert stated.jobs_percent == math.ceil(10 * classes.loc[name, "job_p95"]) / 10


@pytest.mark.slow
def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    sampling_error.main(["--out", str(tmp_path / "table.csv")])
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.read_csv(sampling_error.TABLE))


def test_runs_have_the_starts_of_the_exact_one_whenever_their_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    few = sampling_error.Cluster(8, "microsoft-160:scale=0.1", groups=True)
    monkeypatch.setitem(sampling_error.CLUSTERS, "few", few)
    exact, sampled, other = sampling_error.runs_of("SRSF(1)", "srsf", "first-fit", "few", 1)
    assert sampled.leapt_iterations > 0 == other.leapt_iterations
    for run in (sampled, other):
        assert (run.jobs["queueing_s"] == exact.jobs["queueing_s"]).all()
        assert (run.jobs["finish_s"] != exact.jobs["finish_s"]).any()
    again = ddlsched.simulate(
        exact.workload,
        replace(exact.cluster, gpus_per_server=4 * sampling_error.SameStarts.spare),
        placement=sampling_error.SameStarts(exact),
        order="srsf",
        **sampling_error.SENDING["SRSF(1)"],
    )
    assert again.jobs.equals(exact.jobs)
    error = sampling_error.measured(exact, sampled, other)
    assert error["class"] == list(STATED)[4]
    assert 0 < abs(error["hair"]) < 0.05
    assert sampling_error.measured(exact, again)["average"] == 0.0


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    assert sampling_error.Kept(file).of("a", lambda: {"jobs": [0.1]}) == {"jobs": [0.1]}
    assert sampling_error.Kept(file).of("a", lambda: pytest.fail("measured again")) == {"jobs": [0.1]}
    assert sampling_error.Kept(file).of("b", lambda: 2) == 2
    assert len(file.read_text().splitlines()) == 2
