"""Tables of measured against simulated runs, on figures made by hand."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddlsched.real.testbed.fidelity import (
    _apart,
    error_table,
    gain_summary,
    gain_table,
    job_errors,
    judged,
    makespan_table,
    rank_table,
    report_of,
    spread_table,
)

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


@pytest.mark.long
def test_what_repeats_differ_by(measured: pd.DataFrame) -> None:
    """Under one policy: a 8.0, 8.1 and 7.9 s, b 18.0, 18.3 and 17.7 s."""
    table = spread_table(measured).set_index("policy")
    assert table.jobs.tolist() == [2, 2, 2]
    assert table.mean_spread["one"] == pytest.approx((0.2 / 8 + 0.6 / 18) / 2)
    assert table.most_spread["one"] == pytest.approx(0.6 / 18)
    assert spread_table(measured[measured.repeat == 0]).empty


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


def errors_of(mixes: dict[str, list[float]]) -> pd.DataFrame:
    rows = [(mix, "max-min", "free", error, error) for mix, errors in mixes.items() for error in errors]
    return pd.DataFrame(rows, columns=["mix", "model", "policy", "jct_error", "iteration_error"])


@pytest.mark.long
def test_errors_have_intervals_over_mixes_and_not_over_jobs() -> None:
    """All jobs of a mix are off alike: three of them say no more than one."""
    each = [0.02, -0.04, 0.05, 0.1, 0.01, -0.08, 0.03, 0.06]
    one = error_table(errors_of({str(mix): [error] for mix, error in enumerate(each)})).iloc[0]
    three = error_table(errors_of({str(mix): [error] * 3 for mix, error in enumerate(each)})).iloc[0]
    assert one["mean_abs_jct_error"] == pytest.approx(np.mean(np.abs(each)))
    assert one["mean_low"] < one["mean_abs_jct_error"] < one["mean_high"]
    assert one["mean_low"] == pytest.approx(np.mean(np.abs(each)) - 1.96 * np.std(np.abs(each)) / 8**0.5, abs=0.004)
    assert three[["mean_low", "mean_high"]].tolist() == pytest.approx(one[["mean_low", "mean_high"]].tolist())
    assert one["p95_low"] <= one["p95_abs_jct_error"] <= one["p95_high"] <= 0.1
    few = error_table(errors_of({str(mix): [0.1] for mix in range(4)})).iloc[0]
    assert np.isnan(few[["mean_low", "mean_high", "p95_low", "p95_high"]].astype(float)).all()


def test_runs_in_which_the_machine_was_the_limit_are_left_out_unless_all_were(measured: pd.DataFrame) -> None:
    some = measured.assign(machine_limited=measured.repeat == 1)
    assert judged(some).repeat.unique().tolist() == [0, 2]
    assert len(judged(measured.assign(machine_limited=True))) == len(measured)


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


def test_gains_need_both_policies_in_a_repeat(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    """Of a mix whose measuring was stopped."""
    part = measured[(measured.policy != "two") & ((measured.policy != "one") | (measured.repeat == 1))]
    (gain,) = gain_table(part, simulated, "free").to_dict("records")
    assert (gain["policy"], gain["measured_gain"]) == ("one", pytest.approx(1 - 13.2 / 15.2))
    assert gain_table(part[part.policy == "one"], simulated, "free").empty
    assert rank_table(part[part.policy == "one"], simulated).empty


def test_gains_over_mixes_are_measured_against_simulated() -> None:
    measured_gains, simulated_gains = [0.10, 0.02, 0.06, 0.08], [0.12, 0.01, 0.09, 0.08]
    columns = ["mix", "policy", "model", "measured_gain", "low", "high", "simulated_gain"]
    rows = [
        (mix, "one", "max-min", gain, 0.0, 0.0, ours)
        for mix, (gain, ours) in enumerate(zip(measured_gains, simulated_gains, strict=True))
    ]
    (found,) = gain_summary(pd.DataFrame(rows, columns=columns)).to_dict("records")
    assert (found["mixes"], found["measured_gain"]) == (4, pytest.approx(0.065))
    assert found["low"] < 0.065 < found["high"]
    assert found["simulated_gain"] == pytest.approx(0.075)
    assert found["difference"] == pytest.approx(0.01)
    assert found["difference_low"] < 0.01 < found["difference_high"]
    assert found["mean_abs_difference"] == pytest.approx(0.015)


def test_one_repeat_gives_no_interval(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    gains = gain_table(measured[measured.repeat == 0], simulated, "free")
    assert gains.low.map(math.isnan).all()


def test_pairs_of_policies_count_only_where_the_repeats_tell_them_apart(
    measured: pd.DataFrame, simulated: pd.DataFrame
) -> None:
    (row,) = rank_table(measured, simulated).to_dict("records")
    assert (row["pairs"], row["pairs_right"]) == (2, 2)  # one against free and two; free against two is undecided
    assert row["mean_regret"] == 0.0


def test_pairs_that_are_less_than_two_percent_apart_do_not_count(
    measured: pd.DataFrame, simulated: pd.DataFrame
) -> None:
    once = measured[measured.repeat == 0]
    assert rank_table(once, simulated).pairs.tolist() == [2]
    close = once.assign(jct_s=once.jct_s.where(once.policy != "one", once.jct_s * 15.1 / 13 * 0.985))
    assert rank_table(close, simulated).pairs.tolist() == [0]


def test_mixes_under_one_policy_say_nothing_of_the_order(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    alone = [table.assign(mix="n")[table.policy == "free"] for table in (measured, simulated)]
    both = rank_table(pd.concat([measured, alone[0]]), pd.concat([simulated, alone[1]]))
    assert both.mixes.tolist() == [1]


def test_the_regret_is_that_of_following_the_simulation(measured: pd.DataFrame, simulated: pd.DataFrame) -> None:
    wrong = simulated.assign(jct_s=simulated.jct_s.where(simulated.policy != "free", 1.0))
    (row,) = rank_table(measured, wrong).to_dict("records")
    assert (row["pairs"], row["pairs_right"]) == (2, 1)
    assert row["mean_regret"] == pytest.approx(15 / 13 - 1)


@pytest.mark.long
def test_the_report_has_every_table_and_draws_both_charts(
    measured: pd.DataFrame, simulated: pd.DataFrame, tmp_path: Path
) -> None:
    report = report_of(measured.assign(machine_limited=True), simulated, {"max-min": "max-min:per_byte_s=1e-7"}, "free")
    text = report.text()
    assert "max-min:per_byte_s=1e-7" in text
    assert "In 9 of 9 runs the machine may have been the limit" in text
    charts = report.write(tmp_path)
    assert [*pd.read_csv(tmp_path / "jobs.csv")] == [*report.jobs]
    assert {path.name for path in charts} == {
        f"{stem}.{suffix}" for stem in ("measured_against_simulated", "error_distribution") for suffix in ("png", "svg")
    }
    assert pd.read_csv(tmp_path / "gains.csv").policy.tolist() == ["one", "two"]


@pytest.mark.long
def test_the_report_says_which_constants_were_not_fitted_to_what_it_measured(
    measured: pd.DataFrame, simulated: pd.DataFrame
) -> None:
    fitted = {"max-min": "max-min"}
    plain = report_of(measured, simulated, fitted, "free").text().splitlines()
    assert plain[0] == "models, fitted to jobs alone and pairs:"
    more = report_of(measured, simulated, fitted | {"connection-shares": "loss=0.03"}, "free").text().splitlines()
    chosen = (
        "exponent, window and loss of connection-shares were chosen in experiments/fidelity, at 100 Mbit/s, and so was "
        "the overhead of packet-rings"
    )
    assert more[0] == f"models, fitted to jobs alone and pairs; {chosen}:"


@pytest.mark.slow
def test_several_mixes_are_told_together_with_intervals(
    measured: pd.DataFrame, simulated: pd.DataFrame, tmp_path: Path
) -> None:
    factors = [1.0, 1.1, 0.9, 1.2, 1.05, 0.97]
    several = [
        pd.concat(
            table.assign(mix=str(mix), jct_s=table.jct_s * factor ** (table.policy == "one"))
            for mix, factor in enumerate(factors)
        )
        for table in (measured, simulated)
    ]
    report = report_of(*several, {"max-min": "max-min"}, "free")
    rows = [line.split() for line in report.text().splitlines()]
    (errors,) = (row for row in rows if row[:4] == ["max-min", "free", "6", "12"])
    assert errors[4:7] == ["5.0", "[5.0,", "5.0]"]
    (gain,) = (row for row in rows if row[:3] == ["one", "max-min", "6"])
    assert gain[3] == f"{100 * np.mean(report.gains[report.gains.policy == 'one'].measured_gain):.1f}"
    assert gain[4].startswith("[")
    report.write(tmp_path)
    assert pd.read_csv(tmp_path / "gains_over_mixes.csv").mixes.tolist() == [6, 6]


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([10.0, 11.0], [11.0, 13.0], False),  # the longest of the one is the shortest of the other
        ([10.0, 11.0], [11.01, 13.0], True),
        ([100.0], [102.0], False),
        ([100.0], [102.1], True),
        ([100.0, 101.9], [101.9, 104.0], False),
        ([10.0, 30.0, 11.0], [12.0, 13.0, 14.0], False),
    ],
)
def test_what_is_told_apart(one: list[float], other: list[float], apart: bool) -> None:
    assert _apart(np.array(one), np.array(other)) is apart
    assert _apart(np.array(other), np.array(one)) is apart


def test_policies_that_are_alike_have_no_correlation_and_no_warning(
    measured: pd.DataFrame, simulated: pd.DataFrame
) -> None:
    alike = [table.assign(jct_s=5.0) for table in (measured, simulated)]
    for tables in ((alike[0], simulated), (measured, alike[1])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert rank_table(*tables).mean_rank_correlation.isna().all()
