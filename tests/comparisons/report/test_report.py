"""The report: one file with the numbers of the folder, that nothing in a user's names can break."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run
from comparison_folders import MESSAGE, NASTY, SMALL, nasty_comparison
from kept_numbers import assert_kept, digest
from matplotlib.figure import Figure

import ddlsched
from ddlsched.comparisons.charts.style import colours
from ddlsched.comparisons.comparison import Comparison
from ddlsched.comparisons.report import html_report, report_tables
from ddlsched.comparisons.report.comparison_charts import draw_charts
from ddlsched.comparisons.report.figures import interactive_charts, placement_chart
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.errors import InputError
from ddlsched.results.paired_comparison import METRICS, SLOWDOWN_AND_FAIRNESS

pytestmark = pytest.mark.long  # a report of a comparison takes five seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nasty_comparison(tmp_path_factory.mktemp("report") / "comparison")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Reported:
    return Reported.open(folder)


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    """The report, with all charts drawn."""
    done = run("report", folder)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (
        done.stderr
        == f"ddlsched: wrote {folder / 'report.html'} ({(folder / 'report.html').stat().st_size / 1e6:.1f} MB)\n"
    )
    return folder / "report.html"


@pytest.fixture
def quick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawing of charts out."""
    monkeypatch.setattr(html_report, "draw_charts", lambda _: sorted((folder / "charts").glob("*")))


