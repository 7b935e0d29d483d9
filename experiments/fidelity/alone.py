"""All-reduces of jobs alone, which compute in between as the mixes' jobs do, and what they tell of rings that wait.

The calibration has pauses of 2 ms in place of computing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mixes
import numpy as np
import pandas as pd

from ddlsched.io.files import replacing
from ddlsched.network.connection_shares import ConnectionShares
from ddlsched.performance.calibration.fit import Constant
from ddlsched.testbed.calibration_runs import sent_freely
from ddlsched.testbed.crews import WorkerCrew
from ddlsched.testbed.settings import gate_settings
from ddlsched.workload.job import Job

JOBS, QUICK_JOBS = 36, 6
ITERATIONS = 12
_FIRST = 2
"""Iterations that only open the TCP windows, and are not counted."""
_CARD_BYTES_PER_S = 12.5e6
_RESAMPLES = 2000
_SEED = 2312
"""Of another stream of random numbers than the mixes."""


def drawn(number: int) -> Job:
    """Return a job as the mixes have them, of one bucket, on 2, 3 or 4 servers in turn."""
    rng = np.random.default_rng([_SEED, number])
    job = mixes.job_of(f"alone-{number}", 2 + number % 3, _CARD_BYTES_PER_S, rng, mixes.FULL, late=False)
    return replace(job, iterations=ITERATIONS, iteration=replace(job.iteration, buckets=1))


def measure(path: Path, jobs: int, crew: WorkerCrew, watch: Callable[[str], None]) -> None:
    """Run each job alone; write a row a job: servers, message_bytes, compute_s, and the mean transfer_s."""
    settings = gate_settings(mixes.cluster_of(mixes.CALIBRATED))
    rows = []
    for number in range(jobs):
        job = drawn(number)
        transfers = sent_freely([job], settings, crew)
        counted = transfers[(transfers.iteration >= _FIRST) & (transfers.iteration < ITERATIONS - 1)]
        seconds = float((counted.ended_s - counted.granted_s).mean())
        compute_s = job.iteration.forward_s + job.iteration.backward_s
        rows.append((job.num_gpus, job.iteration.message_bytes, compute_s, seconds))
        watch(f"{number + 1} of {jobs} jobs alone")
    table = pd.DataFrame(rows, columns=["servers", "message_bytes", "compute_s", "transfer_s"])
    with replacing(path, "jobs alone") as file:
        table.to_csv(file, index=False, float_format="%.6g")


def fitted_wait(table: pd.DataFrame, model: ConnectionShares) -> Constant:
    """Return what each further server adds to the time that the model's links take.

    It has the least squares of the relative errors; its interval is that of resampled jobs.
    """
    rings = zip(table.message_bytes.astype(float), table.servers.astype(int), strict=True)
    links_s = np.array([model.latency_s + model.wire_bytes(*ring) * model.alone_per_byte_s for ring in rings])
    measured_s = table.transfer_s.to_numpy()
    more = links_s * (table.servers.to_numpy() - 1) / measured_s
    missing = 1 - links_s / measured_s
    picked = np.random.default_rng(_SEED).integers(len(table), size=(_RESAMPLES, len(table)))
    resampled = (more * missing)[picked].sum(axis=1) / (more**2)[picked].sum(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Constant(float((more * missing).sum() / (more**2).sum()), float(low), float(high))


def text(table: pd.DataFrame, wait: Constant) -> str:
    """Return what is printed: the constant, and the times of a byte that a ring moves, by its servers."""
    moved = table.message_bytes * 2 * (table.servers - 1) / table.servers
    by_servers = (1e9 * table.transfer_s / moved).groupby(table.servers).mean()
    each = ", ".join(f"{seconds:.1f} on {servers}" for servers, seconds in by_servers.items())
    return (
        f"{len(table)} jobs alone: each further server of a ring adds {100 * wait.value:.1f} "
        f"[{100 * wait.low:.1f}, {100 * wait.high:.1f}] % to what its links take; ns a byte moved: {each} servers"
    )
