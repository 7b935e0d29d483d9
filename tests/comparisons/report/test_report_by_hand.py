"""The tables, sections and texts of a report, of comparisons with few rows: worked out by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddlsched.comparisons.report import html_report, report_tables
from ddlsched.comparisons.report.figures import InteractiveChart
from ddlsched.comparisons.report.report_tables import TableCell
from ddlsched.comparisons.report.reported import ComparedSetting, Reported, _policy_shares, class_name, interval
from ddlsched.results.statistics import Interval

WX = ComparedSetting("w", "x")
NAN = float("nan")


def reported(policies: tuple[str, ...] = ("b", "p", "q"), baseline: str = "b", **given: Any) -> Any:
    """Return as much of a comparison as a table needs; every table is of one setting."""
    comparison = SimpleNamespace(baseline=baseline, **given)
    return SimpleNamespace(policies=[*policies], comparison=comparison, settings=[WX], rows=lambda table, _: table)


def row(policy: str, metric: str = "average_jct_s", mean: float = 10.0, **cells: Any) -> dict[str, Any]:
    usual = {"policy": policy, "metric": metric, "mean": mean, "low": mean - 1, "high": mean + 2, "seeds": 6}
    change = {"change": -0.25, "change_low": -0.5, "change_high": -0.125, "verdict": "better", "verdict_holm": "better"}
    return usual | change | cells


def test_phases_have_a_column_unless_no_run_spent_time_on_them() -> None:
    runs = pd.DataFrame(
        {
            "policy": ["b", "b", "p"],
            "queueing_share": [0.25, 0.75, NAN],
            "computing_share": [0.5, 0.5, 0.25],
            "gpu_wait_share": [0.0, 0.0, 0.0],
        }
    )
    table = report_tables.phase_table(reported(runs=runs), WX)
    assert table.columns == ["Queueing", "Computing"]
    (_, queueing), (_, of_p), (name, of_nobody) = ((policy, cells[0]) for policy, cells in table.rows)
    assert queueing == TableCell("50.0", "[0.0, 100.0]")  # no share is beyond
    assert of_p is None
    assert (name, of_nobody) == ("q", None)
    assert [cells[1] for _, cells in table.rows] == [TableCell("50.0", "[50.0, 50.0]"), TableCell("25.0"), None]


def test_doors_have_a_column_unless_no_run_used_them() -> None:
    runs = pd.DataFrame(
        {"policy": ["b", "b", "p"], "stops": [3, 5, 0], "moves": [0, 0, 0], "state_bytes": [2e9, 2e9, 4e10]}
    )
    table = report_tables.door_table(reported(runs=runs), WX)
    assert table.columns == ["Stops by a policy", "State over the network (GB)"]
    stops, state = zip(*(cells for _, cells in table.rows), strict=True)
    assert [cell and cell.value for cell in stops] == ["4.00", "0.00", None]
    assert [cell and cell.value for cell in state] == ["2.0", "40.0", None]
    assert stops[0].ends.startswith("[0.00, ")
    assert stops[1].ends == ""


@pytest.mark.parametrize(("unfinished", "there"), [([0, 0], False), ([0, 1], True), (None, False)])
def test_jobs_that_did_not_finish_are_told_if_there_are_any(unfinished: list[int] | None, there: bool) -> None:
    runs = pd.DataFrame({"policy": ["b", "p"]} | ({} if unfinished is None else {"unfinished_jobs": unfinished}))
    own = pd.DataFrame([row("b", "average_slowdown"), row("b", "unfinished_jobs")])
    table = report_tables.slowdown_table(reported(runs=runs, table=lambda: own), WX)
    assert table.columns == ["Average slowdown"] + ["Unfinished jobs"] * there


def test_the_main_table_has_the_metrics_that_are_there_in_their_order() -> None:
    own = pd.DataFrame(
        [
            row("p", "gpu_utilisation", 0.5),
            row("b", mean=123.456),
            row("p", mean=7.0),
            row("q", mean=NAN),
            row("p", "own"),
        ]
    )
    table = report_tables.main_table(reported(table=lambda: own), WX)
    assert table.columns == ["Average JCT (s)", "GPU utilisation (%)"]
    (_, of_b), (_, of_p), (_, of_q) = table.rows
    assert of_b == [TableCell("123", "[122, 125]"), None]  # of the baseline no change
    assert of_p[0] == TableCell("7", "[6, 9]", "−25.0 % [−50.0, −12.5]", "better")
    assert of_p[1] == TableCell("50.0", "[-50.0, 250.0]", "−25.0 % [−50.0, −12.5]", "better")
    assert of_q == [None, None]


@pytest.mark.parametrize(
    ("cells", "change"),
    [
        (
            {"metric": "unfinished_jobs", "difference": 2.0, "difference_low": 1.0, "difference_high": 3.0},
            "+2.0 [+1.0, +3.0]",
        ),
        ({"change": NAN, "difference": 2.0, "difference_low": NAN, "difference_high": NAN}, "+2.0"),
        ({"change": NAN}, ""),
        ({"change_low": NAN, "change_high": NAN}, "−25.0 %"),
    ],
)
def test_a_cell_tells_a_difference_where_a_change_would_mean_nothing(cells: dict[str, Any], change: str) -> None:
    cell = report_tables._compared(row("p") | cells, 1, reported())
    assert cell == TableCell("10.0", "[9.0, 12.0]", change, "better")
    assert report_tables._compared(None, 1, reported()) is None


def test_the_overview_has_a_row_a_setting_without_the_baseline() -> None:
    own = pd.DataFrame([row("b"), row("p", "makespan_s", change=-0.5), row("p"), row("q", change=NAN)])
    table = report_tables.overview(reported(table=lambda: own))
    assert (table.caption, table.columns) == ("Average JCT against b", ["p", "q"])
    assert table.rows == [("w on x", [TableCell("−25.0 %", "[−50.0, −12.5]", "", "better"), None])]


def test_classes_have_a_table_a_metric() -> None:
    own = pd.DataFrame(
        [row("b", size_class="2-4", mean=3.0), row("p", size_class="1"), row("p", "p95_jct_s", size_class="1")]
    )
    first, second = report_tables.class_tables(reported(classes=lambda: own), WX)
    assert (first.caption, second.caption) == ("Average JCT (s) by job size", "95th percentile JCT (s) by job size")
    assert first.columns == second.columns == ["1 GPU", "2–4 GPUs"]
    assert [[cell and cell.value for cell in cells] for _, cells in first.rows] == [
        [None, "3.00"],
        ["10.0", None],
        [None] * 2,
    ]


@pytest.mark.parametrize(("verdict", "doubtful"), [("better ?", True), ("better", False), ("", False)])
def test_a_table_is_doubtful_if_a_verdict_is(verdict: str, doubtful: bool) -> None:
    rows = [("b", [None, TableCell("1")]), ("p", [TableCell("1", "", "", verdict), None])]
    assert report_tables.Table("", ["x", "y"], rows).doubtful is doubtful


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({}, Interval(10.0, 9.0, 12.0, 6)),
        ({"low": NAN, "high": NAN}, Interval(10.0, 10.0, 10.0, 1)),
    ],
)
def test_without_an_interval_a_value_is_that_of_one_seed(cells: dict[str, float], expected: Interval) -> None:
    assert interval(row("p", **cells)) == expected
    assert interval(row("p", **cells), "change") == Interval(-0.25, -0.5, -0.125, 6)


def test_names_of_classes() -> None:
    assert [class_name(size) for size in ("1", "2-4", "8+")] == ["1 GPU", "2–4 GPUs", "8+ GPUs"]


def jobs(*rows: tuple[str, float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["size_class", "jct_s", "communication_s", "network_wait_s"])


def test_the_networks_share_is_the_mean_over_seeds_of_sums_over_sums() -> None:
    one = jobs(("1", 10.0, 1.0, 1.0), ("1", 30.0, 5.0, 1.0), ("8+", 10.0, 4.0, 1.0))
    other = jobs(("1", 20.0, 0.0, 2.0), ("2-4", 0.0, 0.0, 0.0))
    shares = _policy_shares([one, other])
    assert shares["1"] == pytest.approx((8 / 40 + 2 / 20) / 2)
    assert shares["8+"] == pytest.approx(0.5)
    assert np.isnan(shares["2-4"])
    assert shares["all"] == pytest.approx((13 / 50 + 2 / 20) / 2)


def compared(**given: Any) -> Reported:
    runs = pd.DataFrame([("w", "y", "q"), ("v", "x", "b"), ("w", "x", "b")], columns=["workload", "cluster", "policy"])
    asked = {
        "policies": ["b", "p", "q"],
        "workloads": ["w", "v"],
        "clusters": {"x": {"gpus": [4, 2]}, "y": {"gpus": [1]}},
    }
    usual: dict[str, Any] = {"runs": runs, "asked": asked, "folder": Path("f"), "baseline": "b"}
    return Reported(SimpleNamespace(**(usual | given)))  # type: ignore[arg-type]


def test_what_has_a_run_is_reported_in_the_order_in_which_it_was_asked_for() -> None:
    found = compared()
    assert found.policies == ["b", "q"]
    assert found.settings == [("w", "x"), ("w", "y"), ("v", "x")]
    assert found.servers("x") == [4, 2]
    rows = found.rows(found.comparison.runs, WX)
    assert rows.values.tolist() == [["w", "x", "b"]]
    assert found.charts(WX) == Path("f/charts/w-x")


def test_charts_of_one_setting_have_no_folder_of_their_own() -> None:
    runs = pd.DataFrame([("w", "x", "b")], columns=["workload", "cluster", "policy"])
    assert compared(runs=runs).charts(WX) == Path("f/charts")


def test_changes_are_per_cent_and_of_policies_but_the_baseline() -> None:
    place = {"workload": "w", "cluster": "x"}
    table = pd.DataFrame([row(policy, **place) for policy in "qb"] + [row("q", "p95_jct_s", **place, change=NAN)])
    found = compared(table=lambda: table)
    assert found.changes(WX) == {"average_jct_s": {"q": Interval(-25.0, -50.0, -12.5, 6)}}
    own = Interval(10.0, 9.0, 12.0, 6)
    assert found.intervals(WX, "average_jct_s") == {"b": own, "q": own}
    assert [*found.intervals(WX, "average_jct_s")] == ["b", "q"]
    assert found.intervals(WX, "makespan_s") == {}
    classes = pd.DataFrame(
        [row("b", size_class=size, **place) for size in ("8+", "1")] + [row("b", "own", size_class="1", **place)]
    )
    assert compared(classes=lambda: classes).class_intervals(WX) == {"1": {"b": own}, "8+": {"b": own}}


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ([4], "1 seed (4)"), ([4, 5], "2 seeds (4, 5)"), ([4, 5, 6], "3 seeds (4 to 6)"),
        ([4, 6, 5], "3 seeds (4, 6, 5)"),
    ],
)  # fmt: skip
def test_seeds_are_a_range_where_they_are_one(seeds: list[int], said: str) -> None:
    assert html_report._seeds(seeds, 1, (), ("w",)) == said


def test_workloads_that_are_drawn_have_draws_in_place_of_seeds() -> None:
    draws = "7 draws of lengths that differ by 0.1 % or one iteration"
    assert html_report._seeds([1], 7, ["w"], ["w"]) == draws
    assert html_report._seeds([1], 7, ["w"], ["w", "v"]) == f"{draws}, 1 seed (1)"


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0.0 kB"), (1_234, "1.2 kB"), (99_999, "100.0 kB"), (100_000, "0.1 MB"), (2_500_000, "2.5 MB")],
)
def test_sizes_of_files(size: int, said: str) -> None:
    assert html_report._bytes(size) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("é", "é"), (3, "3"), ({}, "defaults"), ({"a": [1, 2], "b": {"c": None}}, "a: 1, 2, b: c: null"),
        ([[1], 2], "[[1], 2]"), ([{"é": 1}], '[{"é": 1}]'), (["x", "y"], "x, y"), ([], ""),
    ],
)  # fmt: skip
def test_what_was_asked_for_is_told_in_words(value: Any, said: str) -> None:
    assert html_report._spec(value) == said


def test_the_configuration_has_what_was_given() -> None:
    asked = {
        "policies": {"p": {"order": "srsf"}}, "workloads": {"w": "w.csv"}, "clusters": {"x": {}}, "seeds": [1, 2],
        "command": ["c"], "working_folder": "f", "ddlsched": "1", "timeline": [], "with_slowdown": True,
        "baseline": None,
    }  # fmt: skip
    told = html_report._configuration(reported(asked=asked))
    assert [*told] == [
        ("Policies", [("p", "order: srsf")]), ("Workloads", [("w", "w.csv")]), ("Clusters", [("x", "defaults")]),
        ("Other", [("with slowdown", "true"), ("seeds", "1, 2")]),
    ]  # fmt: skip
    assert "command" in asked


def test_a_title_counts_what_is_several() -> None:
    assert html_report._title(reported()) == "3 policies, w on x"
    one = reported(("p",))
    one.settings = [WX, ComparedSetting("w", "y")]
    assert html_report._title(one) == "p, 2 settings"


def test_lines_of_a_label_may_end_after_its_marks() -> None:
    assert html_report._breakable("a:b=<c>/,d") == "a:<wbr>b=<wbr>&lt;c&gt;/,<wbr>d"


def test_sizes_count_each_run_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1500)
    runs = pd.DataFrame(
        {"file": ["a", "a", "b"], "jobs": [600, 600, 500], "events": [1.0, 1.0, 2.0], "engine_s": [1.25, 1.25, 3.0]}
    )
    files = lambda: [tmp_path / "a", tmp_path / "a"]  # noqa: E731
    found = reported(runs=runs, failures=pd.DataFrame({"x": [1] * 1200}), files=files)
    found.servers = lambda cluster: [600, 601]
    assert [*html_report._sizes(found)] == [
        ("Finished runs", "2"), ("Failed runs", "1,200"), ("Finished jobs that count, all runs", "1,100"),
        ("Simulated events, all runs", "3"), ("GPUs of x", "1,201"), ("Time in the engine, all runs", "4.2 s"),
        ("Files of runs", "1.5 kB"),
    ]  # fmt: skip


def test_timelines_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    file = tmp_path / "timelines" / "p 1.json"
    file.parent.mkdir()
    file.write_bytes(b"x" * 200)
    found = reported(kept=lambda what, policy: file if (what, policy) == ("timeline", "p") else None)
    assert [*html_report._timelines(found, tmp_path / "out")] == [
        ("p", "timelines/p 1.json", "../timelines/p%201.json", "0.2 kB")
    ]


def test_a_map_that_is_too_large_is_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = InteractiveChart("P", "note", 300, placement={"boxes": []})
    monkeypatch.setattr(
        html_report, "placement_chart", lambda placements, servers, policy: chart if policy == "b" else None
    )
    (tmp_path / "placement-q.png").write_bytes(b"png")
    found = reported()
    tables = {"b": pd.DataFrame({"gpu": [1]}), "p": pd.DataFrame({"gpu": []}), "q": pd.DataFrame({"gpu": [1]})}
    found.placements, found.servers, found.charts = tables.get, lambda _: [1], lambda _: tmp_path
    drawn, picture = html_report._placements(found, WX)
    assert drawn == {
        "id": "placement-0", "title": "b", "note": "note", "height": 300, "policy": 0, "picture": None,
        "data": {"id": "placement-0", "height": 300, "traces": [], "layout": {}, "placement": {"boxes": []}},
    }  # fmt: skip
    assert (picture["id"], picture["policy"], picture["data"]) == ("placement-2", 2, None)
    assert picture["picture"] == "data:image/png;base64,cG5n"