class Page(HTMLParser):
    """What a browser would make of a page: its elements with their attributes, and the texts of some of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("td", "th", "li", "caption", "code", "script", "h1", "option", "label", "title"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data) -> None:
        for tag in self._open[-1:]:
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page(written.read_text(encoding="utf-8"))


def squeezed(texts: list[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


# ---- One file


def test_the_report_loads_nothing(page):
    loading = [
        (tag, name) for tag, attributes in page.elements for name in attributes if name in ("src", "srcset", "data")
    ]
    assert loading == []
    assert page.all("link") == []
    assert {attributes["href"] for attributes in page.all("a") if ":" in attributes["href"]} == {
        "https://ui.perfetto.dev"
    }
    (policy,) = [attributes["content"] for attributes in page.all("meta") if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'; ")
    assert not re.search(r"url\(|@import", (Path(html_report.__file__).parent / "page" / "report.css").read_text())


def test_the_same_folder_gives_the_same_bytes(folder, written, tmp_path, quick):
    again = ddlsched.report(folder)
    assert again == written
    first = again.read_bytes()
    assert html_report.report(str(folder)).read_bytes() == first


def test_links_lead_to_files_from_wherever_the_report_is(folder, written, tmp_path, quick):
    (tmp_path / "a folder").mkdir()
    elsewhere = html_report.report(folder, tmp_path / "a folder" / "my report.html")
    for report in (written, elsewhere):
        links = [a["href"] for a in Page(report.read_text("utf-8")).all("a")]
        files = [link for link in links if not link.startswith(("#", "https:"))]
        assert len(files) == 3 + 2 * 9  # timelines, and six charts and three maps as PNG and SVG
        assert all((report.parent / link.replace("%20", " ")).is_file() for link in files)


def test_parts_that_links_lead_to_are_there(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")} <= set(ids)
    labelled = {attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes}
    assert labelled <= set(ids)


# ---- A user's names


def test_names_are_shown_as_they_are_and_break_nothing(page):
    assert page.all("b") == page.all("i") == []
    assert len(page.all("script")) == 3
    shown = [*page.texts["th"], *page.texts["label"], *page.texts["li"]]
    assert sum(NASTY in " ".join(text.split()) for text in shown) >= 8
    assert any(text.endswith(MESSAGE) for text in squeezed(page.texts["code"]))


def test_names_in_charts_are_escaped_for_plotly(opened):
    names = {
        trace["name"]
        for chart in interactive_charts(opened, opened.settings[0])
        for trace in chart.traces
        if "name" in trace
    }
    (nasty,) = [name for name in names if "script" in name]
    assert not re.search(r"<(?!br>)|%\{", nasty)
    plain = (
        nasty.replace("<br>", "")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
        .replace("\N{WORD JOINER}", "")
    )
    assert "".join(plain.split()) == "".join(NASTY.split())


# ---- Numbers


def test_tables_show_the_comparisons_numbers(opened, page):
    table = opened.comparison.table()
    (row,) = table[(table["policy"] == NASTY) & (table["metric"] == "p95_jct_s")].to_dict("records")
    cells = squeezed(page.texts["td"])
    value, change = f"{row['mean']:.3g}", f"{100 * row['change']:+.1f} %".replace("-", "−")
    assert any(cell.startswith(value) and change in cell and row["verdict"] in cell for cell in cells)


def test_utilisation_is_shown_in_per_cent(opened):
    table = report_tables.main_table(opened, opened.settings[0])
    column = table.columns.index("GPU utilisation (%)")
    runs = opened.comparison.runs
    mean = runs[runs["policy"] == "SRSF(1)"]["gpu_utilisation"].mean()
    assert table.rows[0][1][column].value == f"{100 * mean:.1f}"


def test_shares_of_time_add_up(opened):
    table = report_tables.phase_table(opened, opened.settings[0])
    for _, cells in table.rows:
        assert sum(float(cell.value) for cell in cells) == pytest.approx(100, abs=0.3)
    assert "Restarting" not in table.columns


def test_no_share_and_no_count_is_said_to_be_less_than_none() -> None:
    runs = pd.DataFrame({"policy": ["p", "p"], "queueing_share": [0.1, 0.9], "stops": [1, 30]})
    given: Any = SimpleNamespace(
        rows=lambda table, _: table, comparison=SimpleNamespace(runs=runs), policies=["p"], settings=[None]
    )
    tables = (table_of(given, given.settings[0]) for table_of in (report_tables.phase_table, report_tables.door_table))
    cells = [table.rows[0][1][0] for table in tables]
    assert [cell.ends.partition(",")[0] for cell in cells] == ["[0.0", "[0.0"]
    assert cells[0].ends == "[0.0, 100.0]"


def test_network_shares_are_means_over_seeds_of_sums_over_jobs(opened):
    setting = opened.settings[0]
    shares = opened.network_shares(setting)
    each = []
    for jobs in opened.jobs(setting, NASTY):
        own = jobs[jobs["size_class"] == "8+"]
        each.append((own["communication_s"].sum() + own["network_wait_s"].sum()) / own["jct_s"].sum())
    assert shares.loc[NASTY, "8+ GPUs"] == pytest.approx(np.mean(each))
    assert shares.columns.tolist() == ["1 GPU", "2–4 GPUs", "8+ GPUs", "all jobs"]
    assert shares["1 GPU"].tolist() == [0.0] * 3


ROW = {
    **{"workload": "w", "cluster": "c", "policy": "mine", "metric": "average_jct_s", "seeds": 8},
    **{"mean": 9.0, "low": 8.0, "high": 10.0, "change": -0.1, "change_low": -0.2, "change_high": -0.05},
    "verdict": "better",
}


def made_by_hand(folder: Path, *rows: dict[str, object]) -> Reported:
    """A comparison of one policy with a baseline, in which ROW has these other values."""
    compared = pd.DataFrame([ROW | row for row in rows])
    compared.to_csv(folder / "comparison.csv", index=False)
    workloads = sorted(set(compared["workload"]))
    runs = [{"policy": policy, "workload": name} for name in workloads for policy in ("base", "mine")]
    pd.DataFrame(runs).assign(cluster="c", seed=1, file="x").to_csv(folder / "runs.csv", index=False)
    asked = {"policies": {"base": {}, "mine": {}}, "baseline": "base", "clusters": {"c": {"gpus": [4]}}}
    return Reported(Comparison(folder, asked | {"workloads": dict.fromkeys(workloads)}))


@pytest.mark.parametrize(
    ("row", "verdict", "sentence"),
    [
        ({}, "better", "average JCT 10.0 % lower than base (95 % interval 5.0 to 20.0 % lower)."),
        (
            {"change": 0.1, "change_low": 0.05, "change_high": 0.2, "verdict": "worse"},
            "worse",
            "average JCT 10.0 % higher than base (95 % interval 5.0 to 20.0 % higher).",
        ),
        (
            {"change_high": 0.0004, "verdict": "undecided"},
            "undecided",
            "average JCT −10.0 % against base; 95 % interval −20.0 % to +0.04 %, so it may be either way.",
        ),
        (
            {"seeds": 5, "verdict": "undecided"},
            "undecided",
            "average JCT −10.0 % against base; no verdict from fewer than 6 seeds.",
        ),
        (
            {"change": np.nan, "verdict": "undecided"},
            "undecided",
            "there is nothing to compare: no average JCT in common with the baseline.",
        ),
    ],
)
def test_the_headline_says_the_verdict_in_words(tmp_path, row, verdict, sentence):
    (said,) = report_tables.verdicts(made_by_hand(tmp_path, row), ComparedSetting("w", "c"))
    assert (said.policy, said.verdict, said.sentence, said.others) == ("mine", verdict, sentence, "")


def test_the_headline_names_what_else_differs(tmp_path):
    more = {"p95_jct_s": "better", "gpu_utilisation": "worse", "jain_index": "worse"}
    rows = [{"metric": metric, "verdict": verdict} for metric, verdict in more.items()]
    (said,) = report_tables.verdicts(made_by_hand(tmp_path, {}, *rows), ComparedSetting("w", "c"))
    assert said.others == "Better in 95th percentile JCT; worse in GPU utilisation, Jain's index."


def test_a_verdict_that_does_not_stand_among_many_is_in_doubt(tmp_path):
    table = report_tables.main_table(made_by_hand(tmp_path, {"verdict_holm": "undecided"}), ComparedSetting("w", "c"))
    assert table.doubtful
    assert [cell.verdict for _, cells in table.rows for cell in cells if cell] == ["better ?"]
    assert not report_tables.main_table(
        made_by_hand(tmp_path, {"verdict_holm": "better"}), ComparedSetting("w", "c")
    ).doubtful
    (said,) = report_tables.verdicts(made_by_hand(tmp_path, {"verdict_holm": "undecided"}), ComparedSetting("w", "c"))
    assert said.verdict == "better ?"


def test_where_there_is_no_change_the_difference_is_shown(tmp_path):
    row = {"change": np.nan, "difference": 0.02, "difference_low": 0.01, "difference_high": 0.03, "verdict": "worse"}
    row |= {"metric": "unfair_fraction", "mean": 0.05, "low": 0.04, "high": 0.06}
    table = report_tables.slowdown_table(made_by_hand(tmp_path, row), ComparedSetting("w", "c"))
    assert table.columns == ["Jobs with ρ > 1 (%)"]
    assert table.rows[1][1][0] == report_tables.TableCell("5.00", "[4.00, 6.00]", "+2.0 pp [+1.0, +3.0]", "worse")
    table = report_tables.slowdown_table(made_by_hand(tmp_path, row | {"policy": "base"}), ComparedSetting("w", "c"))
    assert table.rows[0][1][0] == report_tables.TableCell("5.00", "[4.00, 6.00]")


def test_several_settings_have_an_overview(tmp_path):
    table = report_tables.overview(made_by_hand(tmp_path, {}, {"workload": "v", "change": 0.3, "verdict": "worse"}))
    assert table.columns == ["mine"]
    assert [(label, cell.value, cell.verdict) for label, (cell,) in table.rows] == [
        ("v on c", "+30.0 %", "worse"),
        ("w on c", "−10.0 %", "better"),
    ]


def said(value: Any) -> Iterator[str]:
    """All that a table or chart says, numbers with six digits."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield f"{key}:"
            yield from said(below)
    elif dataclasses.is_dataclass(value):
        yield from said(vars(value))
    elif isinstance(value, list | tuple | np.ndarray):
        for below in value:
            yield from said(below)
    else:
        yield f"{value:.6g}" if isinstance(value, float) else str(value)


