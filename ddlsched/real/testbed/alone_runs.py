"""Measures all-reduces of jobs alone that compute in between: the calibration's follow each other without a pause."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.io.files import replacing
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.real.gate.gate import GateSettings
from ddlsched.real.testbed.calibration_runs import sent_freely
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.workload.dag import ComputeTask, DataParallelIteration
from ddlsched.workload.job import Job

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["alone_jobs", "measure_alone"]

ITERATIONS = 12
_FIRST = 2
"""Iterations that only open the TCP windows, and are not counted."""
_SIZES_BYTES = (200_000, 400_000, 800_000, 1_600_000)
_MOST_SERVERS = 4


def alone_jobs(settings: GateSettings) -> list[Job]:
    """Return jobs on the first 2, 3 and 4 servers, as many as there are, that compute as long as they should send."""
    cluster = settings.cluster
    network = Network(resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards)
    counts = range(2, min(cluster.num_servers, _MOST_SERVERS) + 1)
    return [_job(servers, size, network.nic_bytes_per_s) for servers, size in itertools.product(counts, _SIZES_BYTES)]


def _job(servers: int, message_bytes: int, card_bytes_per_s: float) -> Job:
    send_s = message_bytes * 2 * (servers - 1) / servers / card_bytes_per_s
    iteration = DataParallelIteration(forward_s=send_s / 3, backward_s=send_s * 2 / 3, message_bytes=message_bytes)
    return Job(
        job_id=f"alone-{servers}-{message_bytes}",
        arrival_s=0.0,
        num_gpus=servers,
        iterations=ITERATIONS,
        iteration=iteration,
        gpu_memory_mb=0.0,
    )


def measure_alone(path: Path, jobs: Sequence[Job], settings: GateSettings, crew: WorkerCrew) -> None:
    """Have a crew run each job alone, unless the file is there, and keep a row of each.

    Its columns are those of :mod:`ddlsched.real.calibration.ring_wait`, and ``compute_s``.
    """
    import pandas as pd

    if path.exists():
        return
    table = pd.DataFrame([_row(job, sent_freely([job], settings, crew)) for job in jobs])
    with replacing(path, "jobs alone") as file:
        table.to_csv(file, index=False, float_format="%.6g")


def _row(job: Job, transfers: pd.DataFrame) -> dict[str, float]:
    counted = transfers[(transfers.iteration >= _FIRST) & (transfers.iteration < job.iterations - 1)]
    compute_ns = sum(task.duration_ns for task in job.dag.tasks if isinstance(task, ComputeTask))
    return {
        "servers": job.num_gpus,
        "message_bytes": float(counted.message_bytes.iloc[0]),
        "compute_s": compute_ns / 1e9,
        "transfer_s": float((counted.ended_s - counted.granted_s).mean()),
    }
