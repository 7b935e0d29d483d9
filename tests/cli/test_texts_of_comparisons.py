"""What ``what-if``, ``tune`` and ``compare`` say at their end, word by word, from tables made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from ddlsched.cli import compare_command, tune_command, what_if_command


def _tenant(queue: str, jobs: int, change: float, **others: Any) -> dict[str, Any]:
    numbers = {
        "wait_before_s": 12_345.4,
        "wait_after_s": 5.0,
        "jct_before_s": 1000.0,
        "jct_after_s": 1000.0 * (1 + change),
    }
    stops = {"preemptions_before": 3.0, "preemptions_after": 0.0}
    return {"queue": queue, "jobs": jobs, **numbers, **stops, "jct_change": change} | others


def _what_if(tenants: list[dict[str, Any]], gains: list[tuple[str, float]]) -> Any:
    jobs = pd.DataFrame(
        [{"job_id": job, "queue": "a", "gain_s": gain} for job, gain in gains], columns=["job_id", "queue", "gain_s"]
    )
    table = pd.DataFrame(tenants).set_index("queue")
    return SimpleNamespace(tenants=lambda: table, jobs=lambda: jobs)


def test_a_change_is_told_by_tenant_and_by_who_gains_and_loses_most() -> None:
    tenants = [
        _tenant("research", 1200, -0.05), _tenant("b", 0, 0.0), _tenant("c", 1, 0.0011), _tenant("d", 2, 0.001),
        _tenant("all", 1203, 0.0),
    ]  # fmt: skip
    text = what_if_command._text(_what_if(tenants, [("x", 1234.5), ("y", 0.0), ("z", -60.0)]), ["servers=+4", "a=b"])
    assert text.splitlines() == [
        "with servers=+4, a=b:",
        "",
        "tenant       jobs            mean wait (s)             mean JCT (s)    change  preempted",
        "research    1,200      12,345 ->         5       1,000 ->       950    -5.0 %  3 -> 0",
        "b               0  none that counts finished in both runs",
        "c               1      12,345 ->         5       1,000 ->     1,001    +0.1 %  3 -> 0",
        "d               2      12,345 ->         5       1,000 ->     1,001    +0.1 %  3 -> 0",
        "all         1,203      12,345 ->         5       1,000 ->     1,000    +0.0 %  3 -> 0",
        "",
        "gain: research",
        "lose: c",
        "  job x of a gains 1,234 s",
        "  job z of a loses 60 s",
    ]
    assert text.endswith("\n")


def test_draws_give_intervals_and_a_verdict() -> None:
    ends = {"jct_change_low": -0.2, "jct_change_high": 0.105}
    tenants = [
        _tenant("a", 1, -0.1, **ends, verdict="better"), _tenant("b", 1, 0.1, **ends, verdict="undecided"),
        _tenant("c", 1, -0.1, **ends, verdict="undecided"), _tenant("all", 3, 0.0, **ends, verdict="better"),
    ]  # fmt: skip
    lines = what_if_command._text(_what_if(tenants, []), ["x"]).splitlines()
    assert lines[2].endswith("    change      95 % interval  preempted")
    assert lines[3].endswith("   -10.0 %  [ -20.0,  +10.5] %  3 -> 0")
    assert lines[7:] == ["", "gain: a", "lose: nobody", "undecided: b, c"]


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1, 1), (3, 3), (9, what_if_command._SHOWN_JOBS)])
def test_only_some_jobs_are_named(count: int, shown: int) -> None:
    gains = [(f"g{n}", 100.0 - n) for n in range(count)] + [(f"l{n}", n - 100.0) for n in reversed(range(count))]
    lines = what_if_command._most(_what_if([_tenant("a", 1, 0.0)], gains).jobs())
    named = [line.split()[1] for line in lines]
    assert named[: 2 * shown] == [f"g{n}" for n in range(shown)] + [f"l{n}" for n in range(shown)]


@pytest.mark.parametrize(("interval", "end"), [(None, ""), ((-0.0512, 0.01), " [-5.1, +1.0]")])
def test_what_was_tuned_is_told_as_flags_with_both_changes(interval: Any, end: str) -> None:
    found: Any = SimpleNamespace(
        policies={"order": "las:a=1", "placement": "lwf:kappa=2"}, tuning_change=-0.1234, held_out_change=0.02,
        held_out_interval=interval,
    )  # fmt: skip
    assert tune_command._text(found, "average_jct_s") == (
        "--order las:a=1 --placement lwf:kappa=2\n"
        "average_jct_s on the tuning seeds: -12.3 % against the untuned\n"
        f"average_jct_s on the held-out seeds: +2.0 %{end}\n"
    )


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (0, []),
        (1, ["1 run failed (my out/failures.csv), the first: p0, w, c, seed 0: it\\nbroke"]),
        (3, ["3 runs failed (my out/failures.csv), the first: p0, w, c, seed 0: it\\nbroke"]),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_comparison_ends_with_where_it_is_and_what_failed(
    monkeypatch: pytest.MonkeyPatch, failed: int, said: list[str], as_json: bool
) -> None:
    told: list[str] = []
    shown: list[str] = []
    monkeypatch.setattr(compare_command, "notice", told.append)
    monkeypatch.setattr(compare_command, "emit", shown.append)
    monkeypatch.setattr(compare_command, "comparison_text", lambda comparison: "table")
    monkeypatch.setattr(compare_command, "_json", lambda comparison: "json")
    rows = [
        {"policy": f"p{n}", "workload": "w", "cluster": "c", "seed": n, "message": "it\nbroke"} for n in range(failed)
    ]
    comparison: Any = SimpleNamespace(failures=pd.DataFrame(rows), folder=Path("my out"))
    compare_command._tell(comparison, as_json)
    assert told == said
    tables = "\nTables: my out/runs.csv, comparison.csv, classes.csv\n"
    assert shown == (["json"] if as_json else ["table", tables, "Report: ddlsched report 'my out'\n"])


def test_a_comparison_in_json_has_its_notes_and_no_nan() -> None:
    import json

    table = pd.DataFrame({"metric": ["a", "b"], "change": [0.5, float("nan")]})
    comparison: Any = SimpleNamespace(
        table=lambda: table, folder=Path("out"), baseline="x", runs=[1, 2, 3], failures=[1], notes=lambda: ["note"]
    )
    assert json.loads(compare_command._json(comparison)) == {
        "folder": "out", "baseline": "x", "runs": 3, "failures": 1, "notes": ["note"],
        "comparison": [{"metric": "a", "change": 0.5}, {"metric": "b", "change": None}],
    }  # fmt: skip
