"""Workloads of all generators, with their parameters away from their defaults, as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kept_numbers import assert_kept, digest, short

from ddlsched.workload.workload_files import workload_of

GENERATORS: dict[str, dict[str, str]] = {
    "elastic-mix": {
        "": "hours=1",
        "category": "compute-bound",
        "arrivals": "low",
        "gpus": "80",
        "work_hours": "0.3",
        "most_gpus": "6",
    },
    "microsoft-160": {"": "scale=0.5", "scale": "0.01"},
    "monkeytree-mix": {"": "jobs=60", "load": "0.5", "gpus": "512", "scale": "0.5", "most_gpus": "32"},
    "stream": {
        "": "num_jobs=60,arrivals=diurnal",
        "load": "0.9",
        "gpus": "128",
        "gpus_per_server": "8",
        "per_byte_s": "1e-8",
        "arrivals": "poisson",
        "day_s": "900",
        "swing": "0.3",
        "scale": "0.1",
    },
}


def cases() -> Iterator[tuple[str, str]]:
    for name, values in GENERATORS.items():
        for parameter, value in values.items():
            usual = dict(part.split("=") for part in values[""].split(","))
            given = usual | {parameter: value} if parameter else usual
            yield f"{name} {parameter}".strip(), f"{name}:{','.join(map('='.join, given.items()))}"


@pytest.mark.long
def test_generated_workloads_are_what_they_were() -> None:
    found: dict[str, str] = {}
    for case, spec in cases():
        jobs = workload_of(spec, 5).jobs
        told = (re.sub(r"\d+\.\d+(e[+-]\d+)?", lambda number: short(number[0]), repr(job)) for job in jobs)
        found[case] = f"{len(jobs)} {digest(told)}"
        assert case in GENERATORS or found[case] != found[case.split()[0]], case
    assert_kept("workloads", found)