def test_tables_and_charts_are_what_they_were(opened, tmp_path):
    """Of a comparison, and of rows by hand in which numbers are large, small, none, or of one seed."""
    found: dict[str, str] = {}
    values = [
        {"metric": metric, "mean": mean, "low": 0.9 * mean, "high": 1.2 * mean, "change_low": -0.2 * mean}
        for metric, mean in zip(
            METRICS | SLOWDOWN_AND_FAIRNESS, (0.0, 3e-6, 0.012, 0.7, 12.0, 345.6, 8e7), strict=False
        )
    ]
    folders = [tmp_path / name for name in ("by hand", "one seed")]
    for folder in folders:
        folder.mkdir()
    by_hand = made_by_hand(folders[0], *(row | {"policy": policy} for row in values for policy in ("base", "mine")))
    alone = made_by_hand(folders[1], *(row | {"seeds": 1} for row in values))
    of = [report_tables.main_table, report_tables.slowdown_table]
    of_runs = [*of, report_tables.phase_table, report_tables.door_table]
    for name, each, tables in (("run", opened, of_runs), ("by hand", by_hand, of), ("one seed", alone, of)):
        setting = each.settings[0]
        made = [*(table(each, setting) for table in tables), report_tables.overview(each)]
        made += report_tables.class_tables(each, setting) if each is opened else ()
        found |= {f"{name}, {table.caption}": digest(said(table)) for table in made}
        found[f"{name}, verdicts"] = digest(said(report_tables.verdicts(each, setting)))
    setting = opened.settings[0]
    (name, *_) = opened.policies
    maps = [placement_chart(opened.placements(name), opened.servers(setting.cluster), name)]
    charts = [*interactive_charts(opened, setting), *filter(None, maps)]
    assert_kept("reports", found | {f"chart, {chart.title}": digest(said(chart)) for chart in charts})


