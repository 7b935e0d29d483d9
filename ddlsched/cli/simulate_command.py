"""``ddlsched simulate``: one run, from a workload file to its metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, with_options
from ddlsched.cli.ineffective_flags import refuse_ineffective
from ddlsched.cli.output import emit, notice, run_status
from ddlsched.cli.run_options import (
    ClusterOptions,
    ElasticOptions,
    KindOptions,
    NetworkOptions,
    OutputOptions,
    PolicyOptions,
    SpanOptions,
)
from ddlsched.cli.simulate_output import metrics_json, metrics_table, remarks, setting, write_files, write_run
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.errors import InputError, UnknownNameError
from ddlsched.io.files import refuse_unwritable

if TYPE_CHECKING:
    from ddlsched.workload.job import Workload

__all__ = ["simulate"]


@with_options
def simulate(
    context: typer.Context,
    jobs: Annotated[
        str,
        typer.Argument(
            metavar="JOBS",
            help="Workload file: .csv, .parquet or .json; or a generator, whose jobs --seed makes, e.g. "
            "microsoft-160:scale=0.01 or gen.py:function:parameter=1.",
        ),
    ],
    cluster: Annotated[Given[ClusterOptions], Panel("Cluster")],
    kinds: Annotated[Given[KindOptions], Panel("Cluster")],
    policies: Annotated[Given[PolicyOptions], Panel("Policies")],
    elastic: Annotated[Given[ElasticOptions], Panel("Elastic jobs, and servers that come and go")],
    network: Annotated[Given[NetworkOptions], Panel("Network")],
    disturbances: Annotated[
        Given[Disturbances], Panel("What goes wrong (all drawn from --seed)", metavars={"outages": "FILE.csv"})
    ],
    span: Annotated[Given[SpanOptions], Panel("Run and results")],
    output: Annotated[Given[OutputOptions], Panel("Run and results")],
) -> None:
    """Simulate the jobs of a workload to the end and print the metrics.

    The defaults are those of the 64-GPU experiment.

    NAME is one of 'ddlsched list', such as lwf:kappa=1, or your own class: path/to/file.py:ClassName:parameter=value.
    """
    out = output.made()
    window = _window(out.timeline, out.timeline_window)
    refuse_ineffective(context)
    _refuse_outputs(jobs, {"--jobs-out": out.jobs_out, "--run-out": out.run_out, "--timeline": out.timeline})
    from ddlsched.comparisons.sweeps.run import Run
    from ddlsched.engine.run_progress import long_run_remark
    from ddlsched.simulation import simulate as run

    options: dict[str, Any] = {
        "cluster": kinds.made().applied_to(cluster.made().cluster()),
        "disturbances": disturbances.made(),
    }
    options |= policies.values | elastic.values | network.values | span.values
    seed = options.pop("seed")
    workload = _made_or_read(jobs, seed)
    if remark := long_run_remark(workload.task_ends):
        notice(remark)
    with run_status(f"simulating {len(workload)} jobs on {options['cluster'].num_gpus} GPUs") as watch:
        result = run(workload, seed=seed, timeline=window, watch=watch, **options)
    if out.run_out is not None:
        write_run(result, Run(labels={}, workload=jobs, seed=seed, options=options), out.run_out)
    write_files(result, out.jobs_out, out.timeline)
    emit(metrics_json(result) if out.as_json else metrics_table(result, setting(options)))
    for line in remarks(result) if out.as_json else ():
        notice(line)


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


def _refuse_outputs(jobs: str, outputs: dict[str, Path | None]) -> None:
    """Refuse, before the run, a file that cannot be written or that would destroy another."""
    taken = {os.path.realpath(jobs): "JOBS"}
    for flag, path in outputs.items():
        if path is None:
            continue
        refuse_unwritable(path, flag)
        other = taken.setdefault(os.path.realpath(path), flag)
        if other != flag and not path.is_char_device():
            raise InputError(f"{flag} {path}: is the same file as {other}; expected another")


def _made_or_read(jobs: str, seed: int) -> Workload:
    """Return the jobs of a generator or a file; what is neither, nor nearly a generator's name, is taken for a file."""
    from ddlsched.workload.workload_files import read_workload
    from ddlsched.workload.workload_specs import nearest_generators, workload_of

    try:
        return workload_of(jobs, seed)
    except UnknownNameError:
        if ":" in jobs or nearest_generators(jobs):
            raise
        return read_workload(jobs)
