"""What ``simulate`` and ``workload import`` say, word by word, from numbers made by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from ddlsched.cli import simulate_command as simulate
from ddlsched.cli import workload_command as imports
from ddlsched.errors import InputError, UnknownNameError

SUMMARY = {
    "average_jct_s": 12.3456, "median_jct_s": 10.0, "p95_jct_s": 99.5, "makespan_s": 1234.5, "gpu_utilisation": 0.4567,
    "jobs": 1200, "unfinished_jobs": 0, "restarts": 0, "events": 12345, "engine_s": 0.25,
}  # fmt: skip
LINES = [
    ("average JCT", "12.346", "s"), ("median JCT", "10.000", "s"), ("95th percentile JCT", "99.500", "s"),
    ("makespan", "1234.500", "s"), ("GPU utilisation", "45.7", "%"), ("events", "12,345", ""),
    ("wall time of the engine", "0.250", "s"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ({}, []),
        ({"unfinished_jobs": 1100}, [("finished jobs", "100", ""), ("unfinished jobs", "1,100", "")]),
        ({"restarts": 2000}, [("restarts", "2,000", "")]),
        (
            {"restarts": 1, "unfinished_jobs": 1},
            [("finished jobs", "1,199", ""), ("unfinished jobs", "1", ""), ("restarts", "1", "")],
        ),
    ],
)
def test_a_row_a_metric_and_what_was_cut_off_or_begun_again(changed: dict[str, Any], more: list[Any]) -> None:
    assert simulate._rows(SUMMARY | changed, {}) == LINES[:5] + more + LINES[5:]


@pytest.mark.parametrize(
    ("label", "count", "row"),
    [
        ("Moves of jobs", 1234, ("moves of jobs", "1,234", "")),
        ("State moved (GB)", 1_234_567_890_123, ("state moved", "1,234.568", "GB")),
    ],
)
def test_a_count_of_bytes_is_told_in_gb(label: str, count: float, row: tuple[str, str, str]) -> None:
    assert simulate._count(label, count) == row


def test_draws_are_told_with_their_interval() -> None:
    assert simulate._draw_rows({}) == []
    draws = {
        "draws": 5, "draws_average_jct_s": 12.0, "draws_average_jct_low_s": 11.25, "draws_average_jct_high_s": 13.0,
        "draws_run_deviation": 0.0123, "draws_job_deviation": 0.5,
    }  # fmt: skip
    assert simulate._draw_rows(draws) == [
        ("average JCT of 5 draws", "12.000", "s [11.250, 13.000]"),
        ("one run deviates by", "1.23", "%"),
        ("a job deviates by", "50.00", "%"),
    ]


@pytest.mark.parametrize(
    ("left_out", "later", "title"),
    [
        (0, 0, "3 jobs on 8 GPUs"),
        (2, 0, "3 jobs on 8 GPUs, 2 not counted (warm-up, or the end of a stream)"),
        (2, 1, "3 jobs on 8 GPUs, 2 not counted (warm-up, or the end of a stream), 1 not counted (arrive later)"),
    ],
)
def test_a_table_is_as_wide_as_its_longest_cells(
    monkeypatch: pytest.MonkeyPatch, left_out: int, later: int, title: str
) -> None:
    monkeypatch.setattr(simulate, "_remarks", lambda result: ["A remark."])
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: False))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    result: Any = SimpleNamespace(
        workload=[1, 2, 3], cluster=SimpleNamespace(num_gpus=8), num_left_out=left_out, num_future=later,
        summary=lambda: SUMMARY,
    )  # fmt: skip
    text = simulate._metrics_table(result, {}, "Policies: x.")
    assert text.splitlines() == [
        title,
        " average JCT                12.346  s",
        " median JCT                 10.000  s",
        " 95th percentile JCT        99.500  s",
        " makespan                 1234.500  s",
        " GPU utilisation              45.7  %",
        " events                     12,345",
        " wall time of the engine     0.250  s",
        "Policies: x.",
        "A remark.",
    ]
    assert text.endswith("\n")
    for is_terminal, color in ((True, ""), (False, "1")):
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda is_terminal=is_terminal: is_terminal))
        monkeypatch.setenv("FORCE_COLOR", color)
        assert simulate._metrics_table(result, {}, "x").startswith(f"\x1b[1m{title}\x1b[0m\n")


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(-1, ""), (0, "0.000000000"), (1, "0.000000001"), (12_345_678_901, "12.345678901"),
     (2**63 - 1, "9223372036.854775807")],
)  # fmt: skip
def test_times_are_told_to_the_nanosecond(time_ns: int, text: str) -> None:
    assert simulate._exact_s(time_ns) == text


@pytest.mark.parametrize(
    ("timeline", "text", "window"),
    [(None, None, False), (Path("t.json"), None, True), (Path("t.json"), "1.5:3", (1.5, 3.0)),
     (Path("t.json"), "0:1", (0.0, 1.0))],
)  # fmt: skip
def test_a_timeline_is_of_all_or_of_a_window(timeline: Path | None, text: str | None, window: Any) -> None:
    assert simulate._window(timeline, text) == window


@pytest.mark.parametrize(
    ("timeline", "text", "said"),
    [
        (None, "1:2", "there is no timeline; expected --timeline FILE.json as well"),
        (Path("t"), "1", "is no window; expected FROM:TO, such as 100:160 (s)"),
        (Path("t"), "1:2:3", "is no window; expected FROM:TO, such as 100:160 (s)"),
        (Path("t"), "2:2", "is empty; expected 0 <= FROM < TO (s)"),
        (Path("t"), "-1:2", "is empty; expected 0 <= FROM < TO (s)"),
        (Path("t"), "nan:2", "is empty; expected 0 <= FROM < TO (s)"),
    ],
)
def test_a_window_that_is_none_is_refused(timeline: Path | None, text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate._window(timeline, text)
    assert str(refused.value) == f"--timeline-window {text}: {said}"


def test_a_file_is_not_written_over_another(tmp_path: Path) -> None:
    jobs, out = tmp_path / "jobs.csv", tmp_path / "out.csv"
    jobs.write_text("")
    simulate._refuse_outputs(str(jobs), {"--jobs-out": out, "--run-out": None, "--timeline": tmp_path / "t.json"})
    simulate._refuse_outputs(str(jobs), {"--jobs-out": Path(os.devnull), "--run-out": Path(os.devnull)})
    for outputs, said in (
        ({"--jobs-out": jobs}, f"--jobs-out {jobs}: is the same file as JOBS; expected another"),
        ({"--jobs-out": out, "--run-out": out}, f"--run-out {out}: is the same file as --jobs-out; expected another"),
    ):
        with pytest.raises(InputError) as refused:
            simulate._refuse_outputs(str(jobs), outputs)  # type: ignore[arg-type]
        assert str(refused.value) == said


def test_a_runs_file_holds_its_workload_unless_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("12345")
    monkeypatch.setattr(simulate, "MOST_BYTES", 5)
    assert simulate._kept(jobs) == jobs
    monkeypatch.setattr(simulate, "MOST_BYTES", 4)
    assert simulate._kept(jobs) is None
    assert simulate._kept(tmp_path) is None


# ---- Imports


@pytest.mark.parametrize(
    ("given", "columns"),
    [([], {}), (["a=b", " c = d e "], {"a": "b", "c": "d e"}), (["a=b=c"], {"a": "b=c"})],
)
def test_columns_are_given_by_name(given: list[str], columns: dict[str, str]) -> None:
    assert imports._columns(given) == columns


@pytest.mark.parametrize("given", [["a"], ["=b"], ["a="], ["a=b", "a=c"], [" =b"]])
def test_a_column_without_a_name_or_given_again_is_refused(given: list[str]) -> None:
    said = f"--column {given[-1]}: names no column, or one again; expected such as arrival_s=SubmitTime"
    with pytest.raises(InputError) as refused:
        imports._columns(given)
    assert str(refused.value) == said


REPORT = {
    "format": "philly", "rows": 12_345, "files": ["a", "b"], "refused": {}, "left_out": {}, "notes": {}, "jobs": 0,
}  # fmt: skip
RULED = {
    "jobs": 2000, "models": {"resnet": 1500, "vgg": 500}, "models_drawn": 1999, "span_s": 172_800.0,
    "gpu_hours": 4321.09, "rule": {"seed": 3, "gpus_per_server": 4, "contention": "linear", "scale": 0.5},
    "alone_less_duration": {"jobs": 1900, "largest_s": 1.23456, "off_by_more_than_1_percent": 1001},
}  # fmt: skip
RULE = [
    "models: 1,999 of 2,000 drawn with seed 3 (resnet 1,500, vgg 500)",
    "iterations: duration / time of one alone, on servers of 4 GPUs under linear, scale 0.5",
    "time alone differs from the traced duration by at most 1.23 s, by more than 1% for 1,001 jobs",
    "100 jobs have no traced duration: iterations and their time follow from what the trace tells",
    "arrivals over 172,800 s (2.0 days), 4,321.1 GPU hours alone",
]


def _refused(*rows: tuple[str, int, str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["file", "line", "reason", "found"])


@pytest.mark.parametrize(
    ("report", "refused", "rejected", "lines"),
    [
        ({}, _refused(), None, ["philly: read 12,345 rows of 2 file(s), refused 0"]),
        (
            {"left_out": {"of no GPU": 1500}, "notes": {"had\nnone": 2}}, _refused(), Path("r.csv"),
            ["philly: read 12,345 rows of 2 file(s), refused 0", "  left out 1,500: of no GPU",
             "  of the jobs read, 2: had\\nnone"],
        ),
        (
            {"refused": {"no time": 4, "no GPU": 1}},
            _refused(*(("a", line, "no time", f"x{line}") for line in range(4)), ("b", 9, "no GPU", "y\nz")), None,
            ["philly: read 12,345 rows of 2 file(s), refused 5", "  refused 4: no time", "    a, line 0: x0",
             "    a, line 1: x1", "  refused 1: no GPU", "    b, line 9: y\\nz",
             "  --rejected FILE.csv lists every refused row"],
        ),
        (
            {"refused": {"no GPU": 1}}, _refused(("b", 9, "no GPU", "y")), Path("r.csv"),
            ["philly: read 12,345 rows of 2 file(s), refused 1", "  refused 1: no GPU", "    b, line 9: y"],
        ),
        (RULED, _refused(), None, ["philly: read 12,345 rows of 2 file(s), refused 0", *RULE]),
        (
            RULED | {"alone_less_duration": {"jobs": 0}}, _refused(), None,
            ["philly: read 12,345 rows of 2 file(s), refused 0", *RULE[:2], RULE[3].replace("100", "2,000"), RULE[4]],
        ),
        (
            RULED | {"jobs": 1900}, _refused(), None,
            ["philly: read 12,345 rows of 2 file(s), refused 0", RULE[0].replace("2,000", "1,900"), *RULE[1:3],
             RULE[4]],
        ),
    ],
)  # fmt: skip
def test_an_account_of_an_import(
    monkeypatch: pytest.MonkeyPatch, report: Any, refused: pd.DataFrame, rejected: Path | None, lines: list[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(imports, "notice", told.append)
    trace: Any = SimpleNamespace(report=REPORT | report, refused=refused)
    imports._tell(trace, rejected)
    assert told == lines


def test_files_of_a_scheduler_that_is_not_known_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"^no scheduler is named 'slrm'\. Did you mean 'slurm'\?$"):
        imports._read("slrm", Path())


def test_a_file_that_cannot_be_written_is_refused_before_a_trace_is_read(tmp_path: Path) -> None:
    out = tmp_path / "missing" / "causes.csv"
    with pytest.raises(InputError, match=r"^--out .*missing"):
        imports.failures("philly", [tmp_path / "none"], out=out, options=None)  # type: ignore[arg-type]
