"""``ddlsched estimate``: the time, memory, energy and cost of a training step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, with_options
from ddlsched.cli.numbers import whole
from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError
from ddlsched.io.files import refuse_unwritable, replacing
from ddlsched.training.commands.machine_options import MachineOptions

if TYPE_CHECKING:
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.step_estimate import Estimate
    from ddlsched.workload.job import Job

__all__ = ["estimate"]

_PLAN = "Parallelism"
_RESULT = "Results"


@with_options
def estimate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Name of a model, e.g. gpt3-175b, llama-3-70b, dlrm-1.2t, resnet-50."),
    ] = None,
    *,
    host: Annotated[Given[MachineOptions], Panel("Cluster")],
    tensor: Annotated[
        int, typer.Option(help="Tensor-parallel GPUs.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 1,
    pipeline: Annotated[
        int, typer.Option(help="Pipeline stages.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 1,
    data: Annotated[
        int, typer.Option(help="Data-parallel GPUs.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 1,
    expert: Annotated[
        int,
        typer.Option(
            help="Of the data-parallel GPUs, those that share a set of experts.",
            metavar="N",
            parser=whole,
            rich_help_panel=_PLAN,
        ),
    ] = 1,
    micro_batch: Annotated[
        int, typer.Option(help="Samples of one pass.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples of a step.",
            metavar="N",
            parser=whole,
            show_default="data x micro-batch",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    interleave: Annotated[
        int, typer.Option(help="Model chunks of each pipeline stage.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 1,
    zero: Annotated[
        int, typer.Option(help="ZeRO stage, 0 to 3.", metavar="N", parser=whole, rich_help_panel=_PLAN)
    ] = 0,
    recompute: Annotated[
        str,
        typer.Option(
            help="What backward computes again: none, selective or full.", metavar="WHAT", rich_help_panel=_PLAN
        ),
    ] = "none",
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split norms along the sequence.", rich_help_panel=_PLAN)
    ] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Reduce gradients behind the last backward.", rich_help_panel=_PLAN)
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="Of matrix products: half, single, fp8, mxfp8 or nvfp4.", metavar="NAME", rich_help_panel=_PLAN
        ),
    ] = "half",
    algorithm: Annotated[
        str,
        typer.Option(help="Of collectives: ring, halving-doubling or direct.", metavar="NAME", rich_help_panel=_PLAN),
    ] = "ring",
    hf_config: Annotated[
        Path | None,
        typer.Option(
            "--hf-config",
            help="In place of MODEL: a language model's config.json of Hugging Face.",
            metavar="FILE.json",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    sequence: Annotated[
        int, typer.Option(help="Tokens of a sequence.", metavar="N", parser=whole, show_default="the model's")
    ] = 0,
    rows: Annotated[
        Path | None,
        typer.Option(
            help="Instead of MODEL: predict each row of a CSV file, ours or a published table of step times.",
            metavar="FILE.csv",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --rows: where to write the rows, predicted steps and memory, and remarks.",
            metavar="FILE.csv",
            show_default="stdout",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    job_out: Annotated[
        Path | None,
        typer.Option(help="Also write the step as a job for 'simulate'.", metavar="FILE.json", rich_help_panel=_RESULT),
    ] = None,
    iterations: Annotated[
        int, typer.Option(help="Of the job.", metavar="N", parser=whole, rich_help_panel=_RESULT)
    ] = 1000,
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="Of the job: tensor, pipeline, data and expert traffic as collectives over groups of its workers.",
            rich_help_panel=_RESULT,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the estimate as one JSON object.", rich_help_panel=_RESULT)
    ] = False,
) -> None:
    """Estimate the time, memory, energy and cost of a training step.

    With --rows FILE.csv, predict the rows of a file instead; docs/training_time.md lists its columns.
    """
    if [model, rows, hf_config].count(None) != 2:
        raise InputError("expected one of MODEL, such as gpt3-175b, --hf-config FILE.json and --rows FILE.csv")
    if rows is not None:
        _refuse_others(context)
        _predict_rows(rows, out)
        return
    if out is not None:
        raise InputError(f"--out {out}: belongs to --rows; expected --json or --job-out for a single estimate")
    if groups and job_out is None:
        raise InputError("--groups: belongs to --job-out; expected --job-out FILE.json beside it")
    if job_out is not None:
        _refuse_no_job_file(job_out)
    from ddlsched.training.estimate.clusters import parse_cluster
    from ddlsched.training.estimate.measured import remark
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.step_estimate import estimate_checked

    model, found_model = _model(model, hf_config, sequence)
    plan = Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        expert=expert,
        micro_batch=micro_batch,
        global_batch=data * micro_batch if global_batch is None else global_batch,
        interleave=interleave,
        zero=zero,
        recompute=recompute,  # type: ignore[arg-type]
        sequence_parallel=sequence_parallel,
        overlap=overlap,
    )
    chosen = host.made()
    cluster = parse_cluster(chosen.cluster, topology=chosen.topology, efficiency=chosen.efficiency)
    machine = cluster.machine(max(1, int(plan.num_gpus)))
    found = estimate_checked(found_model, plan, machine, precision=precision, algorithm=algorithm)
    if job_out is not None:
        from ddlsched.training.estimate.estimated_jobs import job_of

        job = job_of(found_model, plan, machine, job_id=model, iterations=iterations, label=model, groups=groups)
        _write_job(job, job_out)
    title = f"{model} on {int(plan.num_gpus)} GPUs of {chosen.cluster}"
    said = remark(cluster.efficiency, machine.gpu.name, precision, found_model)
    if as_json:
        emit(json.dumps(_numbers(found) | {"efficiency": cluster.efficiency, "remark": said}, indent=2) + "\n")
    else:
        emit(_table(title, found_model.samples_are, plan, found) + f"  {cluster.efficiency}: {said}\n")


def _model(name: str | None, config: Path | None, sequence: int) -> tuple[str, Any]:
    """Return a model and its name, from a preset or a configuration."""
    from ddlsched.training.estimate.hugging_face_configs import read_configuration
    from ddlsched.training.estimate.models import Transformer
    from ddlsched.training.estimate.presets import MODELS, preset

    if config is not None:
        return config.parent.name or config.stem, read_configuration(config, sequence=sequence or 4096)
    assert name is not None
    model = preset(MODELS, name, "model")
    if not sequence:
        return name, model
    if not isinstance(model, Transformer):
        raise InputError(f"--sequence {sequence}: {name} has no sequences; expected a language model")
    return name, dataclasses.replace(model, sequence=sequence)


def _refuse_no_job_file(path: Path) -> None:
    from ddlsched.workload.workload_files import refuse_suffix

    refuse_unwritable(path, "--job-out")
    refuse_suffix(path)


def _write_job(job: Job, path: Path) -> None:
    from ddlsched.workload.job import Workload
    from ddlsched.workload.workload_files import write_workload

    with replacing(path, "--job-out") as file:
        write_workload(Workload.of([job]), file)
    notice(f"wrote a job of {job.iterations} iterations to {path}")


def _refuse_others(context: typer.Context) -> None:
    """Refuse what would have no effect beside --rows."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in ("rows", "out"):
            raise InputError(f"{parameter.opts[0]}: has no effect on --rows; expected --out alone beside it")


