"""``ddlsched simulate``: one run, from a workload file to its metrics."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.numbers import real, whole
from ddlsched.cli.output import emit, status
from ddlsched.cli.simulate_output import metrics_json, metrics_table, write_files, write_run
from ddlsched.errors import InputError, PluginError
from ddlsched.io.files import refuse_unwritable

if TYPE_CHECKING:
    pass

__all__ = ["simulate"]

_CLUSTER = "Cluster"
_POLICIES = "Policies"
_ELASTIC = "Elastic jobs, and servers that come and go"
_NETWORK = "Network"
_DISTURBANCES = "What goes wrong (all drawn from --seed)"
_RUN = "Run and results"
_MODELS_OWN = "the contention model's own"


def simulate(
    context: typer.Context,
    jobs: Annotated[
        Path,
        typer.Argument(metavar="JOBS", help="Workload file: .csv, .parquet or .json.", readable=False),
    ],
    servers: Annotated[
        int, typer.Option(help="Number of servers.", metavar="N", parser=whole, rich_help_panel=_CLUSTER)
    ] = 16,
    gpus_per_server: Annotated[
        int, typer.Option(help="GPUs of each server.", metavar="N", parser=whole, rich_help_panel=_CLUSTER)
    ] = 4,
    gpu_memory_mb: Annotated[
        float,
        typer.Option(help="Memory of each GPU, MB (1e6 bytes).", metavar="MB", parser=real, rich_help_panel=_CLUSTER),
    ] = 32768,
    server_table: Annotated[
        Path | None,
        typer.Option(
            help="Servers that differ, in place of the three above: CSV with the columns gpus, gpu_memory_mb and "
            "optionally servers (how many like this), relative_speed, nic_gbps.",
            metavar="FILE.csv",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(
            help="Network between the servers, e.g. star, leaf-spine:servers_per_leaf=4,spines=2 or fat-tree:k=4.",
            metavar="NAME",
            rich_help_panel=_CLUSTER,
        ),
    ] = "star",
    scheduler: Annotated[
        str,
        typer.Option(
            help="Bundle of a placement, an order and a communication policy: ada-srsf, srsf-1, srsf-2, srsf-3.",
            metavar="BUNDLE",
            rich_help_panel=_POLICIES,
        ),
    ] = "ada-srsf",
    placement: Annotated[
        str | None,
        typer.Option(
            help="On which GPUs a job runs, e.g. lwf:kappa=1, first-fit, random or mine.py:MyPolicy:alpha=0.5.",
            metavar="NAME",
            show_default="the bundle's",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Which job goes first, e.g. srsf, srsf:communication=true, fifo or las.",
            metavar="NAME",
            show_default="the bundle's",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    communication: Annotated[
        str | None,
        typer.Option(
            help="Which all-reduces overlap, e.g. adadual, bounded-overlap:limit=2 or preemptive:by=bytes.",
            metavar="NAME",
            show_default="the bundle's",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            help="How many GPUs each elastic job has, e.g. elastic-scaling:interval_s=600,queue=true.",
            metavar="NAME",
            show_default="none: no job is elastic",
            rich_help_panel=_ELASTIC,
        ),
    ] = None,
    rescale_cost: Annotated[
        str | None,
        typer.Option(
            help="What a change of an elastic job takes, e.g. restart_s=30 or up_s=18,down_s=12,resume_s=12.",
            metavar="TIMES",
            show_default="nothing",
            rich_help_panel=_ELASTIC,
        ),
    ] = None,
    capacity: Annotated[
        Path | None,
        typer.Option(
            help="When each server is there: CSV with the columns server, join_s, leave_s and optionally warned.",
            metavar="FILE.csv",
            show_default="always",
            rich_help_panel=_ELASTIC,
        ),
    ] = None,
    contention: Annotated[
        str,
        typer.Option(
            help="How fast transfers go that share a link, e.g. 10gbe, 1gbe, max-min or linear:per_byte_s=1e-9.",
            metavar="NAME",
            rich_help_panel=_NETWORK,
        ),
    ] = "10gbe",
    latency_s: Annotated[
        float | None,
        typer.Option(
            help="Time before a transfer's first byte, seconds (10gbe: 0).",
            metavar="S",
            parser=real,
            show_default=_MODELS_OWN,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    per_byte_s: Annotated[
        float | None,
        typer.Option(
            help="Time of a byte of a transfer alone, seconds (10gbe: 8.56e-10).",
            metavar="S",
            parser=real,
            show_default=_MODELS_OWN,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    penalty_per_byte_s: Annotated[
        float | None,
        typer.Option(
            help="Extra time of a byte for each further transfer on a link, seconds (10gbe: 2.35e-10).",
            metavar="S",
            parser=real,
            show_default=_MODELS_OWN,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    interference: Annotated[
        str | None,
        typer.Option(
            help="How much longer compute takes on shared GPUs, e.g. uniform:share=0.3 or pairs:file=penalties.csv.",
            metavar="NAME",
            show_default="no longer",
            rich_help_panel=_POLICIES,
        ),
    ] = None,
    load_per_byte_s: Annotated[
        float | None,
        typer.Option(
            help="Time that a byte counts in a GPU's load, by which placements choose, seconds.",
            metavar="S",
            parser=real,
            show_default="time of a byte alone",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Of the policies' and disturbances' randomness, from 0; the same seed repeats the run exactly.",
            metavar="N",
            parser=whole,
            rich_help_panel=_RUN,
        ),
    ] = 0,
    warmup_s: Annotated[
        float,
        typer.Option(
            help="Leave jobs that arrive earlier out of the metrics, seconds.",
            metavar="S",
            parser=real,
            rich_help_panel=_RUN,
        ),
    ] = 0.0,
    until_s: Annotated[
        float | None,
        typer.Option(
            help="Cut the run off at this time, seconds; unfinished jobs are counted apart.",
            metavar="S",
            parser=real,
            show_default="the last finish",
            rich_help_panel=_RUN,
        ),
    ] = None,
    jitter_cv: Annotated[
        float,
        typer.Option(
            help="Coefficient of variation of every compute task's time, e.g. 0.1.",
            metavar="CV",
            parser=real,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 0.0,
    straggler_share: Annotated[
        float,
        typer.Option(
            help="Probability of each GPU to be slow for the whole run.",
            metavar="SHARE",
            parser=real,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 0.0,
    straggler_slowdown: Annotated[
        float,
        typer.Option(
            help="How many times as long a slow GPU takes.",
            metavar="FACTOR",
            parser=real,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 2.0,
    server_mtbf_s: Annotated[
        float | None,
        typer.Option(
            help="Mean time of a server from repair to failure, seconds.",
            metavar="S",
            parser=real,
            show_default="none fails",
            rich_help_panel=_DISTURBANCES,
        ),
    ] = None,
    server_repair_s: Annotated[
        float,
        typer.Option(
            help="Mean time of a server from failure to repair, seconds.",
            metavar="S",
            parser=real,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 3600.0,
    outages: Annotated[
        Path | None,
        typer.Option(
            help="When which server is down, in place of random failures: CSV with the columns server, from_s, to_s.",
            metavar="FILE.csv",
            rich_help_panel=_DISTURBANCES,
        ),
    ] = None,
    checkpoint_iterations: Annotated[
        int,
        typer.Option(
            help="After how many iterations a job's work is safe from failures.",
            metavar="N",
            parser=whole,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 1,
    restart_s: Annotated[
        float,
        typer.Option(
            help="Time for which a job holds its GPUs before it goes on after a failure, seconds.",
            metavar="S",
            parser=real,
            rich_help_panel=_DISTURBANCES,
        ),
    ] = 0.0,
    jobs_out: Annotated[
        Path | None,
        typer.Option(
            help="Write each job's job_id, start_s, finish_s, jct_s, exact to the nanosecond, as CSV (empty where "
            "the run was cut off before).",
            metavar="FILE.csv",
            rich_help_panel=_RUN,
        ),
    ] = None,
    run_out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run's file, which 'ddlsched explain' reads: its jobs with all metrics, and its inputs.",
            metavar="FILE.parquet",
            rich_help_panel=_RUN,
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Write tasks and transfers as a trace for https://ui.perfetto.dev.",
            metavar="FILE.json",
            rich_help_panel=_RUN,
        ),
    ] = None,
    timeline_window: Annotated[
        str | None,
        typer.Option(
            help="Only this part of the timeline, seconds, e.g. 100:160.",
            metavar="FROM:TO",
            show_default="all",
            rich_help_panel=_RUN,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the metrics as one JSON object.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Simulate the jobs of a workload file to the end and print the metrics.

    The defaults are those of the 64-GPU experiment.

    NAME is one of 'ddlsched list', such as lwf:kappa=1, or your own class: path/to/file.py:ClassName:parameter=value.
    """
    window = _window(timeline, timeline_window)
    _refuse_ineffective(context)
    _refuse_outputs(jobs, {"--jobs-out": jobs_out, "--run-out": run_out, "--timeline": timeline})
    constants = {"latency_s": latency_s, "per_byte_s": per_byte_s, "penalty_per_byte_s": penalty_per_byte_s}
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.cluster.disturbances import Disturbances, read_outages
    from ddlsched.cluster.server_tables import read_cluster
    from ddlsched.comparisons.sweeps.run import Run
    from ddlsched.simulation import simulate as run
    from ddlsched.workload.workload_files import read_workload

    workload = read_workload(jobs)
    if server_table is not None:
        cluster = read_cluster(server_table, topology=topology)
    else:
        cluster = Cluster(
            num_servers=servers, gpus_per_server=gpus_per_server, gpu_memory_mb=gpu_memory_mb, topology=topology
        )
    disturbances = Disturbances(
        jitter_cv=jitter_cv,
        straggler_share=straggler_share,
        straggler_slowdown=straggler_slowdown,
        server_mtbf_s=server_mtbf_s,
        server_repair_s=server_repair_s,
        outages=read_outages(outages) if outages else (),
        checkpoint_iterations=checkpoint_iterations,
        restart_s=restart_s,
    )
    options: dict[str, Any] = {"cluster": cluster, "scheduler": scheduler, "placement": placement, "order": order}
    options |= {"communication": communication, "contention": _contention(contention, constants)}
    options |= {"load_per_byte_s": load_per_byte_s, "disturbances": disturbances, "interference": interference}
    options |= {"warmup_s": warmup_s, "until_s": until_s}
    options |= _elastic(allocation, rescale_cost, capacity)
    with status(f"simulating {len(workload)} jobs on {cluster.num_gpus} GPUs"):
        result = run(workload, seed=seed, timeline=window, **options)
    if run_out is not None:
        write_run(result, Run(labels={}, workload=str(jobs), seed=seed, options=options), run_out)
    write_files(result, jobs_out, timeline)
    emit(metrics_json(result.summary()) if as_json else metrics_table(result))


