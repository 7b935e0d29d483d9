"""The Standard Workload Format of the Parallel Workloads Archive."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddlsched.workload.traces.trace_files import numbered_lines, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    number_of,
    optional_text,
    positive_s,
    text_of,
)

__all__ = ["swf"]

_FIELDS = 18
_NAMES = {
    0: "job number",
    1: "submit time",
    3: "run time",
    4: "processors",
    7: "requested processors",
    8: "requested time",
    10: "status",
    11: "user",
}
_STATES = {"0": "failed", "1": "completed", "5": "cancelled", "-1": "unknown"}
_PARTS = {"2", "3", "4"}


def swf(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read the 18 fields of a line; a processor counts as a GPU, lines that begin with ``;`` are comments.

    Processors are those allocated, or those requested where the log does not tell; the time requested is the job's
    limit.

    References
    ----------
    Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999.
    """
    rows = ((number, line) for number, line in numbered_lines(source) if not line.lstrip().startswith(";"))
    return read_rows(rows, _job_of_line)


def _job_of_line(line: str) -> TracedJob:
    fields = line.split()
    if len(fields) != _FIELDS:
        raise BadRowError("wrong number of values", f"has {len(fields)} values; expected {_FIELDS}")
    # -1 stands for what the log does not tell.
    cells = {name: "" if fields[place] == "-1" else fields[place] for place, name in _NAMES.items()}
    status = fields[10]
    if status in _PARTS:
        raise BadRowError("part of a job", f"status is {status}; expected a line of the whole job")
    processors = "processors" if cells["processors"] not in ("", "0") else "requested processors"
    return TracedJob(
        job_id=text_of(cells, "job number"),
        arrival_s=number_of(cells, "submit time"),
        num_gpus=gpus_of(cells, processors),
        duration_s=positive_s(cells, "run time"),
        time_limit_s=positive_s(cells, "requested time") if cells["requested time"] not in ("", "0") else math.nan,
        user=optional_text(cells, "user"),
        note=f"state {_STATES.get(status, status)}",
    )
