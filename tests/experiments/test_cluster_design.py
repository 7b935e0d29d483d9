"""The experiment: its committed tables can be repeated, and its README holds them."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

FOLDER = EXPERIMENTS / "cluster_design"
run, megatron = scripts_of("cluster_design", "run", "megatron")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> dict[str, pd.DataFrame]:
    out = tmp_path_factory.mktemp("cluster_design")
    before, sys.argv = sys.argv, ["run.py", "--out", str(out)]
    try:
        assert run.main() == 0
    finally:
        sys.argv = before
    return {path.stem: pd.read_csv(path) for path in (out / "tables").glob("*.csv")}


@pytest.mark.long
def test_committed_tables_are_those_of_the_run(tables) -> None:
    committed = {path.stem: pd.read_csv(path) for path in (FOLDER / "expected").glob("*.csv")}
    errors, splits, summary = (committed.pop(name) for name in ("megatron", "splits", "measured_rows"))
    assert len(splits) >= 20
    assert summary["mean"].tolist() == pytest.approx([splits[rows].mean() for rows in summary["rows"]], rel=1e-3)
    pd.testing.assert_frame_equal(megatron.summary(), errors, rtol=1e-4)
    assert set(committed) == set(tables)
    for name, table in committed.items():
        pd.testing.assert_frame_equal(tables[name], table, rtol=1e-4, atol=1e-9)


@pytest.mark.long
def test_readme_holds_the_headline_factors(tables) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for factor in tables["headlines"]["factor"]:
        assert f"| {factor:.2f} |" in readme


@pytest.mark.long
def test_memory_expansion_lets_a_cheaper_parallelism_fit(tables) -> None:
    clusters = tables["clusters"].set_index(["cluster", "memory"])
    own, more = clusters.loc[("a100-80", "own")], clusters.loc[("a100-80", "+ 200 GB/s")]
    assert more["tensor"] < own["tensor"]
    assert more["step_s"] < own["step_s"]


@pytest.mark.long
def test_pipeline_parallelism_helps_where_memory_is_short(tables) -> None:
    steps = tables["pipeline"].set_index(["cluster", "choice"])["step_s"]
    for cluster in ("a100-80", "h100"):
        assert steps[cluster, "+ pipeline"] < steps[cluster, "COMET's choice"]
