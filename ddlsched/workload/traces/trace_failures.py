"""How often jobs of a trace failed, as a table of causes for a run's failures."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.workload.traces.trace_files import sources
from ddlsched.workload.traces.trace_formats import FORMATS, reader_of
from ddlsched.workload.traces.traced import TracedJob

__all__ = ["COLUMNS", "failure_rows"]

COLUMNS = ("cause", "per", "per_1000_days", "takes", "least_gpus", "source")
_SIZES = (1, 8, 64, 512)
"""From how many GPUs on jobs are counted together."""
_NODE, _JOB = "NODE_FAIL", ("FAILED", "FAIL")
_DAY_S = 86_400.0


def failure_rows(format_name: str, files: Sequence[str | Path]) -> list[tuple[str, str, float, str, int, str]]:
    """Return the rows of a table of causes, in the order of :data:`COLUMNS`.

    Jobs that lost a node (``NODE_FAIL``) count per GPU and day for which jobs held one, others that failed per job and
    day, from 1, 8, 64 and 512 GPUs on: what larger jobs have beyond smaller ones is a cause of its own. A job counts
    until it failed, where its trace tells that.

    Raises
    ------
    InputError
        A file that cannot be read or is not of the format, or no job failed.
    """
    reader = reader_of(format_name)
    opened = (source for file in files for source in sources(Path(file), FORMATS[format_name].members))
    jobs = (row for source in opened for row in reader(source) if isinstance(row, TracedJob))
    nodes, gpu_days, failed, job_days = _counted(jobs)
    said = f"{format_name}: {nodes} jobs lost a node and {sum(failed.values())} failed in {gpu_days:.0f} GPU-days"
    rows = [("node", "gpu", 1000 * nodes / gpu_days, "server", 1, said)] if nodes else []
    before = 0.0
    for place, size in enumerate(_SIZES):
        rate = 1000 * failed[place] / job_days[place] if job_days[place] else 0.0
        if rate > before:
            rows.append((f"failed-from-{size}-gpus", "job", rate - before, "job", size, said))
            before = rate
    if not rows:
        raise InputError(f"{said}; expected jobs whose state is {_NODE} or one of {', '.join(_JOB)}")
    return rows


def _counted(jobs: Iterable[TracedJob]) -> tuple[int, float, dict[int, int], dict[int, float]]:
    """Return how many lost a node, GPU-days, and by size how many others failed, and job-days."""
    nodes, gpu_days = 0, 0.0
    failed: dict[int, int] = defaultdict(int)
    job_days: dict[int, float] = defaultdict(float)
    for job in jobs:
        state, place = (job.note or "").removeprefix("state ").upper(), bisect_right(_SIZES, job.num_gpus) - 1
        days = (job.failed_after_s if job.failed_after_s > 0 else job.duration_s) / _DAY_S
        if days > 0:  # a trace may not tell
            gpu_days += days * job.num_gpus
            job_days[place] += days
            nodes += state == _NODE
            failed[place] += state in _JOB
    return nodes, gpu_days, failed, job_days
