"""The experiment beyond Ada-SRSF: the variants tried, the committed tables, and that they can be repeated."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from hypothesis import given
from hypothesis import strategies as st

import ddlsched
from ddlsched.results.paired_comparison import markdown
from ddlsched.testing import cluster_view
from ddlsched.testing.handmade import job_view

FOLDER = EXPERIMENTS / "beyond_ada_srsf"
EXPECTED = FOLDER / "expected"
exclusive, run, optimality, stopping, timeline, tried, variants = scripts_of(
    "beyond_ada_srsf", "exclusive", "run", "optimality", "stopping", "timeline", "tried", "variants"
)


# ---- The variants


transfers = st.lists(st.tuples(st.floats(0.01, 100.0), st.sets(st.integers(0, 5), min_size=1)), max_size=9)


def weight_of(chosen, given_transfers) -> float:
    return sum(given_transfers[place][0] for place in chosen)


def share_no_link(chosen, given_transfers) -> bool:
    links = [link for place in chosen for link in given_transfers[place][1]]
    return len(links) == len(set(links))


@given(transfers)
def test_the_heaviest_set_is_that_of_brute_force(given_transfers):
    masks = [sum(1 << link for link in links) for _, links in given_transfers]
    chosen = variants.heaviest([weight for weight, _ in given_transfers], masks)
    assert share_no_link(chosen, given_transfers)
    places = range(len(given_transfers))
    subsets = itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(len(places) + 1))
    best = max(weight_of(subset, given_transfers) for subset in subsets if share_no_link(subset, given_transfers))
    assert weight_of(chosen, given_transfers) == pytest.approx(best, rel=1e-12)


def test_greedy_is_not_the_heaviest_where_links_cross():
    """The middle one weighs most, but less than the two that it excludes."""
    assert sorted(variants.heaviest([2.0, 3.0, 2.0], [0b0011, 0b0110, 0b1100])) == [0, 2]


@pytest.mark.parametrize("scheduler", ["srsf-1", "block-srtf"])
def test_the_greedy_set_by_time_is_the_built_in_policy(scheduler):
    workload = ddlsched.microsoft_160(seed=1001, scale=0.005)
    finishes = [
        ddlsched.simulate(workload, scheduler=scheduler, communication=policy).jobs["finish_s"].tolist()
        for policy in ("preemptive:by=time", variants.ChosenSet())
    ]
    assert finishes[0] == finishes[1]


MS = 1_000_000


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((50, 50), (50, 50), 0.0),
        ((20, 80), (80, 20), 0.0),
        ((20, 80), (50, 50), 0.6),
        ((0, 100), (50, 50), 1.0),
        ((50, 50), (100, 100), 0.5),
        ((75, 25), (150, 50), 0.0),
    ],
)
def test_the_least_overlap_of_two_circles(first, second, expected):
    """Of 100 ms with 80 of communication, 50 + 80 - 100 = 30 ms meet the other's 50 ms: 0.6."""
    found = variants.least_overlap(*(ms * MS for ms in (*first, *second)))
    assert found == pytest.approx(expected, abs=0.12 if 0 in first else 1e-9)


def test_limits_keep_jobs_waiting_until_patience_ends():
    view = cluster_view(residents={gpu: [job_view(number=gpu)] for gpu in range(16)}, now_s=10.0)
    job = job_view(number=20)
    assert variants.FewOnAGpu(jobs=2).place(job, view) is not None
    assert variants.FewOnAGpu(jobs=1).place(job, view) is None
    assert variants.FewOnAGpu(jobs=1, wait_s=10.0).place(job, view) is not None


def test_a_limit_on_spanning_jobs_is_none_on_jobs_of_one_server():
    wide = job_view(number=0, num_gpus=16, servers=(0, 1, 2, 3), gpus=tuple(range(16)))
    view = cluster_view(residents={gpu: [wide] for gpu in range(16)})
    policy = variants.FewOnAGpu(spanning=1)
    assert policy.place(job_view(number=1, num_gpus=4), view) is not None
    assert policy.place(job_view(number=2, num_gpus=5), view) is None


# ---- The committed tables


def comparisons() -> dict[str, dict[str, pd.DataFrame]]:
    return {
        table.name: {
            baseline: pd.read_csv(EXPECTED / run.file_name(table.name, baseline))
            for baseline in run.TARGETS
            if baseline in table.policies
        }
        for table in run.TABLES
    }


def per_seed() -> pd.DataFrame:
    return pd.read_csv(EXPECTED / "average_jct_s_per_seed.csv", index_col="seed")


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def assert_holds(document: str, text: str) -> None:
    """Every row of the text's tables is in the document, in the same order."""
    written = iter(table_lines((FOLDER / document).read_text(encoding="utf-8")))
    for line in table_lines(text):
        assert any(line == other for other in written), f"{document} lacks {line}"


def test_the_readme_holds_the_tables_of_the_committed_values():
    assert_holds("README.md", run.answer(per_seed()) + run.headline(comparisons()))


def test_the_details_are_the_tables_of_the_committed_values():
    assert_holds("RESULTS.md", run.details(comparisons()))


def test_the_readme_holds_what_was_tried():
    against = {b: pd.read_csv(EXPECTED / run.file_name("tried", b)) for b in tried.AGAINST}
    assert_holds("README.md", markdown(tried.rows(against)))
    assert {frame["seeds"].min() for frame in against.values()} == {tried.SEEDS}