def _elastic(allocation: str | None, rescale_cost: str | None, capacity: Path | None) -> dict[str, Any]:
    """Return the options that were given."""
    options = {"allocation": allocation, "rescale_cost": rescale_cost, "capacity": capacity and str(capacity)}
    return {name: value for name, value in options.items() if value is not None}


_NEEDS = {
    "rescale_cost": ("allocation",),
    "straggler_slowdown": ("straggler_share",),
    "server_repair_s": ("server_mtbf_s",),
    "restart_s": ("server_mtbf_s", "outages", "capacity"),
    "checkpoint_iterations": ("server_mtbf_s", "outages", "capacity"),
}
"""Flags that change nothing without one of others."""


def _refuse_ineffective(context: typer.Context) -> None:
    """Refuse flags that another makes void, or that do nothing alone: the result would seem to be theirs."""
    given = {name for name in context.params if _is_given(context, name)}
    for name in ("servers", "gpus_per_server", "gpu_memory_mb"):
        if {name, "server_table"} <= given:
            raise InputError(f"{_flag(name)}: the servers are those of --server-table; expected one of the two")
    for name, others in _NEEDS.items():
        if name in given and given.isdisjoint(others):
            raise InputError(f"{_flag(name)}: does nothing alone; expected {' or '.join(map(_flag, others))} as well")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _window(timeline: Path | None, text: str | None) -> bool | tuple[float, float]:
    """Return what ``simulate(timeline=...)`` takes."""
    if text is None:
        return timeline is not None
    if timeline is None:
        raise InputError(f"--timeline-window {text}: there is no timeline; expected --timeline FILE.json as well")
    try:
        from_s, to_s = (float(part) for part in text.split(":"))
    except ValueError:
        raise InputError(f"--timeline-window {text}: is no window; expected FROM:TO, such as 100:160 (s)") from None
    if not 0 <= from_s < to_s:
        raise InputError(f"--timeline-window {text}: is empty; expected 0 <= FROM < TO (s)")
    return from_s, to_s


