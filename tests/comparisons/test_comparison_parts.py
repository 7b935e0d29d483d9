"""Small parts of comparisons, sweeps and reports, each by hand."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from joblib.externals import loky

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.comparisons import alone, cluster_imports, compare, comparison, comparison_tables, tuning
from ddlsched.comparisons import folder as comparison_folder
from ddlsched.comparisons.cluster_imports import kubernetes, volcano_kai
from ddlsched.comparisons.cluster_imports.kubernetes import ObjectFields
from ddlsched.comparisons.report import comparison_charts, figures, report_tables
from ddlsched.comparisons.sweeps import run, stored_runs, sweep, workers
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.results import explanation, paired_comparison
from ddlsched.results.result import Result
from ddlsched.results.statistics import Interval
from ddlsched.workload.traces.traced import TracedJob

NAN = float("nan")


@pytest.mark.parametrize(
    ("told", "gpus", "borrowing"),
    [
        ({}, 0, None),
        ({"quota": 8}, 8, None),
        ({"quota": 8, "limit": -1}, 8, None),
        ({"quota": 8, "limit": 8}, 8, 0),
        ({"quota": 8, "limit": 11}, 8, 3),
        ({"quota": 8, "limit": 2}, 8, 0),
        ({"quota": -1, "limit": 5}, 0, 5),
        ({"limit": 0}, 0, 0),
    ],
)
def test_a_queue_of_kai_borrows_up_to_its_limit(told: dict[str, int], gpus: int, borrowing: int | None) -> None:
    found = {"metadata": {"name": "q"}, "spec": {"resources": {"gpu": told}}}
    queue = volcano_kai._kai_queue(ObjectFields("f: ", found))
    (quota,) = queue.quotas.values()
    assert (queue.name, queue.weight, quota.gpus, quota.borrowing_limit) == ("q", 1.0, gpus, borrowing)


# ---- Sweeps


def test_every_text_of_a_run_may_name_a_file() -> None:
    outage = Outage(server=1, from_s=0.0, to_s=1.0)
    options = {
        "a": "x",
        "b": ["x", ("x", 1)],
        "c": {"d": "x"},
        "e": Cluster(topology="x"),
        "f": 2,
        "g": Cluster,
        "h": outage,
    }
    given = run.Run(labels={"policy": "x"}, workload="x", seed=1, options=options, measures=("x", "z"))
    changed = given.with_texts(lambda text: text.replace("x", "yy"))
    assert changed.labels == {"policy": "x"}
    assert (changed.workload, changed.measures, changed.seed) == ("yy", ("yy", "z"), 1)
    expected = {"a": "yy", "b": ["yy", ("yy", 1)], "c": {"d": "yy"}, "e": Cluster(topology="yy"), "f": 2, "g": Cluster}
    assert changed.options == expected | {"h": outage}
    assert changed.options["h"] is outage


def test_sources_of_a_package_a_module_and_of_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        tmp_path / name for name in ("a_package_of_mine/__init__.py", "a_package_of_mine/cli/b.py", "one_of_mine.py")
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert run._sources_of("a_package_of_mine") == files[:2]
    assert run._sources_of("one_of_mine") == files[2:]
    assert run._sources_of("nothing_of_mine") == []
    names = {path.name for path in run._sources_of("ddlsched")}
    assert {"__init__.py", "simulation.py", "statistics.py"} <= names
    assert names.isdisjoint({"explanation.py", "paired_comparison.py", "style.py", "compare.py", "report_tables.py"})


def test_sources_of_a_folder_without_a_module_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert run._sources_of("only_a_folder") == []


OUTAGE = {"class": "ddlsched.cluster.disturbances.Outage", "holds": {"server": 2, "from_s": 1.0, "to_s": 3.0, "old": 5}}


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("lwf", "lwf"),
        (None, None),
        ([1, ["a", 2.5]], (1, ("a", 2.5))),
        (OUTAGE, Outage(server=2, from_s=1.0, to_s=3.0)),
        (
            {"class": "ddlsched.cluster.disturbances.Disturbances", "holds": {"outages": [OUTAGE], "restart_s": 2.0}},
            Disturbances(outages=(Outage(server=2, from_s=1.0, to_s=3.0),), restart_s=2.0),
        ),
    ],
)
def test_an_option_of_a_kept_run_is_made_again(value: Any, made: Any) -> None:
    assert stored_runs._rebuilt(Path("a.parquet"), "order", value) == made


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"class": "os.Popen", "holds": {}}, "os.Popen"),
        ({"holds": {}}, "something else"),
        (OUTAGE | {"holds": [1]}, "ddlsched.cluster.disturbances.Outage"),
        ([{"class": "mine.Mine"}], "mine.Mine"),
    ],
)
def test_no_option_is_made_of_what_a_file_may_not_describe(value: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"^a.parquet: order was an instance of {what}; expected one given by name"):
        stored_runs._rebuilt(Path("a.parquet"), "order", value)


def test_a_kept_file_that_cannot_be_opened_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    for content in (b"", b"PAR1", b"x" * 100):
        garbage.write_bytes(content)
        assert stored_runs.is_damaged(garbage) is True
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match=f"^{path}: "):
            stored_runs.is_damaged(path)
    table = tmp_path / "table"
    pd.DataFrame({"a": [1]}).to_parquet(table)
    with pytest.raises(InputError, match=f"^{table}: is a Parquet file but no run's; expected it elsewhere"):
        stored_runs.is_damaged(table)


def test_jobs_of_the_runs_with_some_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        run.Run(labels={"policy": policy, "load": load}, workload="w", seed=seed)
        for policy, load, seed in (("p", "a", 1), ("p", "b", 2), ("q", "a", 3))
    ]
    done = sweep.Sweep(tuple((each, Path(str(each.seed))) for each in runs), ())
    monkeypatch.setattr(
        sweep, "read_jobs", lambda path: pd.DataFrame({"job_id": ["x", "y"], "jct_s": [int(path.name), 9]})
    )
    monkeypatch.setattr(sweep, "read_metadata", lambda path: {"summary": {"makespan_s": int(path.name) / 2}})
    found = done.jobs(policy="p")
    assert found.index.tolist() == [0, 1, 2, 3]
    assert found["seed"].tolist() == [1, 1, 2, 2]
    assert found["jct_s"].tolist() == [1, 9, 2, 9]
    assert found["load"].tolist() == ["a", "a", "b", "b"]
    assert done.jobs(policy="p", load="b")["seed"].tolist() == [2, 2]
    assert len(done.jobs()) == 6
    assert done.jobs(policy="r").empty
    assert done.summaries().to_dict("list") == {
        "policy": ["p", "p", "q"],
        "load": ["a", "b", "a"],
        "seed": [1, 2, 3],
        "makespan_s": [0.5, 1.0, 1.5],
    }


@pytest.mark.parametrize("with_progress", [False, True])
def test_what_a_run_told_whose_process_died_alone_is_removed(
    with_progress: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Pool:
        def __init__(self, **given: Any) -> None:
            told.append(given["max_workers"])

        def submit(self, function: Any, *arguments: Any) -> Any:
            told.append((function, *arguments))
            raise loky.BrokenProcessPool

        def shutdown(self, **given: bool) -> None:
            told.append(given)

    monkeypatch.setattr(loky, "ProcessPoolExecutor", Pool)
    (tmp_path / "key").write_text("half way")
    one = run.Run(labels={}, workload="w", seed=1)
    progress = tmp_path if with_progress else None
    found = workers._alone(workers.Task("key", one, ("run",)), progress)
    assert found == run.RunOutcome({}, workers._DIED)
    assert (tmp_path / "key").exists() is not with_progress
    file = tmp_path / "key" if with_progress else None
    assert told == [1, (run.execute, one, ("run",), file), {"wait": True, "kill_workers": True}]


# ---- Tables


def test_settings_are_compared_in_the_order_of_their_runs() -> None:
    rows = [
        {"policy": policy, "workload": workload, "cluster": cluster, "seed": seed, "average_jct_s": 1.0}
        for workload, cluster in (("z", "b"), ("a", "c"), ("z", "a"))
        for policy in ("srsf", "fifo")
        for seed in (1, 2)
    ]
    runs = pd.DataFrame(rows)
    table = comparison_tables.compare_everywhere(runs, runs, "srsf")
    assert table.columns.tolist()[:2] == ["workload", "cluster"]
    assert [*zip(table["workload"], table["cluster"], table["policy"], strict=True)] == [
        (workload, cluster, policy)
        for workload, cluster in (("z", "b"), ("a", "c"), ("z", "a"))
        for policy in ("srsf", "fifo")
    ]


@pytest.mark.parametrize(
    ("verdict", "holm", "seeds", "text"),
    [
        ("not judged", "not judged", 6, ""),
        ("not judged", "not judged", 1, ""),
        ("undecided", "undecided", 1, "one run"),
        ("better", "better", 6, "better"),
        ("better", "undecided", 6, "better ?"),
        ("worse", "undecided", 2, "worse ?"),
    ],
)
def test_a_verdict_in_words(verdict: str, holm: str, seeds: int, text: str) -> None:
    row = {"verdict": verdict, "verdict_holm": holm, "seeds": seeds}
    assert paired_comparison._verdict_text(row) == text


@pytest.mark.parametrize(("count", "most", "told"), [(1, [1, 1], []), (2, [2, 1], ["2"]), (3, [1, 3], ["3"])])
def test_shared_gpus_are_told(count: int, most: list[int], told: list[str]) -> None:
    said = [*comparison_tables._sharing(pd.DataFrame({"most_jobs_on_a_gpu": most}))]
    assert said == [f"GPUs were shared: up to {n} jobs at a time on one (--exclusive: one job a GPU)." for n in told]
    assert [*comparison_tables._sharing(pd.DataFrame({"other": most}))] == []
    assert comparison_tables._times(count) == ("1 time" if count == 1 else f"{count} times")
    assert comparison_tables._times(1000 * count) == f"{count},000 times"


def test_the_files_of_a_comparison_are_in_its_folder() -> None:
    runs = pd.DataFrame(
        {
            "policy": ["p", "p", "q"],
            "workload": "w",
            "cluster": "c",
            "seed": [1, 2, 1],
            "file": ["runs/a", "runs/a", "runs/b"],
        }
    )
    opened: Any = object.__new__(comparison.Comparison)
    opened.folder, opened._tables = Path("f"), {"runs.csv": runs}
    assert opened.files() == [Path("f/runs/a"), Path("f/runs/b")]
    assert opened.files(policy="q") == opened.files(policy="q", seed=1) == [Path("f/runs/b")]
    assert opened.files(seed=2) == [Path("f/runs/a")]
    with pytest.raises(UnknownNameError, match=r"^comparison: runs have no 'polcy'. Did you mean 'policy'"):
        opened.files(polcy="p")
    with pytest.raises(UnknownNameError, match=r"^comparison: no seed is 3"):
        opened.files(seed=3)


def test_jobs_of_a_comparison_have_the_labels_of_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"policy": ["p", "p", "q"], "workload": "w", "cluster": "c", "seed": [1, 2, 1]}
    opened: Any = object.__new__(comparison.Comparison)
    opened.folder = Path("f")
    opened._tables = {"runs.csv": pd.DataFrame(labels | {"file": ["runs/a", "runs/a", "runs/b"]})}
    read = {Path("f/runs/a"): [1.0, 2.0], Path("f/runs/b"): [4.0]}
    monkeypatch.setattr(comparison, "read_jobs", lambda path: pd.DataFrame({"jct_s": read[path]}))
    assert opened.jobs(seed=1).to_dict("list") == {
        "jct_s": [1.0, 2.0, 4.0],
        "policy": ["p", "p", "q"],
        "workload": ["w", "w", "w"],
        "cluster": ["c", "c", "c"],
        "seed": [1, 1, 1],
    }
    assert opened.jobs(seed=1).index.tolist() == [0, 1, 2]
    assert opened.jobs(policy="q")["jct_s"].tolist() == [4.0]


def _asked() -> dict[str, Any]:
    return {
        "ddlsched": "1",
        "command": ["ddlsched"],
        "baseline": "p",
        "policies": {"p": {}},
        "workloads": {"w": {}},
        "clusters": {"c": {"gpus": [4]}},
        "seeds": [1],
        "draws": 1,
        "options": {},
        "timeline": None,
    }


def test_tables_and_what_is_kept_of_another_comparison_are_taken_away(tmp_path: Path) -> None:
    kept = ["runs.csv", "comparison.csv", "classes.csv", "failures.csv", "placements/p.parquet", "timelines/p.json"]
    assert comparison.begin(tmp_path / "new" / "folder", _asked(), None) is False
    assert not (tmp_path / "new" / "folder" / "compare.yaml").exists()
    folder = tmp_path / "old"
    for change in (
        {},
        {"seeds": [1, 2]},
        {"draws": 2},
        {"timeline": [0, 1]},
        {"options": {"warmup_s": 1}},
        {"other": 1},
    ):
        comparison.begin(folder, _asked(), "seeds: 1\n")
        assert (folder / "compare.yaml").read_text() == "seeds: 1\n"
        for name in kept:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).touch()
        another = bool(change) and "other" not in change
        assert comparison.begin(folder, _asked() | change, None) is another
        assert [(folder / name).exists() for name in kept] == [not another] * len(kept)
        assert json.loads((folder / "comparison.json").read_text()) == _asked() | change


@pytest.mark.parametrize(("name", "strange"), [("runs", False), ("a.part", False), ("runs.csv", True), ("a", True)])
def test_a_folder_that_holds_something_else_is_no_place_for_a_comparison(
    name: str, strange: bool, tmp_path: Path
) -> None:
    (tmp_path / name).touch()
    if strange:
        with pytest.raises(InputError, match=f"^{tmp_path}: holds something else than a comparison; expected a new or"):
            comparison.begin(tmp_path, _asked(), None)
    else:
        assert comparison.begin(tmp_path, _asked(), None) is False


# ---- Reports


@pytest.mark.parametrize(
    ("estimate", "decimals", "value", "ends"),
    [
        (Interval(1.26, 1.0, 1.5, 6), 1, "1.3", "[1.0, 1.5]"),
        (Interval(1.26, 1.0, 1.5, 2), 0, "1", "[1, 2]"),
        (Interval(1.26, 1.26, 1.26, 1), 2, "1.26", ""),
    ],
)
def test_a_cell_of_a_report_has_an_interval_of_several_seeds(
    estimate: Interval, decimals: int, value: str, ends: str
) -> None:
    cell = report_tables._cell(estimate, decimals)
    assert (cell.value, cell.ends) == (value, ends)


def _row(**cells: Any) -> dict[str, Any]:
    usual = {"metric": "average_jct_s", "verdict": "better", "seeds": 6}
    return usual | {"change": -0.25, "change_low": -0.5, "change_high": 0.001} | cells


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (_row(), ("−25.0 %", "[−50.0, +0.1]")),
        (_row(change=0.0003, change_low=0.0, change_high=0.0006), ("+0.03 %", "[+0.0, +0.1]")),
        (_row(change_low=NAN, change_high=NAN), ("−25.0 %", "")),
        (_row(seeds=1), ("−25.0 %", "")),
    ],
)
def test_a_change_in_a_report_is_in_percent(row: dict[str, Any], text: tuple[str, str]) -> None:
    assert report_tables._change_text(row) == text
    cell = report_tables._change_cell(row)
    assert cell is not None
    assert (cell.value, cell.ends, cell.verdict) == (*text, "better")
    assert report_tables._change_cell(row | {"change": NAN}) is None
    assert report_tables._change_cell(None) is None


@pytest.mark.parametrize(
    ("metric", "row", "text"),
    [
        ("gpu_utilisation", (0.05, -0.01, 0.11), ("+5.0 pp", "[−1.0, +11.0]")),
        ("average_jct_s", (-2.5, -3.0, -2.0), ("−2.5", "[−3.0, −2.0]")),
        ("average_jct_s", (NAN, NAN, NAN), ("", "")),
    ],
)
def test_a_difference_in_a_report_is_in_points_or_in_the_unit(
    metric: str, row: tuple[float, ...], text: tuple[str, str]
) -> None:
    cells = dict(zip(("difference", "difference_low", "difference_high"), row, strict=True))
    assert report_tables._difference_text(_row(metric=metric, **cells)) == text
    assert report_tables._difference_text(_row(metric=metric)) == ("", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "+0.0"), (0.05, "+0.1"), (0.049, "+0.05"), (0.004, "+0.004"), (-0.01, "−0.01"), (-12.34, "−12.3"),
        (1e-9, "+0.000000001"), (9e-10, "+0.0"),
    ],
)  # fmt: skip
def test_a_signed_number_is_0_only_if_it_is(value: float, text: str) -> None:
    assert report_tables._signed(value) == text


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (_row(change=NAN), "there is nothing to compare: no average JCT in common with the baseline."),
        (_row(seeds=5), "average JCT −25.0 % against b; no verdict from fewer than 6 seeds."),
        (
            _row(verdict="undecided"),
            "average JCT −25.0 % against b; 95 % interval −50.0 % to +0.1 %, so it may be either way.",
        ),
        (_row(change_high=-0.1), "average JCT 25.0 % lower than b (95 % interval 10.0 to 50.0 % lower)."),
        (
            _row(verdict="worse", change=0.2, change_low=0.1, change_high=0.3),
            "average JCT 20.0 % higher than b (95 % interval 10.0 to 30.0 % higher).",
        ),
    ],
)
def test_the_sentence_of_a_report(row: dict[str, Any], sentence: str) -> None:
    assert report_tables._sentence(row, "b") == sentence


def test_what_else_differs_is_told_without_what_is_in_doubt() -> None:
    rows = {
        "makespan_s": {"verdict": "worse", "verdict_holm": "worse"},
        "gpu_utilisation": {"verdict": "better", "verdict_holm": "better"},
        "p95_jct_s": {"verdict": "better", "verdict_holm": "undecided"},
        "jain_index": {"verdict": "better"},
        "queueing_share": {"verdict": "not judged"},
    }
    assert report_tables._others(rows) == "Better in GPU utilisation, Jain's index; worse in makespan."
    assert report_tables._others({}) == ""
    assert [report_tables._verdict(row) for row in rows.values()] == ["worse", "better", "better ?", "better", ""]


def test_what_is_told_of_policies_leaves_out_the_baseline_and_those_without_runs() -> None:
    table = pd.DataFrame(
        [_row(policy=policy, metric=metric) for policy in "bp" for metric in ("average_jct_s", "makespan_s")]
    )
    own = pd.concat([table, pd.DataFrame([_row(policy="q", metric="makespan_s")])])
    compared = SimpleNamespace(baseline="b", table=lambda: own)
    reported: Any = SimpleNamespace(policies=["b", "p", "q"], comparison=compared, rows=lambda table, setting: table)
    (found,) = report_tables.verdicts(reported, None)  # type: ignore[arg-type]
    assert (found.policy, found.verdict, found.others) == ("p", "better", "Better in makespan.")


def test_labels_and_numbers_of_interactive_charts() -> None:
    assert figures._compact([1 / 3, 123456.789, 0.0]) == [0.33333, 123460.0, 0.0]
    assert figures._compact([1 / 3], 2) == [0.33]
    assert figures._wrapped("a < b") == "a &lt; b"
    one, two = figures._rows_pixels(["a"]), figures._rows_pixels(["a", "b"])
    assert (one, two) == (figures._ROW_PIXELS, 2 * figures._ROW_PIXELS)
    long = " + ".join(["a-long-policy"] * 6)
    lines = figures._wrapped(long).count("<br>") + 1
    assert lines > 2
    assert figures._rows_pixels(["a", long]) == 2 * (8 + lines * figures._LINE_PIXELS)


def test_a_chart_is_of_the_first_setting_that_fits() -> None:
    settings = [SimpleNamespace(workload=workload, cluster=cluster) for workload, cluster in ("vx", "vy", "wy")]
    charts: Any = SimpleNamespace(_reported=SimpleNamespace(settings=settings))
    kind: Any = next(each for each in vars(comparison_charts).values() if hasattr(each, "_setting"))
    for asked, place in (((None, None), 0), (("v", "y"), 1), ((None, "y"), 1), (("w", None), 2), (("w", "y"), 2)):
        assert kind._setting(charts, *asked) is settings[place]
    with pytest.raises(InputError, match=r"^no run finished; expected one at least, for a chart"):
        kind._setting(charts, "w", "x")
    with pytest.raises(UnknownNameError, match=r"^no cluster is named 'z'"):
        kind._setting(charts, None, "z")


# ---- Results


def test_placements_name_the_server_after_the_gpu() -> None:
    stays = [SimpleNamespace(job=1, gpus=(0, 3), from_ns=10**9, to_ns=2 * 10**9)]
    of = SimpleNamespace(
        finished=SimpleNamespace(stays=stays),
        workload=[SimpleNamespace(job_id="a"), SimpleNamespace(job_id="b")],
        cluster=Cluster(num_servers=2, gpus_per_server=2),
    )
    table = Result.placements.func(of)  # type: ignore[attr-defined]
    assert table.to_dict("list") == {
        "job_id": ["b", "b"], "gpu": [0, 3], "server": [0, 1], "from_s": [1.0, 1.0], "to_s": [2.0, 2.0]
    }  # fmt: skip
    assert [*table] == ["job_id", "gpu", "server", "from_s", "to_s"]


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([((0,), 0, 5)], 1),
        ([((0,), 0, 5), ((0,), 5, 9)], 1),
        ([((0,), 0, 5), ((0,), 4, 9)], 2),
        ([((0, 1), 0, 5), ((1, 2), 4, -1), ((2, 1), 8, -1)], 2),
        ([((0,), 0, -1), ((0,), 9, -1)], 2),
    ],
)
def test_most_jobs_on_a_gpu_by_hand(spans: list[tuple[tuple[int, ...], int, int]], most: int) -> None:
    stays = [SimpleNamespace(gpus=gpus, from_ns=from_ns, to_ns=to_ns) for gpus, from_ns, to_ns in spans]
    of = SimpleNamespace(finished=SimpleNamespace(stays=stays, end_ns=10))
    assert Result.most_jobs_on_a_gpu.func(of) == most  # type: ignore[attr-defined]


def test_checkpoints_end_no_stay_and_paths_are_of_links_between_switches() -> None:
    links = [SimpleNamespace(name=name) for name in ("port", "up", "down")]

    def stay(from_ns: int, to_ns: int, ended_by: str, *, job: int = 0, saved: bool = False) -> Any:
        return SimpleNamespace(
            job=job, saved=saved, from_ns=from_ns * 10**9, to_ns=to_ns if to_ns <= 0 else to_ns * 10**9,
            ended_by=ended_by, links=(0, 2, 1, 2), gpus=(from_ns,), state_bytes=10 + from_ns,
        )  # fmt: skip

    stays = [
        stay(0, 0, "failure"),
        stay(9, 9, "x", job=1),
        stay(1, 3, ""),
        stay(3, 7, "moved", saved=True),
        stay(7, -1, ""),
    ]
    network = SimpleNamespace(links=links, ports=range(1))
    result: Any = SimpleNamespace(number_of=["a", "b"].index, finished=SimpleNamespace(stays=stays, network=network))
    table = explanation.stays_of(result, "a")
    assert table.columns.tolist() == ["from_s", "to_s", "ended_by", "gpus", "paths", "state_bytes"]
    assert table["from_s"].tolist() == [0.0, 1.0, 7.0]
    np.testing.assert_array_equal(table["to_s"], [0.0, 7.0, NAN])
    assert table["ended_by"].tolist() == ["failure", "moved", ""]
    assert table["gpus"].tolist() == [(0,), (1,), (7,)]
    assert table["paths"].tolist() == [("down", "up")] * 3
    assert table["state_bytes"].tolist() == [10, 11 + 13, 17]


@pytest.mark.parametrize(
    ("starts", "ends", "covered"),
    [
        ([0], [5], 5),
        ([0, 5], [5, 9], 9),
        ([4, 0], [6, 1], 3),
        ([0, 1, 7], [9, 2, 8], 9),
        ([0, 10, 11], [2, 12, 20], 12),
    ],
)
def test_time_that_spans_cover_together(starts: list[int], ends: list[int], covered: int) -> None:
    assert explanation._covered_ns(np.array(starts), np.array(ends)) == covered


def test_jobs_of_different_memory_are_one_kind_where_all_gpus_have_the_same() -> None:
    step = DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=5)
    jobs = [
        Job(job_id=str(mb), arrival_s=0, num_gpus=2, iterations=1, iteration=step, gpu_memory_mb=mb) for mb in (1, 2)
    ]
    workload = Workload.of(jobs)
    assert len({kind for _, kind in alone._parts(workload, Cluster(num_servers=2, gpus_per_server=1))}) == 1


def test_another_search_is_one_with_other_ranges_or_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def study(folder: Path, said: Any, metric: str) -> None:
        asked.append((folder, said, metric))
        raise InterruptedError

    monkeypatch.setattr(tuning, "_study", study)
    with pytest.raises(InterruptedError):
        tuning.tune(
            "microsoft-160:scale=0.002", {"communication": "bounded-overlap:limit=1"},
            ranges=["communication.limit=1:2"],
            seeds=(3, 4), options={"warmup_s": 2}, folder=tmp_path,
        )  # fmt: skip
    knob = tuning.Knob("communication", "limit", 1, 1, 2)
    said = {
        "workload": "microsoft-160:scale=0.002",
        "policies": {"communication": "bounded-overlap:limit=1"},
        "metric": "average_jct_s",
        "seeds": [3, 4],
        "knobs": [repr(knob)],
        "options": {"warmup_s": "2"},
    }
    assert asked == [(tmp_path, said, "average_jct_s")]


def test_what_is_told_of_a_run_is_in_its_file_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    with run.progress_file("p, seed 1", file) as write:
        assert write is not None
        write((5.0, 1, 2))  # type: ignore[arg-type]
        assert json.loads(file.read_text()) == ["p, seed 1", 5.0, 1, 2]
        file.unlink()
        file.mkdir()
        write((6.0, 2, 2))  # type: ignore[arg-type]
        file.rmdir()
    assert not file.exists()
    with run.progress_file("p, seed 1", None) as write:
        assert write is None


def test_settings_are_tried_with_a_job_of_a_second() -> None:
    job = compare._job_of_a_second(Cluster())
    assert (job.arrival_s, job.compute_ns, job.iterations, job.num_gpus) == (0.0, 10**9, 1, 1)


def node(name: str, gpus: int = 8, labels: dict[str, Any] | None = None, **told: Any) -> ObjectFields:
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}} | told.pop("status", {})
    fields = {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "status": status} | told
    return ObjectFields("", fields)


def test_nodes_of_kubernetes_are_servers_side_by_side_with_their_units() -> None:
    levels = ("block", "rack")
    nodes = [
        node("n1", labels={"block": "b2", "rack": "r1", "nvidia.com/gpu.memory": "40960"}),
        node("n2", labels={"block": "b1"}),
        node("n3", spec={"unschedulable": True}),
        node("n4", status={"conditions": [{"type": "Ready", "status": "False"}]}),
        node("n5", gpus=0),
    ]
    notes: list[str] = []
    first, second = kubernetes.servers_of(nodes, {}, levels, notes)
    assert first.levels == (("rack", "b1/n2"), ("block", "b1"))
    assert second.levels == (("rack", "b2/r1"), ("block", "b2"))
    assert second.gpu_memory_mb == pytest.approx(40960 * 1.048576)
    assert first.gpu_memory_mb == pytest.approx(kubernetes._DEFAULT_MEMORY_MB)
    assert notes == ["2 nodes left out, which take no pods: unschedulable, or not ready"]


def test_nodes_have_the_first_kind_whose_labels_they_have() -> None:
    kinds = {"a100": {"gpu": "a100"}, "fast": {"gpu": "a100", "net": "ib"}, "h100": {"gpu": "h100"}}
    nodes = [node("n1", labels={"gpu": "a100", "net": "ib"}), node("n2", labels={"gpu": "h100"}), node("n3")]
    notes: list[str] = []
    assert [server.gpu_kind for server in kubernetes.servers_of(nodes, kinds, (), notes)] == ["a100", "h100"]
    assert notes == []


def test_the_first_column_that_a_run_lacks_is_named() -> None:
    stored_runs._refuse_missing(Path("f"), ["a", "b", "c"], ["c", "a"])
    with pytest.raises(InputError, match=r"f: has no column 'd', so it is no run's; expected "):
        stored_runs._refuse_missing(Path("f"), ["a", "b"], ["a", "d", "e"])


@pytest.mark.parametrize(("cores", "tasks", "here"), [(1, 3, True), (2, 1, True), (2, 2, False), (4, 3, False)])
def test_one_task_or_one_process_is_carried_out_here(
    cores: int, tasks: int, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def until_one_dies(left: Any, count: int, progress: Any) -> Any:
        counts.append(count)
        while left:
            yield left.popleft(), "there"
        return []

    monkeypatch.setattr(joblib, "effective_n_jobs", lambda _: cores)
    monkeypatch.setattr(workers, "execute", lambda *_: "here")
    monkeypatch.setattr(workers, "warm_up", lambda: None)
    monkeypatch.setattr(workers, "_until_one_dies", until_one_dies)
    asked = [workers.Task(str(number), run.Run(labels={}, workload="w", seed=1), ("run",)) for number in range(tasks)]
    found = [*workers.on_this_machine(asked, cores, None)]
    assert found == [(task, "here" if here else "there") for task in asked]
    assert counts == ([] if here else [min(cores, tasks)])


def read_runs(folder: Path, *rows: str) -> pd.DataFrame:
    (folder / "runs.csv").write_text("policy,workload,cluster,file,seed,own\n" + "".join(f"{row}\n" for row in rows))
    return comparison_folder.read_table(folder, "runs.csv", {"policies": ["1"], "workloads": ["NA"], "clusters": ["c"]})


def test_labels_of_a_table_are_texts_and_only_what_is_empty_is_missing(tmp_path: Path) -> None:
    table = read_runs(tmp_path, "1,NA,c,f,3,", "1,NA,c,f,9223372036854775000,2.5")
    assert table[["policy", "workload"]].values.tolist() == [["1", "NA"]] * 2
    assert table["own"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("1,NA,c,f,9223372036854775808,1", "line 3: seed: is "),
        ("1,NA,c,f,,1", "line 3: seed: is nan; expected a whole number"),
        ("1,NA,c,f,3,x", "line 3: own: is 'x'; expected a number"),
        ("2,NA,c,f,3,1", "line 3: policy: is '2'; expected one of comparison.json: 1"),
        ("1,w,c,f,3,1", "line 3: workload: is 'w'; expected one of comparison.json: NA"),
    ],
)
def test_a_cell_that_cannot_be_is_refused_with_its_line(row: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'runs.csv'}: {why}")):
        read_runs(tmp_path, "1,NA,c,f,3,1", row)


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("policy,workload,cluster,seed\n")
    with pytest.raises(InputError, match="has no column 'file'; expected policy, workload, cluster, file, seed"):
        comparison_folder.read_table(tmp_path, "runs.csv", {})


def test_jobs_of_other_schedulers_are_of_servers_of_8_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: list[dict[str, Any]] = []

    def rule(**given: Any) -> Any:
        rules.append(given)
        raise InterruptedError

    monkeypatch.setattr(cluster_imports, "JobRule", rule)
    jobs = (TracedJob("b", 9.0, 1, 5.0), TracedJob("a", 2.0, 1, float("nan")))
    imported = cluster_imports.ImportedCluster(queues=(), servers=(), jobs=jobs, admission="kueue")
    with pytest.raises(InterruptedError):
        cluster_imports._jobs_table(imported, None)
    assert [(given["gpus_per_server"], given["seed"]) for given in rules] == [(8, 1)]


@pytest.mark.parametrize(
    ("workload", "seed", "draw", "is_first"),
    [("fixed", 1, 0, True), ("fixed", 3, 2, False), ("fixed", 7, 6, False), ("drawn by seed", 7, None, False)],
)
def test_a_run_of_a_draw_says_which_and_the_first_of_all_is_kept(
    workload: str, seed: int, draw: int | None, is_first: bool
) -> None:
    """Draws are from 1, seeds from 7; what is kept is of the first workload, cluster, and draw or seed."""
    place = SimpleNamespace(cluster="cluster", contention="linear")
    settings = SimpleNamespace(seeds=[7, 8], given_options={"warmup_s": 2.0}, timeline="window")
    plan: Any = SimpleNamespace(
        places={"c": place}, settings=settings, drawn_workloads=["fixed"], policies={"p": {"order": "fifo"}},
        workloads={"fixed": "f.csv", "drawn by seed": "stream"},
    )  # fmt: skip
    found = compare.ComparisonPlan._run(plan, "p", workload, "c", seed, False)
    options = {"order": "fifo", "cluster": "cluster", "contention": "linear", "warmup_s": 2.0}
    assert found.options == options | ({} if draw is None else {"draw": draw})
    assert (found.labels, found.workload) == (
        {"policy": "p", "workload": workload, "cluster": "c"},
        plan.workloads[workload],
    )
    assert (found.seed, found.seeded, found.placements) == (seed, False, is_first)
    assert found.window == ("window" if is_first else None)


def test_without_draws_the_first_seed_is_kept() -> None:
    place = SimpleNamespace(cluster="cluster", contention="linear")
    settings = SimpleNamespace(seeds=[7, 8], given_options={}, timeline=None)
    plan: Any = SimpleNamespace(
        places={"c": place, "d": place},
        settings=settings,
        drawn_workloads=[],
        policies={"p": {}},
        workloads={"w": "f", "v": "g"},
    )
    kept = [
        (workload, cluster, seed)
        for workload in "wv" for cluster in "cd" for seed in (7, 8, 1)
        if compare.ComparisonPlan._run(plan, "p", workload, cluster, seed, True).placements
    ]  # fmt: skip
    assert kept == [("w", "c", 7)]


@pytest.mark.parametrize(
    ("column", "taken"), [("change_low", True), ("difference", True), ("p_value", False), ("mean", False)]
)
def test_what_begins_so_is_taken_back_and_with_it_the_verdict(column: str, taken: bool) -> None:
    table = pd.DataFrame(
        {
            column: [1.0, 2.0, 3.0],
            "verdict": ["better", "not judged", "worse"],
            "verdict_holm": ["undecided", "worse", "worse"],
        }
    )
    found = comparison_tables._without(table, pd.Series([True, True, False]), "change", "difference")
    assert found[column].isna().tolist() == [taken, taken, False]
    assert found["verdict"].tolist() == ["undecided", "not judged", "worse"]
    assert found["verdict_holm"].tolist() == ["undecided", "undecided", "worse"]
    assert table["verdict"].tolist() == ["better", "not judged", "worse"]


def fake_compare(rows: pd.DataFrame, *, baseline: str) -> pd.DataFrame:
    """Return a row a policy: of how many seeds, and against whom."""
    counts = rows.groupby("policy", sort=False)["seed"].nunique()
    given = {"policy": counts.index, "seeds": counts.to_numpy(), "against": baseline, "change": 1.0, "p_value": 0.5}
    return pd.DataFrame(given | {"verdict": "better", "seeds_left_out": 0})


def test_policies_are_compared_on_the_seeds_that_they_share_with_the_baseline() -> None:
    """b has seeds 1 to 3; p all of them, q two of them, r one that b has not."""
    seeds = {"b": (1, 2, 3), "p": (1, 2, 3), "q": (2, 3), "r": (4,)}
    runs = pd.DataFrame([(policy, seed) for policy, own in seeds.items() for seed in own], columns=["policy", "seed"])
    table = comparison_tables._against_baseline(runs, runs, "b", fake_compare).set_index("policy")
    assert table["against"].to_dict() == {"b": "b", "p": "b", "q": "b", "r": "r"}
    assert table["seeds"].to_dict() == {"b": 3, "p": 3, "q": 2, "r": 1}
    assert table["seeds_left_out"].to_dict() == {"b": 1, "p": 1, "q": 2, "r": 3}
    assert table["change"].isna().to_dict() == {"b": False, "p": False, "q": False, "r": True}
    assert table["p_value"].isna().to_dict() == {"b": False, "p": True, "q": True, "r": True}
    assert table["verdict"].to_dict() == {"b": "better", "p": "undecided", "q": "undecided", "r": "undecided"}


def test_files_that_are_sent_are_unpacked_once_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_FOLDERS", {})
    parcel = {"/a/one.py": b"1", "/a/two.py": b"2", "/b/one.py": b"3"}
    folder = Path(workers._unpacked(parcel))
    assert {f"/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.py")} == parcel
    assert Path(workers._unpacked(dict(parcel))) == folder
    other = Path(workers._unpacked(parcel | {"/a/one.py": b"4"}))
    assert other != folder
    assert (other / "a" / "one.py").read_bytes() == b"4"


@pytest.mark.parametrize(("remark", "held"), [("", False), ("takes long", True)])
def test_what_the_user_should_know_is_said_before(
    remark: str, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    asked = {"policies": {"p": {}}, "workloads": {"w": "f", "v": "g"}, "clusters": {"c": {}}, "seeds": [1, 2, 3]}
    plan: Any = SimpleNamespace(
        described=lambda: dict(asked), as_yaml=lambda: "yaml", runs=lambda: [1, 2, 3], task_ends={"w": 5, "v": 6}
    )
    begun: list[Any] = []
    monkeypatch.setattr(compare, "begin", lambda *given: begun.append(given) or held)
    monkeypatch.setattr(compare, "long_run_remark", lambda ends: remark and f"{remark}: {ends}")
    monkeypatch.setattr(
        compare, "sweep", lambda runs, folder, **given: (runs, folder, given["processes"], given["dask"])
    )
    monkeypatch.setattr(compare, "Comparison", lambda folder, asked: (folder, asked))
    finished: list[Any] = []
    monkeypatch.setattr(compare, "finish", lambda *given: finished.append(given))
    found: Any = compare.carry_out(plan, tmp_path, processes=2, say=said.append)
    command = ["ddlsched", "compare", "--config", str(tmp_path / "compare.yaml"), "--out", str(tmp_path)]
    expected = asked | {"command": command, "working_folder": str(Path.cwd())}
    assert begun == [(tmp_path, expected, "yaml")]
    assert found == (tmp_path, expected)
    assert finished == [(found, ([1, 2, 3], tmp_path / "runs", 2, None))]
    replaced = f"{tmp_path} held another comparison; its tables are replaced, and its runs used where they fit"
    assert said == [replaced] * held + ["3 runs: 1 policy x 2 workloads x 1 cluster x 3 seeds"] + (
        ["w: takes long: 5", "v: takes long: 6"] if remark else []
    )


def notes(seeds: list[int], measured: list[int], drawn: tuple[str, ...] = (), **told: Any) -> list[str]:
    """Return what is to be known of a comparison of p with the baseline b on w, each measured on so many seeds."""
    rows = [(policy, "w", "c", count, 0) for policy, count in zip("bp", measured, strict=False)]
    table = pd.DataFrame(rows, columns=["policy", "workload", "cluster", "seeds", "seeds_left_out"])
    asked = {"seeds": seeds, "draws": 3, "drawn_workloads": list(drawn), "workloads": {"w": "f"}, "options": {}} | told
    own: Any = SimpleNamespace(
        table=lambda: table,
        asked=asked,
        baseline=told.get("baseline", "b"),
        runs=None,
        _why_one_run=lambda w: f"why {w}",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "conditions", lambda *_: ["conditions"])
        return comparison.Comparison.notes(own)


def test_notes_say_what_to_know_before_the_tables_are_believed() -> None:
    six = list(range(6))
    assert notes(six, [6, 6]) == ["conditions"]
    assert notes(six, [6, 1]) == notes(six, [1, 1]) == ["w: why w.", "conditions"]
    assert notes([1], [1, 1]) == ["1 seed: no verdict is given with fewer than 6.", "conditions"]
    assert notes([1, 2], [2, 2]) == ["2 seeds: no verdict is given with fewer than 6.", "conditions"]
    assert notes(six, [6, 6], baseline="q") == ["w on c: q, the baseline, has no finished runs.", "conditions"]
    drawn = notes([1], [3, 3], drawn=("w",))
    assert drawn[0] == "3 draws: no verdict is given with fewer than 6."
    assert drawn[1].startswith("w: 3 draws of the jobs' lengths (0.1 %, or one iteration), no seeds: ")
    assert drawn[2:] == ["conditions"]
    assert len(notes(six, [6, 6], options={"sample": True})) == 2


@pytest.mark.parametrize(
    ("name", "older_s", "gone"),
    [
        ("a.here-1.part", 0.0, True),
        ("a.here-2.part", 0.0, False),
        ("a.there-1.part", stored_runs.ABANDONED_S, False),
        ("a.there-1.part", stored_runs.ABANDONED_S + 0.5, True),
        ("a.here-2.part", stored_runs.ABANDONED_S + 0.5, True),
        ("a.here-x.part", stored_runs.ABANDONED_S + 0.5, False),
    ],
)
def test_what_is_left_of_a_process_that_is_gone_here_or_of_an_old_one_is_removed(
    name: str, older_s: float, gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 2 is alive, and no other."""
    monkeypatch.setattr(stored_runs, "_host", lambda: "here")
    monkeypatch.setattr(stored_runs, "_is_alive", lambda process: process == 2)
    part = tmp_path / name
    part.touch()
    os.utime(part, (1e6, 1e6))
    monkeypatch.setattr(stored_runs.time, "time", lambda: 1e6 + older_s)
    stored_runs.remove_leftovers(tmp_path)
    assert part.exists() is not gone
