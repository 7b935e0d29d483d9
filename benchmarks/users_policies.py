"""What a user's class costs: compiled, against the built-in one of which it is a twin, and asked in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import twins
from benchmark_tables import Table, say

import ddlsched
from ddlsched.testing import python_form

__all__ = ["tables"]

SCALE = 0.1
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "order srsf": ({"order": "srsf"}, {"order": twins.ShorterFirst()}),
    "communication adadual": ({"communication": "adadual"}, {"communication": twins.TwoIfMuchSmaller()}),
    "communication preemptive:by=time": (
        {"communication": "preemptive:by=time"},
        {"communication": twins.OneAtATime()},
    ),
    "contention 10gbe": ({"contention": "10gbe"}, {"contention": twins.Linear()}),
    "SmallerFirst against bounded-overlap:limit=2": (
        {"communication": "bounded-overlap:limit=2"},
        {"communication": twins.SmallerFirst()},
    ),
}
RUNS = 7


def tables() -> Iterator[Table]:
    """Measure and yield the table."""
    rows = [row(name, *pair) for name, pair in PAIRS.items()]
    title = f"(d) a user's class: microsoft_160(seed=1, scale={SCALE}) under ada-srsf, least of {RUNS} runs in turn"
    columns = ("", "built in, s", "compiled class, s", "ratio", "in Python, s", "ratio", "same finish times")
    notes = [
        "SmallerFirst decides differently and promises nothing, so that its times need not be those of bounded overlap."
    ]
    yield Table(title=title, columns=columns, rows=rows, notes=notes)


def row(name: str, built_in: dict[str, Any], users: dict[str, Any]) -> list[str | float]:
    say(name)
    ((kind, policy),) = users.items()
    runs = [(run(built_in), run(users)) for _ in range(RUNS)]
    built_in_s, users_s = (min(result.finished.engine_s for result in results) for results in zip(*runs, strict=True))
    python = run({kind: python_form(policy)})
    python_s = python.finished.engine_s
    assert finishes(python) == finishes(runs[0][1]), "both forms agree"
    same = "yes" if finishes(runs[0][0]) == finishes(runs[0][1]) else "no"
    return [name, built_in_s, users_s, users_s / built_in_s, python_s, python_s / built_in_s, same]


def run(plugins: dict[str, Any]) -> ddlsched.Result:
    return ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=SCALE), **plugins)


def finishes(result: ddlsched.Result) -> list[int]:
    return result.finished.state.jobs.finish_ns.tolist()
