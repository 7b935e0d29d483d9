"""Tables of measured against simulated runs, on figures made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddlsched.testbed.fidelity_report import report_of
from ddlsched.testbed.fidelity_tables import error_table, gain_table, job_errors, makespan_table, rank_table

# By policy and repeat, the JCTs of two jobs.
MEASURED = {
    "free": [(10.0, 20.0), (10.2, 20.2), (9.8, 19.8)],
    "one": [(8.0, 18.0), (8.1, 18.3), (7.9, 17.7)],
    "two": [(9.9, 20.3), (10.3, 19.9), (10.1, 20.1)],
}
SIMULATED = {"free": (11.0, 20.0), "one": (8.0, 16.2), "two": (10.0, 18.0)}


def table(policy: str, jcts: tuple[float, float], **more: object) -> list[dict[str, object]]:
    return [
        {"mix": "m", "policy": policy, "job_id": name, "jct_s": s, "iteration_s": s / 10, "finish_s": s + 1, **more}
        for name, s in zip("ab", jcts, strict=True)
    ]


@pytest.fixture
def measured() -> pd.DataFrame:
    rows = [
        row
        for policy, repeats in MEASURED.items()
        for repeat, jcts in enumerate(repeats)
        for row in table(policy, jcts, repeat=repeat, machine_limited=False)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def simulated() -> pd.DataFrame:
    rows = [row for policy, jcts in SIMULATED.items() for row in table(policy, jcts, model="max-min")]
    return pd.DataFrame(rows)


def test_a_jobs_error_is_to_the_median_of_the_repeats(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    errors = job_errors(measured, simulated).set_index(["policy", "job_id"])
    assert errors.loc[("free", "a"), "measured_jct_s"] == 10.0
    assert errors.loc[("free", "a"), "jct_error"] == pytest.approx(0.1)
    assert errors.loc[("one", "b"), "jct_error"] == pytest.approx(-0.1)
    assert errors.loc[("one", "b"), "iteration_error"] == pytest.approx(-0.1)


def test_errors_are_given_by_policy_and_over_all(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    errors = error_table(job_errors(measured, simulated)).set_index("policy")
    assert list(errors.index) == ["free", "one", "two", "all"]
    assert errors.loc["free", "mean_abs_jct_error"] == pytest.approx(0.05)
    assert errors.loc["one", "mean_jct_error"] == pytest.approx(-0.05)
    assert errors.loc["all", "jobs"] == 6
    every = [0.1, 0, 0, 0.1, 0.1 / 10.1, 2.1 / 20.1]
    assert errors.loc["all", "mean_abs_jct_error"] == pytest.approx(np.mean(every))
    assert errors.loc["all", "p95_abs_jct_error"] == pytest.approx(np.quantile(every, 0.95))


def test_makespans(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    spans = makespan_table(measured, simulated).set_index("policy")
    assert spans.loc["one", ["measured_s", "simulated_s"]].tolist() == [19.0, 17.2]
    assert spans.loc["one", "error"] == pytest.approx(17.2 / 19 - 1)


def test_gains_are_paired_by_repeat_and_have_intervals(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    gains = gain_table(measured, simulated, "free").set_index("policy")
    each = [1 - 13 / 15, 1 - 13.2 / 15.2, 1 - 12.8 / 14.8]
    assert gains.loc["one", "measured_gain"] == pytest.approx(np.mean(each))
    assert gains.loc["one", "low"] < np.mean(each) < gains.loc["one", "high"]
    assert gains.loc["one", "simulated_gain"] == pytest.approx(1 - 12.1 / 15.5)


def test_one_repeat_gives_no_interval(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    gains = gain_table(measured[measured.repeat == 0], simulated, "free")
    assert gains.low.map(math.isnan).all()


def test_pairs_of_policies_count_only_where_the_repeats_tell_them_apart(
    measured: pd.DataFrame, simulated: pd.DataFrame
) -> None:
    (row,) = rank_table(measured, simulated).to_dict("records")
    assert (row["pairs"], row["pairs_right"]) == (2, 2)  # one against free and two; free against two is undecided
    assert row["mean_regret"] == 0.0


def test_the_regret_is_that_of_following_the_simulation(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    wrong = simulated.assign(jct_s=simulated.jct_s.where(simulated.policy != "free", 1.0))
    (row,) = rank_table(measured, wrong).to_dict("records")
    assert (row["pairs"], row["pairs_right"]) == (2, 1)
    assert row["mean_regret"] == pytest.approx(15 / 13 - 1)


def test_the_report_has_every_table_and_draws_both_charts(
    measured: pd.DataFrame, simulated: pd.DataFrame, tmp_path: Path
) -> None:
    report = report_of(measured.assign(machine_limited=True), simulated, {"max-min": "max-min:per_byte_s=1e-7"}, "free")
    text = report.text()
    assert "max-min:per_byte_s=1e-7" in text
    assert "In 9 of 9 runs the machine may have been the limit" in text
    charts = report.write(tmp_path)
    assert {path.name for path in charts} == {
        f"{stem}.{suffix}" for stem in ("measured_against_simulated", "error_distribution") for suffix in ("png", "svg")
    }
    assert pd.read_csv(tmp_path / "gains.csv").policy.tolist() == ["one", "two"]
