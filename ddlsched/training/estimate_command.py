"""``ddlsched estimate``: time, memory and cost of a training step; ``calibrate-gpu`` measures kernels for it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, is_given, option
from ddlsched.cli.reporting import emit, notice, write_told
from ddlsched.errors import InputError
from ddlsched.io.files import refuse_unwritable, replacing
from ddlsched.options import Option
from ddlsched.training.estimate import Degrees

if TYPE_CHECKING:
    from ddlsched.training.estimate.hardware import Machine
    from ddlsched.training.estimate.models import Model
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.step_estimate import Estimate
    from ddlsched.workload.job import Job


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """GPUs, their servers and networks, as :func:`~ddlsched.training.estimate.clusters.parse_cluster` reads them.

    Parameters
    ----------
    cluster
        GPU and what differs from its usual server, e.g. h100:nodes=64,nic_gbps=1600 or
        a100-80:expansion_gb=256,expansion_gb_per_s=100.
    topology
        Network between the servers, e.g. leaf-spine:servers_per_leaf=4,nic_gbps=1600,oversubscription=2.
    efficiency
        How far GPUs and networks stay below their data sheets: as a program's published steps show it (megatron, eager,
        fsdp, torchtitan, megatron-bridge) or ideal (they do not).
    """

    cluster: str = "a100-80"
    topology: str | None = option(None, shown="one switch")
    efficiency: str = option("", shown="megatron-bridge on Hopper and Blackwell, else megatron")


_DEGREES = Panel(
    "Parallelism",
    without=("balanced", "own_experts", "widths"),
    metavars={"recompute": "WHAT"},
    shown={"expert_capacity": "all", "shards": "all", "global_batch": "data x micro-batch"},
)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is trained, beside its name.

    Parameters
    ----------
    hf_config
        In place of MODEL: a language model's config.json of Hugging Face.
    sequence
        Tokens of a sequence.
    """

    hf_config: Path | None = option(None, metavar="FILE.json")
    sequence: int | None = option(None, shown="the model's")


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """How products and collectives run.

    Parameters
    ----------
    precision
        Of matrix products: half, single, fp8, mxfp8 or nvfp4.
    gpu
        Kernels of --cluster's GPU that 'calibrate-gpu' measured, in place of a program's.
    algorithm
        Of collectives, also the job's: ring (hierarchical: one on each tier), nccl (by size), another of 'ddlsched list
        collective', or one of yours. Kinds that it has not go in rings, all-to-alls by rail.
    """

    precision: str = "half"
    gpu: Path | None = option(None, metavar="FILE.csv")
    algorithm: str = "ring"


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What is estimated, and where it goes.

    Parameters
    ----------
    rows
        Instead of MODEL: predict each row of a CSV file, ours or a published table of step times.
    out
        With --rows: where to write the rows and what is predicted.
    job_out
        Also write the step as a job for 'simulate'.
    iterations
        Of the job.
    groups
        Of the job: traffic of each kind of parallelism as collectives over groups of its workers, for a topology that
        states the inside of servers; without, for one that does not.
    as_json
        Print the estimate as one JSON object.
    """

    rows: Path | None = option(None, metavar="FILE.csv")
    out: Path | None = option(None, metavar="FILE.csv", shown="stdout")
    job_out: Path | None = option(None, metavar="FILE.json")
    iterations: int = 1000
    groups: bool = False
    as_json: bool = False


def estimate(
    call: typer.Context,
    model: str | None = None,
    *,
    given: Annotated[Given[ModelOptions], Panel("Model")],
    host: Annotated[Given[MachineOptions], Panel("Cluster")],
    parallelism: Annotated[Given[Degrees], _DEGREES],
    running: Annotated[Given[EstimateOptions], Panel("Parallelism")],
    result: Annotated[Given[ResultOptions], Panel("Results")],
) -> None:
    """Estimate the time, memory, energy and cost of a training step.

    With --rows FILE.csv, predict the rows of a file instead; docs/training_time.md lists its columns.

    Parameters
    ----------
    model
        Name of a model, e.g. gpt3-175b, llama-3-70b, dlrm-1.2t, resnet-50.
    """
    wanted = result.made()
    rows, out, job_out = wanted.rows, wanted.out, wanted.job_out
    trained = given.made()
    if [model, rows, trained.hf_config].count(None) != 2:
        raise InputError("expected one of MODEL, such as gpt3-175b, --hf-config FILE.json and --rows FILE.csv")
    if rows is not None:
        _refuse_others(call)
        _predict_rows(rows, out)
        return
    if out is not None:
        raise InputError(f"--out {out}: belongs to --rows; expected --json or --job-out for a single estimate")
    if wanted.groups and job_out is None:
        raise InputError("--groups: belongs to --job-out; expected --job-out FILE.json beside it")
    if job_out is not None:
        _refuse_no_job_file(job_out, wanted.groups)
    from ddlsched.training.estimate.clusters import parse_cluster
    from ddlsched.training.estimate.parallel_layout import Parallelism
    from ddlsched.training.estimate.presets import remark
    from ddlsched.training.estimate.step_estimate import estimate_checked

    name, found_model = _model(model, trained)
    plan = Parallelism(**parallelism.values)
    if "global_batch" not in parallelism.values:
        plan = replace(plan, global_batch=plan.data * plan.micro_batch)
    chosen = host.made()
    cluster = parse_cluster(chosen.cluster, topology=chosen.topology, efficiency=chosen.efficiency)
    machine = cluster.machine(max(1, int(plan.num_gpus)))
    options = dict(running.values)
    machine, measured, speeds = _with_kernels(machine, options.pop("gpu", None), program=chosen.efficiency)
    speeds = speeds or cluster.efficiency
    found = estimate_checked(found_model, plan, machine, **options)
    if job_out is not None:
        from ddlsched.training.estimate.estimated_jobs import job_of

        count, groups = wanted.iterations, wanted.groups
        job = job_of(found_model, plan, machine, job_id=name, iterations=count, label=name, groups=groups, **options)
        _write_job(job, job_out, float(found.memory.weights_bytes + found.memory.optimiser_bytes) / 1e6)
    title = f"{name} on {int(plan.num_gpus)} GPUs of {chosen.cluster}"
    said = measured or remark(cluster.efficiency, machine.gpu.name, running.made().precision, found_model)
    if wanted.as_json:
        emit(json.dumps(_numbers(found) | {"efficiency": speeds, "remark": said}, indent=2) + "\n")
    else:
        emit(_table(title, found_model.samples_are, plan, found) + f"  {speeds}: {said}\n")


def _with_kernels(machine: Machine, path: Path | None, *, program: str) -> tuple[Machine, str, str]:
    """Return a cluster whose GPUs are as fast as those that were measured, a line that says so, and what stands for it.

    What a program loses beside products and attention stays, but for one GPU under no program that is named.
    """
    if path is None:
        return machine, "", ""
    from ddlsched.training.estimate.kernel_speeds import STEP_ERROR, kernel_speeds, read_kernels

    kernels = read_kernels(path)
    found = kernel_speeds(kernels, machine.gpu)
    if machine.num_gpus == 1 and not program and found.others:
        said = f"as measured on {kernels[0].gpu}, {100 * STEP_ERROR:.0f} % typical error of steps on one GPU"
        return machine.with_efficiency(found.alone()), said, "kernels"
    said = f"products and attention as measured on {kernels[0].gpu}, its products met within {100 * found.error:.0f} %"
    return machine.with_efficiency(found.given_to(machine.gpu.efficiency)), said, ""


def _model(name: str | None, given: ModelOptions) -> tuple[str, Model]:
    """Return a model and its name, from a preset or a configuration."""
    from ddlsched.training.estimate.models import Transformer
    from ddlsched.training.estimate.parallel_layout import MOST
    from ddlsched.training.estimate.presets import MODELS, preset, read_configuration

    if given.sequence is not None and not 1 <= given.sequence <= MOST:
        raise InputError(f"--sequence {given.sequence}: expected a whole number of tokens from 1 to {MOST:,}")
    if given.hf_config is not None:
        path = given.hf_config
        return path.parent.name or path.stem, read_configuration(path, sequence=given.sequence or 4096)
    assert name is not None
    model = preset(MODELS, name, "model")
    if given.sequence is None:
        return name, model
    if not isinstance(model, Transformer):
        raise InputError(f"--sequence {given.sequence}: {name} has no sequences; expected a language model")
    return name, replace(model, sequence=given.sequence)


def _refuse_no_job_file(path: Path, groups: bool) -> None:
    from ddlsched.workload.workload_files import refuse_suffix

    refuse_unwritable(path, "--job-out", (".json",) if groups else ())
    refuse_suffix(path)


def _write_job(job: Job, path: Path, state_mb: float) -> None:
    from ddlsched.workload.job import Workload
    from ddlsched.workload.workload_files import write_workload

    what = f"a job of {job.iterations} iterations (weights and optimiser are --state-mb {state_mb:.0f})"
    write_told(path, "--job-out", what, write_workload, Workload.of([job]))


def _refuse_others(call: typer.Context) -> None:
    """Refuse what would have no effect beside --rows."""
    for parameter in call.command.params:
        if is_given(call, str(parameter.name)) and parameter.name not in ("rows", "out"):
            raise InputError(f"{parameter.opts[0]}: has no effect on --rows; expected --out alone beside it")


def _predict_rows(rows: Path, out: Path | None) -> None:
    refuse_unwritable(out, "--out")
    from ddlsched.training.estimate.rows import predicted_rows

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
    said: dict[str, Any] = _numbers(found)
    step_s = said["step_s"]
    rate = float(plan.global_batch) / step_s
    lines = [title, f"  {'step':32}{step_s:12.4f} s"]
    lines += [
        f"    {name:30}{said[part]:12.4f} s{100 * said[part] / step_s:8.1f} %"
        for part, name in _PARTS.items()
        if said[part] > 0
    ]
    lines.append(f"  {f'{samples} a second':32}{rate:12.4g}")
    lines.append(f"  {'model FLOPs utilisation':32}{100 * said['mfu']:12.1f} %")
    lines.append(f"  {'energy of a step':32}{said['energy_j'] / 1e3:12.4g} kJ")
    price = f"at {float(found.price_per_hour):g} $ an hour and GPU, a guess unless given"
    lines.append(f"  {'cost of a step':32}{said['cost']:12.4g} $   {price}")
    verdict = "fits" if said["fits"] else f"does not fit by {said['missing_gb']:.2f} GB"
    lines.append(f"  {'memory of a GPU':32}{said['memory_gb']:12.2f} GB  {verdict}")
    lines += [f"    {part:30}{said[f'{part}_gb']:12.2f} GB" for part in _MEMORY]
    return "".join(f"{line}\n" for line in lines)


_LEAST = 128


def calibrate_gpu(
    *, out: Annotated[Path, Option(metavar="FILE.csv")], device: str = "cuda", shapes: int = 200, largest: int = 16384
) -> None:
    """Measure kernels on the GPU of this machine, in less than ten minutes.

    Matrix products of many sizes in two precisions, attention forward and backward over growing sequences, and what
    only moves bytes.
    'estimate --gpu FILE.csv' takes them in place of a program's published steps.

    Parameters
    ----------
    out
        Where to write the kernels and their times.
    device
        Where they run: cuda or cpu.
    shapes
        Sizes of products.
    largest
        Side of the largest product.
    """
    from ddlsched.training.estimate.kernel_speeds import measured_kernels, write_kernels

    if device not in ("cuda", "cpu"):
        raise InputError(f"--device {device}: expected cuda or cpu")
    for name, value, least in (("--shapes", shapes, 1), ("--largest", largest, _LEAST)):
        if value < least:
            raise InputError(f"{name} {value}: expected a whole number from {least}")
    refuse_unwritable(out, "--out")
    measured = measured_kernels(device, shapes=shapes, largest=largest)
    first = next(measured)
    kernels = list(itertools.chain([first], measured))
    write_told(out, "--out", f"{len(kernels)} kernels of {first.gpu}", write_kernels, kernels)
