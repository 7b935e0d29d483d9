"""What ``ddlsched simulate`` writes and prints of a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlsched.cli.output import notice, without_nan
from ddlsched.io.files import replacing
from ddlsched.io.reading import MOST_BYTES

if TYPE_CHECKING:
    from ddlsched.comparisons.sweeps.run import Run
    from ddlsched.results.result import Result

__all__ = ["metrics_json", "metrics_table", "remarks", "setting", "write_files", "write_run"]


_POLICIES = ("placement", "order", "communication", "allocation", "path", "interference")


def metrics_json(result: Result) -> str:
    """Return the metrics as JSON, which has no NaN: null where no counted job finished."""
    return json.dumps(without_nan(result.summary() | _used(result)), indent=2) + "\n"


def _used(result: Result) -> dict[str, float]:
    """Return how often doors were used, of those that were."""
    from ddlsched.results.door_counts import door_counts

    return {name: count for name, count in door_counts(result).items() if count}


def write_files(result: Result, jobs_out: Path | None, timeline: Path | None) -> None:
    """Write the times of the jobs and the timeline where they are asked for."""
    if jobs_out is not None:
        with replacing(jobs_out, "--jobs-out") as file:
            _write_jobs(result, file)
        notice(f"wrote the times of {len(result.workload)} jobs to {jobs_out}")
    if timeline is not None:
        from ddlsched.results.timeline import write_timeline

        write_timeline(result, timeline)
        notice(f"wrote the timeline to {timeline}")


def write_run(result: Result, run: Run, path: Path) -> None:
    """Write the file of a run, as a sweep keeps it."""
    from ddlsched.comparisons.sweeps.fingerprint import describe
    from ddlsched.comparisons.sweeps.stored_runs import run_bytes

    with replacing(path, "--run-out") as file:
        file.write_bytes(run_bytes(result, describe(run.inputs, set()), {}, _kept(Path(run.workload))))
    notice(f"wrote the run to {path}")


def _kept(workload: Path) -> Path | None:
    """Return the workload's file if the run's file can hold it: no pipe, and not too large to be read back."""
    return workload if workload.is_file() and workload.stat().st_size <= MOST_BYTES else None


def _write_jobs(result: Result, path: Path) -> None:
    import numpy as np

    records = result.finished.state.jobs
    jct_ns = np.where(records.finish_ns >= 0, records.finish_ns - records.arrival_ns, -1)
    times_ns = (records.start_ns, records.finish_ns, jct_ns)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["job_id", "start_s", "finish_s", "jct_s"])
        for job, *times in zip(result.workload, *(column.tolist() for column in times_ns), strict=True):
            writer.writerow([job.job_id, *map(_exact_s, times)])


def _exact_s(time_ns: int) -> str:
    if time_ns < 0:
        return ""
    # A float of seconds would lose nanoseconds beyond 104 days.
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"


def setting(options: Mapping[str, Any]) -> str:
    """Return by which policies and over which network jobs ran, of the arguments of ``ddlsched.simulate``."""
    from ddlsched.plugins.names import resolve_bundle

    doors = resolve_bundle(options["scheduler"])
    further = {name: options[name] for name in _POLICIES if options.get(name) is not None}
    policies = " + ".join((doors | further).values())
    return f"Policies: {policies}. Network: {options['cluster'].topology}, {options['contention']} contention."


def metrics_table(result: Result, ran: str) -> str:
    """Return the metrics for a reader, plain text where stdout is no terminal; ``ran`` is a line under them."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    title = f"{len(result.workload)} jobs on {result.cluster.num_gpus} GPUs"
    if left_out := int((~result.jobs["counted"]).sum()):
        title += f", {left_out} not counted (warm-up, or the end of a stream)"
    if later := int((result.jobs["state"] == "future").sum()):
        title += f", {later} not counted (arrive later)"
    table = Table(box=None, show_header=False, title=title, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for row in _rows(result.summary(), _used(result)):
        table.add_row(*row)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "".join(f"{line}\n" for line in [*lines, ran, *remarks(result)])


def remarks(result: Result) -> list[str]:
    """Return what is to be known of the figures, a line each."""
    from ddlsched.network.card_remark import card_remark

    most, remark = result.most_jobs_on_a_gpu, card_remark(result.contention, result.finished.network)
    shared = f"GPUs were shared: up to {most} jobs at a time on one (--exclusive: one job a GPU)."
    return [*([shared] if most > 1 else []), *([remark] if remark else [])]


def _rows(summary: dict[str, float], used: dict[str, float]) -> list[tuple[str, str, str]]:
    from ddlsched.results.door_counts import COUNTS

    unfinished, restarts = summary["unfinished_jobs"], summary["restarts"]
    cut = [("finished jobs", f"{summary['jobs'] - unfinished:,}", ""), ("unfinished jobs", f"{unfinished:,}", "")]
    apart = (cut if unfinished else []) + ([("restarts", f"{restarts:,}", "")] if restarts else [])
    return [
        ("average JCT", f"{summary['average_jct_s']:.3f}", "s"),
        ("median JCT", f"{summary['median_jct_s']:.3f}", "s"),
        ("95th percentile JCT", f"{summary['p95_jct_s']:.3f}", "s"),
        ("makespan", f"{summary['makespan_s']:.3f}", "s"),
        ("GPU utilisation", f"{100 * summary['gpu_utilisation']:.1f}", "%"),
        *apart,
        *(_count(COUNTS[name], count) for name, count in used.items()),
        ("events", f"{summary['events']:,}", ""),
        ("wall time of the engine", f"{summary['engine_s']:.3f}", "s"),
    ]


def _count(label: str, count: float) -> tuple[str, str, str]:
    """Return the row of how often a door was used; a label of bytes ends with their unit."""
    name = label.removesuffix(" (GB)")
    shown = name[:1].lower() + name[1:]
    return (shown, f"{count / 1e9:,.3f}", "GB") if label.endswith("(GB)") else (shown, f"{count:,}", "")
