"""Traces in JSON: workloads of Batsim, Microsoft's Philly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.reading import MOST_BYTES
from ddlsched.io.tables import first_line
from ddlsched.workload.traces.trace_files import json_elements, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    moment_s,
    number_of,
    optional_text,
    positive_s,
    text_of,
)

__all__ = ["batsim", "philly"]


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


def philly(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read ``cluster_job_log``: a job's duration is the sum over its attempts, its GPUs the most of any attempt.

    References
    ----------
    Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
    """
    return read_rows(json_elements(source), _job_of_log)


def _job_of_log(entry: Any) -> TracedJob:
    attempts = entry.get("attempts") if isinstance(entry, dict) else None
    if not isinstance(attempts, list) or not all(_is_attempt(attempt) for attempt in attempts):
        raise BadRowError("not a job", "is no object with a list of attempts, each with a list of detail")
    cells = {name: value for name, value in entry.items() if isinstance(value, str)}
    if not attempts:
        raise BadRowError("never started", "has no attempts; expected at least one")
    duration_s = sum(_attempt_s(attempt) for attempt in attempts)
    gpus = max(sum(len(server["gpus"]) for server in attempt["detail"]) for attempt in attempts)
    if gpus == 0:
        raise BadRowError("0 GPUs", "no attempt names a GPU; expected at least 1")
    if duration_s == 0:
        raise BadRowError("duration is 0", "its attempts last 0 s in all; expected more")
    return TracedJob(
        job_id=text_of(cells, "jobid"),
        arrival_s=moment_s(cells, "submitted_time"),
        num_gpus=gpus,
        duration_s=duration_s,
        user=optional_text(cells, "user"),
        queue=optional_text(cells, "vc"),
        note=f"state {text_of(cells, 'status')}",
    )


def _is_attempt(attempt: Any) -> bool:
    detail = attempt.get("detail") if isinstance(attempt, dict) else None
    return isinstance(detail, list) and all(
        isinstance(server, dict) and isinstance(server.get("gpus"), list) for server in detail
    )


def _attempt_s(attempt: dict[str, Any]) -> float:
    cells = {name: attempt[name] for name in ("start_time", "end_time") if isinstance(attempt.get(name), str)}
    start_s = moment_s(cells, "start_time", missing="an attempt has no start")
    end_s = moment_s(cells, "end_time", missing="an attempt has no end")
    if end_s < start_s:
        raise BadRowError("negative duration", f"an attempt ends {start_s - end_s:g} s before it starts")
    return end_s - start_s