def test_the_readme_holds_what_stopping_jobs_does():
    assert_holds("README.md", markdown(stopping.rows(pd.read_csv(EXPECTED / "stopping_against_srsf_1.csv"))))


def test_the_readme_holds_what_is_left_with_one_job_a_gpu():
    for baseline, name in exclusive.BASELINES_ALONE.items():
        found = pd.read_csv(EXPECTED / f"{exclusive.FULL.name}_against_{name}.csv")
        assert_holds("README.md", markdown(exclusive.rows(found, baseline)))
        assert found["seeds"].min() == 100


SHOWN = (*exclusive.MORE, "FIFO that skips", "Block-SRTF")


def test_the_readme_holds_who_pays_and_what_is_left_of_it_where_lengths_are_misjudged():
    assert_holds("README.md", markdown(exclusive.fairness_rows(pd.read_csv(EXPECTED / "exclusive_fairness.csv"))))
    against_fifo = pd.read_csv(EXPECTED / "exclusive_against_fifo.csv")
    shown = exclusive.rows(against_fifo, "FIFO that skips")
    assert_holds("README.md", markdown([row for row in shown if row["policy"] in SHOWN]))
    assert against_fifo["seeds"].unique().tolist() == [20]
    assert set(against_fifo["policy"]) == set(exclusive.POLICIES | exclusive.MORE)


def test_with_one_job_a_gpu_nobody_shares():
    for policy, options in (exclusive.POLICIES | exclusive.MORE).items():
        result = ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.002), **options)
        assert (result.most_jobs_on_a_gpu > 1) == policy.startswith((exclusive.SHARED, exclusive.PRICED))


def test_the_readme_holds_the_gaps_to_the_optimum():
    found = pd.read_csv(EXPECTED / "optimality.csv")
    assert_holds("README.md", optimality.gap_table(found))
    assert_holds("README.md", optimality.transfer_table(pd.read_csv(EXPECTED / "two_transfers.csv")))


def test_committed_tables_are_of_all_policies_and_the_full_number_of_seeds():
    assert per_seed().index.tolist() == list(range(1, 101))
    for table, against in ((table, comparisons()[table.name]) for table in run.TABLES):
        for frame in against.values():
            assert frame["policy"].unique().tolist() == list(table.policies)
            assert set(frame["seeds"]) == {table.most_seeds}


def test_the_averages_by_seed_are_those_of_the_table_of_policies():
    means = comparisons()["policies"]["SRSF(1)"].query("metric == 'average_jct_s'").set_index("policy")["mean"]
    np.testing.assert_allclose(per_seed().mean()[means.index], means, rtol=1e-8)


@pytest.mark.parametrize(("policy", "seed"), [("Block-SRTF", 7), ("Block-SRTF", 100)])
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
    for script in (tried, stopping):
        monkeypatch.setattr(script, "SCALE", 0.002)


def called(script, monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *arguments])
    assert script.main() == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_command_prints_the_tables_and_paths_of_charts(in_small, monkeypatch, tmp_path, capsys):
    printed = called(run, monkeypatch, capsys, "--seeds", "1", "--jobs", "1", "--out", str(tmp_path))
    for table in (run.POLICIES, run.ABLATION, run.NEIGHBOURS):
        assert f"## {table.title}" in printed
    named = [Path(line.strip()) for line in printed.splitlines() if line.startswith("  ")]
    assert len(named) == 10
    assert all(path.is_file() for path in named)
    for table in run.SCENARIOS:
        assert f"## {table.title}" in (tmp_path / "tables" / "details.md").read_text(encoding="utf-8")


def test_what_was_tried_prints_a_row_a_policy(in_small, monkeypatch, tmp_path, capsys):
    few = {policy: tried.TRIED[policy] for policy in ("SRSF(1)", "Block-SRTF", "price of CASSINI")}
    monkeypatch.setattr(tried, "TRIED", few)
    printed = called(tried, monkeypatch, capsys, "--seeds", "1", "--jobs", "1", "--out", str(tmp_path))
    assert [line.split("|")[1].strip() for line in table_lines(printed)[2:]] == list(few)


def test_stopping_prints_a_row_a_policy_and_jobs_are_stopped(in_small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(stopping, "THRESHOLD_GPU_S", 1.0)
    monkeypatch.setattr(stopping, "SHARED", {"SRSF(1)": stopping.SHARED["SRSF(1)"]})
    monkeypatch.setattr(stopping, "STOPPED", {"Tiresias": stopping.stopped(0)})
    printed = called(stopping, monkeypatch, capsys, "--seeds", "1", "--jobs", "1", "--out", str(tmp_path))
    stops = [line.split("|")[-2].strip() for line in table_lines(printed)[2:]]
    assert float(stops[0]) == 0 < float(stops[1])


def test_a_colour_means_one_policy(monkeypatch):
    from ddlsched.comparisons.charts.style import PALETTE, colours

    names = list(run.POLICIES.policies)
    shades = colours(names, run.shades(names))
    assert len(set(shades.values())) == len(names)
    assert PALETTE["grey"] not in shades.values()
    assert set(run.shades(["Tiresias"]).values()) - set(run.COLOURS.values()) == {PALETTE["grey"]}


@pytest.mark.slow
def test_the_readme_holds_the_figures_of_the_timeline(monkeypatch, tmp_path, capsys):
    printed = called(timeline, monkeypatch, capsys, "--out", str(tmp_path))
    assert_holds("README.md", printed)
    assert (tmp_path / "charts" / "timeline.png").is_file()