# ---- Charts


def test_interactive_charts_are_what_plotly_knows(opened):
    objects = importlib.import_module("plotly.graph_objects")
    charts = list(interactive_charts(opened, opened.settings[0]))
    assert [chart.title for chart in charts] == [
        "Change against the baseline",
        "Average JCT",
        "Average JCT by job size",
        "Distribution of JCT",
        "Network's share of JCT",
        "Utilisation over time",
    ]
    for chart in charts:
        figure = objects.Figure(data=chart.traces, layout=chart.layout)  # raises on names and values it does not know
        assert len(figure.data) == len(chart.traces) > 0
        assert all(len(trace["x"]) == len(trace["y"]) for trace in chart.traces if trace["type"] == "scatter")
    json.dumps([chart.traces for chart in charts], allow_nan=False)


def test_distributions_are_few_quantiles(opened):
    setting = opened.settings[0]
    (chart,) = [chart for chart in interactive_charts(opened, setting) if chart.title == "Distribution of JCT"]
    for policy, trace in zip(opened.policies, chart.traces, strict=True):
        jct_s = np.concatenate([jobs["jct_s"] for jobs in opened.jobs(setting, policy)])
        assert len(trace["x"]) == 201 < len(jct_s)
        assert trace["x"][100] == pytest.approx(np.median(jct_s), rel=1e-4)
        assert trace["x"][-1] == pytest.approx(jct_s.max(), rel=1e-4)


def test_placement_maps_are_sent_as_whole_numbers_and_unfold_to_all_stays(opened):
    placements = opened.placements(NASTY)
    data = placement_chart(placements, [4] * 16, NASTY).placement
    gpu_s = 0.0
    for _, from_time, to_time, _, gpus, _, jobs in data["boxes"]:
        gpu_s += gpus * (data["times_s"][to_time] - data["times_s"][from_time]) * (1 / jobs if gpus == 1 else 1)
    busy_s = 0.0
    for _, own in placements.groupby("gpu"):
        times = sorted({*own["from_s"], *own["to_s"]})
        spans = [(a, b) for a, b in itertools.pairwise(times) if ((own["from_s"] <= a) & (own["to_s"] >= b)).any()]
        busy_s += sum(b - a for a, b in spans)
    assert gpu_s == pytest.approx(busy_s, rel=1e-3)
    assert {stay[0] for stay in data["stays"]} == set(placements["job_id"].astype(str))
    assert len(json.dumps(data)) < 30 * len(data["boxes"])


def test_a_placement_map_that_is_too_large_is_a_picture(folder, written, opened, monkeypatch):
    monkeypatch.setattr(html_report, "placement_chart", lambda *_: None)
    (first, *_) = html_report._placements(opened, opened.settings[0])
    assert first["picture"].startswith("data:image/png;base64,iVBOR")
    assert first["data"] is None


def test_a_policy_has_one_colour_in_files_and_on_the_page(written, opened):
    shade = colours(opened.policies)
    text = written.read_text("utf-8")
    for number, policy in enumerate(opened.policies):
        assert f"--policy-{number}: {shade[policy]};" in text
        svg = (written.parent / "charts" / "average-jct.svg").read_text("utf-8")
        assert shade[policy] in svg
    assert len(set(shade.values())) == 3


