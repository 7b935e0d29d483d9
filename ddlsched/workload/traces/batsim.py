"""Workloads of Batsim in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.reading import MOST_BYTES
from ddlsched.io.tables import first_line
from ddlsched.workload.traces.trace_files import read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    number_of,
    positive_s,
    text_of,
)

__all__ = ["batsim"]


def batsim(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read jobs whose profile is a delay; a resource counts as a GPU, and a walltime cuts a job off.

    The number of a refused job is its place in ``jobs``, from 1.

    Raises
    ------
    InputError
        The text is no JSON object with ``jobs`` and ``profiles``.
    """
    try:
        document = json.loads(_whole(source))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source.name}: is no JSON ({first_line(error)}); expected a Batsim workload") from None
    jobs, profiles = (document.get(name) if isinstance(document, dict) else None for name in ("jobs", "profiles"))
    if not isinstance(jobs, list) or not isinstance(profiles, dict):
        raise InputError(f"{source.name}: lacks jobs or profiles; expected {{'jobs': [...], 'profiles': {{...}}}}")

    def job_of(entry: Any) -> TracedJob:
        cells = _cells(entry)
        name = text_of(cells, "profile")
        return _job(cells, _delay_s(name, profiles.get(name)))

    return read_rows(enumerate(jobs, start=1), job_of)


def _whole(source: TraceSource) -> str:
    text = source.text.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise InputError(f"{source.name}: has more than {MOST_BYTES:,} characters; expected at most that many")
    return text


def _job(cells: Cells, delay_s: float) -> TracedJob:
    # A walltime that is left out, or negative, is none.
    limited = not cells.get("walltime", "-").startswith("-")
    walltime_s = positive_s(cells, "walltime") if limited else math.nan
    duration_s = min(delay_s, walltime_s) if limited else delay_s
    return TracedJob(
        job_id=text_of(cells, "id"),
        arrival_s=number_of(cells, "subtime"),
        num_gpus=gpus_of(cells, "res"),
        duration_s=duration_s,
        time_limit_s=walltime_s,
        note="cut off at its walltime" if duration_s < delay_s else None,
    )


def _delay_s(name: str, profile: Any) -> float:
    if not isinstance(profile, dict):
        raise BadRowError("unknown profile", f"profile {name!r} is not among profiles; expected one that is")
    if "delay" not in profile:
        raise BadRowError("profile without a delay", f"profile {name!r} is a {profile.get('type')!r}; expected a delay")
    return positive_s(_cells(profile), "delay")


def _cells(entry: Any) -> Mapping[str, str]:
    if not isinstance(entry, dict):
        raise BadRowError("not a job", "is no object")
    return {name: str(value) for name, value in entry.items() if isinstance(value, str | int | float)}
