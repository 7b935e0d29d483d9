"""``ddlsched live``: real training processes on nodes that come and go."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice
from ddlsched.errors import InputError
from ddlsched.options import Option
from ddlsched.plugins.names import resolve
from ddlsched.ranges import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlsched.real.live.failing import FailingNodes
    from ddlsched.real.live.manager import LiveEvent
    from ddlsched.real.live.nodes import Launcher, Scavenger
    from ddlsched.real.live.store import StoredJob
    from ddlsched.workload.profiling import ProfiledAllocator


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How jobs are trained, and on which nodes.

    Parameters
    ----------
    trace
        Idle fragments to play back: node, idle_from_s, idle_to_s.
    nodes
        So many nodes of this machine instead, always there but for --failures.
    failures
        With --nodes: nodes fail as simulated servers of one GPU do; a table as for simulate.
    seed
        Of the failures: as in a simulated run of that seed.
    recovery
        With --failures: how a job goes on, as for simulate.
    health
        With --failures: which nodes are replaced, as for simulate.
    checkpoint
        When jobs commit, as for simulate.
    speed
        Seconds of the trace, or of the failures, that pass in one.
    slurm
        Start processes on Slurm's idle nodes instead, as jobs of this partition, which others preempt.
    listen
        With --slurm: by which name nodes reach this host.
    commits
        Commit there, in any place that fsspec knows and all nodes see.
    allocation
        Who shares the nodes out, by counts as malleable does.
    hold_s
        How long the profiling advisor holds a size, seconds.
    most_jobs
        Jobs that run at a time.
    hang_s
        End processes of which nothing is heard for so many seconds.
    until_s
        Stop after so many seconds, or when the trace ends; unfinished jobs stay queued.
    retry_failed
        Begin jobs again that were given up, from what they have committed.
    chart
        Draw the timeline into STEM.png and STEM.svg.
    as_json
        Print every event as a line of JSON.
    """

    trace: Path | None = option(None, metavar="FILE")
    nodes: int | None = option(None, metavar="N")
    failures: str | None = option(None, metavar="TABLE")
    seed: int = 0
    recovery: str | None = option(None, metavar="NAME")
    health: str | None = option(None, metavar="NAME")
    checkpoint: str | None = option(None, metavar="NAME", shown="after every step")
    speed: float = 1.0
    slurm: str | None = option(None, metavar="PARTITION")
    listen: str | None = option(None, metavar="HOST", shown="its own")
    commits: str | None = option(None, metavar="URL", shown="in DIR")
    allocation: str = option("malleable:lookahead_s=120", metavar="NAME")
    hold_s: float = 20.0
    most_jobs: int = 10
    hang_s: float = 300.0
    until_s: float = 1e9
    retry_failed: bool = False
    chart: Path | None = option(None, metavar="STEM")
    as_json: bool = False