def test_all_charts_of_a_folder_are_drawn(folder, written):
    names = {path.name for path in (folder / "charts").iterdir()}
    maps = {"placement-srsf-1", "placement-script-b-bold-b-it-s-x-y-1", "placement-preemptive-by-service-per-gpu"}
    charts = {"average-jct", "changes", "jct-by-size", "jct-distribution", "network-share", "utilisation"}
    assert names == {f"{name}.{kind}" for name in charts | maps for kind in ("png", "svg")}


@pytest.mark.slow
def test_each_setting_has_charts_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).write_bytes(b""))  # others draw them
    folder = tmp_path / "two"
    workloads = [SMALL, "microsoft-160:scale=0.002"]
    ddlsched.compare(workloads, {"name": "SRSF(1)", "scheduler": "srsf-1"}, seeds=1, folder=folder, processes=1)
    files = {path.relative_to(folder / "charts").as_posix() for path in draw_charts(folder)}
    places = {name.split("/")[0] for name in files}
    assert places == {"microsoft-160-scale-0-001-16x4", "microsoft-160-scale-0-002-16x4"}
    assert {name for name in files if "placement" in name} == {
        f"microsoft-160-scale-0-001-16x4/placement-srsf-1.{kind}" for kind in ("png", "svg")
    }


def test_runs_that_nothing_random_is_in_have_a_report_without_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "draw_charts", lambda _: [])
    ddlsched.write_workload(ddlsched.microsoft_160(seed=1, scale=0.001), tmp_path / "jobs.csv")
    comparison = ddlsched.compare(
        tmp_path / "jobs.csv", ["srsf-1", "ada-srsf"], seeds=6, folder=tmp_path / "out", processes=1
    )
    page = Page(html_report.report(comparison.folder).read_text("utf-8"))
    cells = squeezed(page.texts["td"])
    assert any(" % " in f"{cell} " for cell in cells)
    assert not any("[" in cell or "nan" in cell for cell in cells)
    reported = Reported.open(comparison.folder)
    assert [each.sentence for each in report_tables.verdicts(reported, reported.settings[0])] == [
        f"average JCT {report_tables._percent(100 * change)} against srsf-1; no verdict from fewer than 6 seeds."
        for change in comparison.table().query("metric == 'average_jct_s' and policy == 'ada-srsf'")["change"]
    ]


# ---- What goes wrong


def test_charts_that_cannot_be_written_are_one_line(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("charts", "report.html")))
    (copy / "charts").write_text("a file")
    done = run("report", copy)
    assert done.exit_code == 2
    assert done.stderr == (
        f"ddlsched: error: {copy}/charts: cannot be used (File exists); expected a folder for charts\n"
    )


@pytest.mark.parametrize("module", ["plotly", "jinja2"])
def test_a_missing_extra_is_one_line_that_says_how_to_install_it(module, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    done = run("report", folder)
    assert done.exit_code == 2
    assert done.stderr == (
        "ddlsched: error: the report needs plotly and jinja2; expected: pip install 'ddlsched[report]'\n"
    )


def test_a_report_that_cannot_be_written_is_refused_before_charts_are_drawn(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "draw_charts", None)
    with pytest.raises(InputError, match="is a folder; expected a file name"):
        html_report.report(folder, tmp_path)
    done = run("report", folder, "--out", tmp_path / "nowhere" / "report.html")
    assert done.exit_code == 2
    assert "there is no folder" in done.stderr


@pytest.mark.parametrize(
    ("policies", "settings", "title"),
    [
        (["A"], [("w", "c")], "A, w on c"),
        (["A", "B"], [("w", "c")], "2 policies, w on c"),
        (["A"], [("w", "c"), ("v", "c")], "A, 2 settings"),
    ],
)
def test_the_title_says_how_much_was_compared(policies: list[str], settings: list[Any], title: str) -> None:
    reported = SimpleNamespace(policies=policies, settings=[ComparedSetting(*each) for each in settings])
    assert html_report._title(reported) == title  # type: ignore[arg-type]


def test_item_27_times_of_a_placement_map_have_six_digits() -> None:
    stay = {"job_id": "a", "gpu": 0, "server": 0, "from_s": 1.2345678, "to_s": 12.345678}
    chart = placement_chart(pd.DataFrame([stay]), [1], "first")
    assert chart is not None
    assert chart.placement["times_s"] == [1.23457, 12.3457]
