"""The golden cases: small workloads with the exact start and finish of every job, from an independent simulator."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "golden"


class Golden(NamedTuple):
    """A workload on a cluster, under SRSF, and what comes out for a placement and a communication policy."""

    workload: Path
    servers: int
    latency_s: float
    times_s: dict[str, tuple[str, str]]
    """Start and finish of each job, with nine decimals."""


@cache
def golden_cases() -> dict[tuple[str, str, str], Golden]:
    """Return all cases by workload, placement and communication."""
    cases: dict[tuple[str, str, str], Golden] = {}
    with (FOLDER / "expected.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["workload"], row["placement"], row["communication"])
            new = Golden(FOLDER / f"{row['workload']}.csv", int(row["servers"]), float(row["latency_s"]), {})
            case = cases.setdefault(key, new)
            assert case[:3] == new[:3]
            case.times_s[row["job_id"]] = (row["start_s"], row["finish_s"])
    return cases
