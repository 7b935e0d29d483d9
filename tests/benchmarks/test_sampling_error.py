"""The error that sampled runs state is the one that was measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sampling_error

from ddlsched.results.metrics import STATED

FURTHER = {0: (0.30, 2.13), 2: (0.87, 12.6), 3: (0.09, 0.33)}
"""By the place of their class: errors on further seeds, on a Clos and of language models, of docs/statistics.md."""


def test_what_is_stated_of_a_class_is_the_most_that_was_measured_rounded_up() -> None:
    table = pd.read_csv(sampling_error.TABLE)
    assert set(table.loc[table["class"].notna(), "cluster"].dropna()) == {"64 GPUs", "512 GPUs", "512 GPUs, long"}
    table.loc[table["policies"] == "SRSF(1)", "class"] = list(STATED)[2]  # whose errors are the largest of that class
    classes = table.groupby("class")[["average_rms", "job_p95"]].max()
    assert set(classes.index) == set(STATED)
    for place, (name, stated) in enumerate(STATED.items()):
        average, jobs = FURTHER.get(place, (0.0, 0.0))
        assert stated.average_percent == math.ceil(10 * max(classes.loc[name, "average_rms"], average)) / 10
        assert stated.jobs_percent == math.ceil(10 * max(classes.loc[name, "job_p95"], jobs)) / 10


@pytest.mark.slow
def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    sampling_error.main(["--out", str(tmp_path / "table.csv")])
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.read_csv(sampling_error.TABLE))


@pytest.mark.long
def test_runs_have_the_starts_of_the_exact_one_whenever_their_jobs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    few = sampling_error.Cluster(8, "microsoft-160:scale=0.05", groups=True)
    monkeypatch.setitem(sampling_error.CLUSTERS, "few", few)
    exact, sampled, other = sampling_error.runs_of("SRSF(1)", "srsf", "first-fit", "few", 1)
    assert sampled.leapt_iterations > 0 == other.leapt_iterations
    for run in (sampled, other):
        assert (run.jobs["queueing_s"] == exact.jobs["queueing_s"]).all()
        assert (run.jobs["finish_s"] != exact.jobs["finish_s"]).any()
    given = {"order": "srsf", **sampling_error.SENDING["SRSF(1)"]}
    again = sampling_error.at_its_starts(exact, given, {})
    assert again.jobs.equals(exact.jobs)
    error = sampling_error.measured(exact, sampled, other)
    assert error["class"] == list(STATED)[4]
    assert 0 < abs(error["hair"]) < 0.05
    assert sampling_error.measured(exact, again)["average"] == 0.0


def test_whole_runs_are_compared_by_their_means_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)

    def averages(_: int) -> dict[str, list[list[float]]]:
        exact = 100 * rng.uniform(1, 2, size=(4, sampling_error.DRAWS))
        return {"exact": exact.tolist(), "sampled": (1.02 * np.roll(exact, 1, axis=1)).tolist()}

    monkeypatch.setattr(sampling_error, "whole_averages", averages)
    table = sampling_error.whole_table(list(range(8))).set_index("of")
    sending = table.loc["free":"SRSF(1)"]  # type: ignore[misc]
    assert (sending[["mean", "low", "high"]] == 2.0).all(axis=None)
    assert (sending["draw"] > 10.0).all()
    alike = table.loc["pairs of policies in the same order"]
    assert alike["rms"] == alike["draw"] < 100.0
    assert (table.loc["the same, less draws'", ["mean", "low", "high"]] == 0.0).all()
