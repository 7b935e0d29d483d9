"""``ddlsched live``: real training processes on nodes that come and go."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlsched.real.live.launchers import Launcher
    from ddlsched.real.live.manager import LiveEvent, Sharer
    from ddlsched.real.live.scavengers import Scavenger
    from ddlsched.real.live.store import StoredJob

__all__ = ["live"]


def live(
    jobs: Annotated[
        Path,
        typer.Argument(
            metavar="JOBS",
            help="CSV: job_id, program (mlp, count, a script.py), steps, max_nodes, and perhaps samples_per_s.",
            readable=False,
        ),
    ],
    folder: Annotated[Path, typer.Option("--state", metavar="DIR", help="Where jobs and what they commit are kept.")],
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Idle fragments to play back: node, idle_from_s, idle_to_s.")
    ] = None,
    speed: Annotated[float, typer.Option(help="Seconds of the trace that pass in one.")] = 1.0,
    slurm: Annotated[
        str | None,
        typer.Option(
            metavar="PARTITION",
            help="Start processes on Slurm's idle nodes instead, as jobs of this partition, which others preempt.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="With --slurm: by which name nodes reach this host.", show_default="its own"),
    ] = None,
    commits: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Commit there, in any place that fsspec knows and all nodes see.",
            show_default="in DIR",
        ),
    ] = None,
    allocation: Annotated[
        str, typer.Option(help="Who shares the nodes out, by counts as malleable does.", metavar="NAME")
    ] = "malleable:lookahead_s=120",
    hold_s: Annotated[float, typer.Option(help="How long the profiling advisor holds a size, seconds.")] = 20.0,
    most_jobs: Annotated[int, typer.Option(help="Jobs that run at a time.")] = 10,
    hang_s: Annotated[float, typer.Option(help="End processes of which nothing is heard for so many seconds.")] = 300.0,
    until_s: Annotated[float, typer.Option(help="Stop after so many seconds; unfinished jobs stay queued.")] = 1e9,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Begin jobs again that were given up, from what they have committed.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option(metavar="STEM", help="Draw the timeline into STEM.png and STEM.svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Train jobs as processes, one a node, on this machine or Slurm's nodes; a node that leaves takes its process.

    Started again with the same DIR it goes on where it was, whatever ended it. Programs: your script calls
    ddlsched.real.live.training.train and needs PyTorch (the extra 'live'), as does mlp; count only counts. A job with
    samples_per_s (at 1, 2, ... nodes, spaces between) is believed to scale so; others are measured while they run.
    Timeline: DIR/timeline.csv.
    """
    from ddlsched.cluster.idle_trace import read_fragments
    from ddlsched.real.live.jobs_file import read_jobs
    from ddlsched.real.live.launchers import LocalLauncher, SlurmLauncher
    from ddlsched.real.live.manager import LiveManager
    from ddlsched.real.live.scavengers import SeldomAsked, SlurmScavenger, TraceScavenger
    from ddlsched.real.state_folder import made_folder, open_in

    if (trace is None) == (slurm is None):
        raise InputError("live: expected either --trace FILE or --slurm PARTITION")
    if listen is not None and slurm is None:
        raise InputError("--listen: processes are on this machine; expected --slurm PARTITION as well")
    wanted = read_jobs(jobs)
    scavenger: Scavenger
    launcher: Launcher = LocalLauncher()
    if slurm is not None:
        launcher = on_nodes = SlurmLauncher.for_folder(slurm, folder)
        scavenger = SeldomAsked(SlurmScavenger(partition=slurm, placeholder=on_nodes.name), notice)
        listen = listen or socket.gethostname()
    if trace is not None:
        scavenger = TraceScavenger(trace=read_fragments(trace), speed=speed)
    sharer = _sharer(allocation, hold_s, wanted)
    folder = made_folder(folder, "jobs' state")
    with open_in(folder, "timeline.csv", "ab", buffering=0) as timeline:

        def note(row: str) -> None:
            try:
                timeline.write(row.encode() + b"\n")
            except OSError as error:
                why = f"cannot be written ({error.strerror}); expected space for a row an event"
                raise InputError(f"{folder / 'timeline.csv'}: {why}") from None

        def watch(event: LiveEvent) -> None:
            note(f"{event.time_s:.3f},{event.what},{event.job},{event.step},{event.nodes},{event.loss}")
            if as_json:
                emit(json.dumps(event.__dict__) + "\n")

        if timeline.tell() == 0:
            note("time_s,what,job,step,nodes,loss")
        manager = LiveManager(folder, scavenger, sharer, most_jobs, watch, hang_s, launcher, listen, commits, notice)
        if isinstance(launcher, SlurmLauncher):
            launcher.end_leftovers()
        for job in wanted:
            manager.store.submit(job.job_id, program=job.program, steps=job.steps, max_nodes=job.max_nodes)
        for job_id in manager.store.retry_failed() if retry_failed else ():
            notice(f"job {job_id!r}, which was given up, begins again")
        manager.run(until_s)
    if chart is not None:
        from ddlsched.comparisons.charts.live_timeline import live_timeline
        from ddlsched.comparisons.charts.style import save

        save(live_timeline(folder / "timeline.csv"), chart)
    _tell(folder)


def _sharer(allocation: str, hold_s: float, jobs: Sequence[StoredJob]) -> Sharer:
    from ddlsched.plugins.names import resolve
    from ddlsched.workload.malleable.profiling import JobMonitor, Profiled, ProfilingAdvisor, extrapolated

    allocator = resolve("allocation", allocation)
    if not hasattr(allocator, "counts"):
        raise InputError(f"live: allocation {allocation!r} shares no nodes out by counts; expected malleable, say")
    supplied = {}
    for job in jobs:
        if job.samples_per_s:
            rates = extrapolated(
                dict(enumerate(job.samples_per_s, start=1)), max(job.max_nodes, len(job.samples_per_s))
            )
            supplied[job.job_id] = {size: float(rates[size]) for size in range(1, job.max_nodes + 1)}
    return Profiled(allocator, ProfilingAdvisor(hold_s=hold_s), JobMonitor(supplied=supplied), (1.0, 1.0))


def _tell(folder: Path) -> None:
    from ddlsched.real.live.store import JobStore

    jobs = JobStore(folder / "jobs.sqlite").jobs()
    states = {state: sum(job.state == state for job in jobs) for state in ("finished", "failed", "queued")}
    notice(", ".join(f"{count} {state}" for state, count in states.items()) + f"; timeline: {folder / 'timeline.csv'}")
    if states["failed"]:
        raise typer.Exit(1)