def _refuse_outputs(jobs: Path, outputs: dict[str, Path | None]) -> None:
    """Refuse, before the run, a file that cannot be written or that would destroy another."""
    taken = {os.path.realpath(jobs): "JOBS"}
    for flag, path in outputs.items():
        if path is None:
            continue
        refuse_unwritable(path, flag)
        other = taken.setdefault(os.path.realpath(path), flag)
        if other != flag and not path.is_char_device():
            raise InputError(f"{flag} {path}: is the same file as {other}; expected another")


def _contention(name: str, constants: dict[str, float | None]) -> Any:
    """Return the model with the constants that were given in place of its own."""
    given = {field: value for field, value in constants.items() if value is not None}
    if not given:
        return name
    from ddlsched.plugins.names import resolve

    model = resolve("contention", name)
    known = {field.name for field in dataclasses.fields(model) if field.init} if dataclasses.is_dataclass(model) else ()
    for field in given:
        if field not in known:
            raise InputError(
                f"{_flag(field)}: contention {name} has no {field}; expected a model that has one, such as 10gbe"
            )
    try:
        return dataclasses.replace(model, **given)
    except InputError:
        raise
    except Exception as error:
        what = f"cannot be made with {given} ({type(error).__name__}: {error})"
        raise PluginError(f"contention {name}: {what}") from error
