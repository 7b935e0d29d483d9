"""The Philly trace of Microsoft: the public log of jobs (JSON)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlsched.workload.traces.trace_files import json_elements, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Refusal,
    TracedJob,
    TraceSource,
    moment_s,
    optional_text,
    text_of,
)

__all__ = ["philly"]


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