def live(
    jobs: Path,
    *,
    folder: Annotated[Path, Option(metavar="DIR", flag="--state")],
    given: Annotated[Given[LiveOptions], Panel()],
) -> None:
    """Train jobs as processes, one a node, on this machine or Slurm's nodes; a node that leaves takes its process.

    Started again with the same DIR it goes on where it was, whatever ended it. Programs: your script calls
    ddlsched.real.live.training.train and needs PyTorch (the extra 'real'), as does mlp; count only counts. A job with
    samples_per_s (at 1, 2, ... nodes, spaces between) is believed to scale so; others are measured while they run.
    Timeline: DIR/timeline.csv.

    Parameters
    ----------
    jobs
        CSV: job_id, program (mlp, count, a script.py), steps, max_nodes, perhaps min_nodes, samples_per_s.
    folder
        Where jobs and what they commit are kept.
    """
    from ddlsched.cluster.idle_trace import read_fragments
    from ddlsched.io.files import made_folder
    from ddlsched.real.live.manager import LiveManager
    from ddlsched.real.live.nodes import LocalLauncher, SeldomAsked, SlurmLauncher, SlurmScavenger, TraceScavenger
    from ddlsched.real.live.store import read_jobs
    from ddlsched.real.state_folder import open_in

    asked = given.made()
    _refuse_options(asked)
    wanted = read_jobs(jobs)
    scavenger: Scavenger
    launcher: Launcher = LocalLauncher()
    listen = None
    if asked.slurm is not None:
        launcher = on_nodes = SlurmLauncher.for_folder(asked.slurm, folder)
        scavenger = SeldomAsked(SlurmScavenger(partition=asked.slurm, placeholder=on_nodes.name), notice)
        listen = asked.listen or socket.gethostname()
    if asked.trace is not None:
        scavenger = played = TraceScavenger(trace=read_fragments(asked.trace), speed=asked.speed)
        asked = replace(asked, until_s=min(asked.until_s, played.end_s()))
    if asked.nodes is not None:
        scavenger = _failing(asked, wanted)
    sharer = _sharer(asked.allocation, asked.hold_s, wanted)
    folder = made_folder(folder, "jobs' state").resolve()
    if asked.chart is not None:
        made_folder(asked.chart.parent, "--chart")
    with open_in(folder, "timeline.csv", "ab", buffering=0) as timeline:

        def note(row: str) -> None:
            try:
                timeline.write(row.encode() + b"\n")
            except OSError as error:
                why = f"cannot be written ({error.strerror}); expected space for a row an event"
                raise InputError(f"{folder / 'timeline.csv'}: {why}") from None

        def watch(event: LiveEvent) -> None:
            note(f"{event.time_s:.3f},{event.what},{event.job},{event.step},{event.nodes},{event.loss}")
            if asked.as_json:
                emit(json.dumps(event.__dict__) + "\n")

        if timeline.tell() == 0:
            note("time_s,what,job,step,nodes,loss")
        manager = LiveManager(
            folder,
            scavenger,
            sharer,
            asked.most_jobs,
            watch,
            asked.hang_s,
            launcher,
            listen,
            asked.commits,
            notice,
            asked.checkpoint or "",
            {job.job_id: job.min_nodes for job in wanted},
        )
        if isinstance(launcher, SlurmLauncher):
            launcher.end_leftovers()
        for job in wanted:
            manager.store.submit(job.job_id, program=job.program, steps=job.steps, max_nodes=job.max_nodes)
        for job_id in manager.store.requeue("failed") if asked.retry_failed else ():
            notice(f"job {job_id!r}, which was given up, begins again")
        manager.run(asked.until_s)
    if asked.chart is not None:
        from ddlsched.comparisons.charts.real_charts import live_timeline
        from ddlsched.comparisons.charts.style import save

        save(live_timeline(folder / "timeline.csv"), asked.chart)
    _tell(folder)


def _refuse_options(asked: LiveOptions) -> None:
    if sum(each is not None for each in (asked.trace, asked.slurm, asked.nodes)) != 1:
        raise InputError("live: expected one of --trace FILE, --slurm PARTITION, --nodes N")
    if asked.nodes is None and (asked.failures, asked.recovery, asked.health) != (None, None, None):
        raise InputError("live: failures, recovery or health is given; expected --nodes N as well")
    if asked.listen is not None and asked.slurm is None:
        raise InputError("--listen: processes are on this machine; expected --slurm PARTITION as well")
    check_arguments("live", seed=(asked.seed, 0))
    if asked.checkpoint is not None:
        resolve("checkpoint", asked.checkpoint)  # now, and not by processes, which would give their jobs up


def _failing(asked: LiveOptions, jobs: Sequence[StoredJob]) -> FailingNodes:
    from ddlsched.cluster.disturbances import Disturbances
    from ddlsched.real.live.failing import FailingNodes

    check_arguments("live", nodes=(asked.nodes, 1))
    disturbances = Disturbances(
        failures=asked.failures or (), recovery=asked.recovery, health=asked.health, checkpoint=asked.checkpoint
    )
    most = {job.job_id: job.max_nodes for job in jobs}
    return FailingNodes(asked.nodes or 0, most, disturbances, asked.seed, asked.speed)


def _sharer(allocation: str, hold_s: float, jobs: Sequence[StoredJob]) -> ProfiledAllocator:
    from ddlsched.workload.profiling import JobMonitor, ProfiledAllocator, ProfilingAdvisor, extrapolated

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
    return ProfiledAllocator(allocator, ProfilingAdvisor(hold_s=hold_s), JobMonitor(supplied=supplied), (1.0, 1.0))


def _tell(folder: Path) -> None:
    from ddlsched.real.live.store import JobStore

    with closing(JobStore(folder / "jobs.sqlite")) as store:
        jobs = store.jobs()
    states = {state: sum(job.state == state for job in jobs) for state in ("finished", "failed", "queued")}
    notice(", ".join(f"{count} {state}" for state, count in states.items()) + f"; timeline: {folder / 'timeline.csv'}")
    if states["failed"]:
        raise typer.Exit(1)
