"""``ddlsched record``: a training script runs, and its steps become a job."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.option_values import real, whole
from ddlsched.cli.output import notice
from ddlsched.cluster.cluster import Server
from ddlsched.errors import InputError
from ddlsched.training.commands.import_training_command import refuse_no_json, report
from ddlsched.training.commands.recorded_job_options import (
    AsJson,
    CardGbps,
    CardLatencyUs,
    ChartStem,
    JobId,
    JobIterations,
)

__all__ = ["SETTINGS", "record"]

SETTINGS = {"allow_interspersed_args": False}
"""What follows the script is the script's."""


def record(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A PyTorch training script.", readable=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own.")] = None,
    *,
    out: Annotated[Path, typer.Option(help="Workload file of the job to write.", metavar="FILE.json")],
    ranks: Annotated[
        int, typer.Option(help="Processes to train with, on this machine.", metavar="N", parser=whole)
    ] = 2,
    keep: Annotated[
        Path | None, typer.Option(help="Folder in which each rank's recording is kept.", metavar="DIR")
    ] = None,
    skip: Annotated[int, typer.Option(help="Steps at the beginning not to record.", metavar="N", parser=whole)] = 3,
    steps: Annotated[
        int, typer.Option(help="Steps to record, behind which the script ends.", metavar="N", parser=whole)
    ] = 1000,
    iterations: JobIterations = 1000,
    job_id: JobId = "recorded",
    gpu_memory_mb: Annotated[
        float, typer.Option(help="The job's on each GPU, MB.", metavar="MB", parser=real)
    ] = Server.gpu_memory_mb,
    gbps: CardGbps = 10.0,
    latency_us: CardLatencyUs = 0.0,
    chart: ChartStem = None,
    as_json: AsJson = False,
) -> None:
    """Run a training script on several processes and make a job of its steps.

    The script is started as by torchrun; a step ends with optimizer.step(). Recorded are the buckets of
    DistributedDataParallel, FSDP's all-gathers and reduce-scatters, and what the script itself calls of
    torch.distributed (docs/recorded_jobs.md).
    """
    from ddlsched.training.recorded.alone import checked_card
    from ddlsched.training.recorded.reading import read_iteration
    from ddlsched.training.recording.launching import run_recorded
    from ddlsched.workload.job import Job

    refuse_no_json(out)
    card = checked_card(gbps=gbps, latency_us=latency_us)
    for name, value, least in (("--ranks", ranks, 2), ("--skip", skip, 1), ("--steps", steps, 1)):
        if value < least:
            raise InputError(f"{name} {value}: expected a whole number from {least}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else keep
        files = run_recorded(script, arguments or [], folder, ranks=ranks, skip=skip, most_steps=steps)
        recorded = read_iteration(files)
    if keep is not None:
        notice(f"kept {len(files)} recordings in {keep}")
    job = Job(
        job_id=job_id,
        arrival_s=0.0,
        num_gpus=recorded.num_ranks,
        iterations=iterations,
        iteration=recorded.dag,
        gpu_memory_mb=gpu_memory_mb,
    )
    report(recorded, job, out, card, chart, as_json=as_json)