def _predict_rows(rows: Path, out: Path | None) -> None:
    if out is not None:
        refuse_unwritable(out, "--out")
    from ddlsched.training.estimate.row_predictions import predicted_rows

    frame = predicted_rows(rows)
    if out is None:
        emit(frame.to_csv(index=False, lineterminator="\n"))
        return
    with replacing(out, "--out") as file:
        frame.to_csv(file, index=False, lineterminator="\n")
    notice(f"wrote {len(frame)} rows to {out}{_error(frame)}")


def _error(frame: Any) -> str:
    """Return how far the predictions are off, if rows have measured times, and how many could not be said."""
    errors = (frame["predicted_step_s"] / frame["measured_step_s"] - 1).abs().dropna()
    left = int(frame["predicted_step_s"].isna().sum())
    said = f"; {100 * errors.mean():.2f} % off the measured times on average" if len(errors) else ""
    return said + (f"; {left} could not be said (column 'remark')" if left else "")


_PARTS = {
    "compute_s": "computation",
    "tensor_s": "collectives within the model",
    "pipeline_s": "sends between stages",
    "bubble_s": "pipeline bubble",
    "data_s": "reduction of gradients",
    "optimiser_s": "optimiser",
    "offload_s": "memory expansion",
}
_MEMORY = ("weights", "gradients", "optimiser", "activations")


def _numbers(found: Estimate) -> dict[str, float | bool | str]:
    numbers: dict[str, float | bool | str] = {"step_s": float(found.step_s)}
    numbers |= {part: float(getattr(found, part)) for part in _PARTS}
    numbers |= {f"{part}_gb": float(getattr(found.memory, f"{part}_bytes")) / 1e9 for part in _MEMORY}
    return numbers | {
        "memory_gb": float(found.memory.total_bytes) / 1e9,
        "fits": bool(found.fits),
        "missing_gb": float(found.missing_bytes) / 1e9,
        "mfu": float(found.mfu),
        "gpus": int(found.num_gpus),
        "energy_j": float(found.energy_j),
        "cost": float(found.cost),
    }


def _table(title: str, samples: str, plan: Parallelism, found: Estimate) -> str:
    """Return the estimate for a reader."""
    step_s = float(found.step_s)
    rate = float(plan.global_batch) / step_s
    lines = [title, f"  {'step':32}{step_s:12.4f} s"]
    for part, name in _PARTS.items():
        value = float(getattr(found, part))
        if value > 0:
            lines.append(f"    {name:30}{value:12.4f} s{100 * value / step_s:8.1f} %")
    lines.append(f"  {f'{samples} a second':32}{rate:12.4g}")
    lines.append(f"  {'model FLOPs utilisation':32}{100 * float(found.mfu):12.1f} %")
    lines.append(f"  {'energy of a step':32}{float(found.energy_j) / 1e3:12.4g} kJ")
    price = f"at {float(found.price_per_hour):g} $ an hour and GPU, a guess unless given"
    lines.append(f"  {'cost of a step':32}{float(found.cost):12.4g} $   {price}")
    memory_gb = float(found.memory.total_bytes) / 1e9
    missing_gb = float(found.missing_bytes) / 1e9
    verdict = "fits" if found.fits else f"does not fit by {missing_gb:.2f} GB"
    lines.append(f"  {'memory of a GPU':32}{memory_gb:12.2f} GB  {verdict}")
    items = {part: float(getattr(found.memory, f"{part}_bytes")) / 1e9 for part in _MEMORY}
    lines += [f"    {part:30}{size_gb:12.2f} GB" for part, size_gb in items.items()]
    return "".join(f"{line}\n" for line in lines)
