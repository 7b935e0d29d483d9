"""The experiment beyond Ada-SRSF: the variants tried, the committed tables, and that they can be repeated."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from tiers import tried

import ddlsched

FOLDER = EXPERIMENTS / "beyond_ada_srsf"
EXPECTED = FOLDER / "expected"
exclusive, run = scripts_of("beyond_ada_srsf", "exclusive", "run")


# ---- The committed tables


def comparisons() -> dict[str, dict[str, pd.DataFrame]]:
    return {
        table.name: {
            baseline: pd.read_csv(EXPECTED / f"{run.file_name(table.name, baseline)}.csv")
            for baseline in run.BASELINE_FILES
            if baseline in table.policies
        }
        for table in run.TABLES
    }


def per_seed() -> pd.DataFrame:
    return pd.read_csv(EXPECTED / "average_jct_s_per_seed.csv", index_col="seed")


def test_tables_of_one_job_a_gpu_are_of_all_policies_and_seeds():
    for name in exclusive.BASELINES_ALONE.values():
        full = pd.read_csv(EXPECTED / f"{exclusive.FULL.name}_against_{name}.csv")
        assert full["policy"].unique().tolist() == list(exclusive.POLICIES)
        assert set(full["seeds"]) == {100}
    against_fifo = pd.read_csv(EXPECTED / "exclusive_against_fifo.csv")
    assert against_fifo["seeds"].unique().tolist() == [20]
    assert set(against_fifo["policy"]) == set(exclusive.POLICIES | exclusive.MORE)


@pytest.mark.slow
def test_with_one_job_a_gpu_nobody_shares():
    for policy, options in (exclusive.POLICIES | exclusive.MORE).items():
        result = ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.002), **options)
        assert (result.most_jobs_on_a_gpu > 1) == policy.startswith((exclusive.SHARED, exclusive.PRICED))


@pytest.mark.long
def test_committed_tables_are_of_all_policies_and_the_full_number_of_seeds():
    assert per_seed().index.tolist() == list(range(1, 101))
    for table, against in ((table, comparisons()[table.name]) for table in run.TABLES):
        for frame in against.values():
            assert frame["policy"].unique().tolist() == list(table.policies)
            assert set(frame["seeds"]) == {table.most_seeds}


def test_the_averages_by_seed_are_those_of_the_table_of_policies():
    means = comparisons()["policies"]["SRSF(1)"].query("metric == 'average_jct_s'").set_index("policy")["mean"]
    np.testing.assert_allclose(per_seed().mean()[means.index], means, rtol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize(("policy", "seed"), tried([("Block-SRTF", 7), ("Block-SRTF", 100)], lambda place: place == 0))
def test_a_committed_value_can_be_repeated(policy, seed):
    result = ddlsched.simulate(ddlsched.microsoft_160(seed=seed), seed=seed, **run.POLICIES.policies[policy])
    assert result.summary()["average_jct_s"] == pytest.approx(per_seed().loc[seed, policy], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", run.POLICIES.policies)
def test_every_policy_of_a_held_seed_can_be_repeated_at_full_size(policy):
    result = ddlsched.simulate(ddlsched.microsoft_160(seed=42), seed=42, **run.POLICIES.policies[policy])
    assert result.summary()["average_jct_s"] == pytest.approx(per_seed().loc[42, policy], rel=1e-9)


# ---- The commands


@pytest.fixture
def in_small(monkeypatch):
    """The experiment at 1/500 scale in every table, so that it ends soon."""
    monkeypatch.setattr(run, "TABLES", tuple(dataclasses.replace(table, scale=0.002) for table in run.TABLES))


@pytest.mark.slow
def test_the_command_prints_and_writes_every_table(in_small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)])
    monkeypatch.setitem(sys.modules, run.__name__, run)  # a sweep asks which file its classes are in
    assert run.main() == 0
    printed = capsys.readouterr().out
    for table in run.TABLES:
        assert f"## {table.title}" in printed
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    own = {path.name for path in EXPECTED.glob("*.csv") if not path.name.startswith(("exclusive", "optimality"))}
    assert written == own | {"policies_bound.csv"}
