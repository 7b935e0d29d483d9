"""All-reduces of jobs alone, which compute in between as the mixes' jobs do: measured, and what fits them.

    sudo python experiments/fidelity/alone.py --measure FILE.csv [--jobs 36]     # four minutes, nothing else to do
    python experiments/fidelity/alone.py [--file experiments/fidelity/measured/alone.csv]

Jobs are drawn as those of the mixes are, one bucket each, of twelve iterations. Calibration has pauses of 2 ms in place of
computing, and so opens TCP's windows wider.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mixes
import numpy as np
import pandas as pd

from ddlsched.cli.output import notice
from ddlsched.cli.reporting import interrupted, reported
from ddlsched.io.files import replacing
from ddlsched.testbed.calibration_runs import sent_freely
from ddlsched.testbed.places import namespace_crew
from ddlsched.testbed.settings import gate_settings
from ddlsched.workload.job import Job

HERE = Path(__file__).parent
ITERATIONS = 12
_FIRST = 2
"""Iterations that only open the TCP windows, and are not counted."""
_SEED = 2312
"""Of another stream of random numbers than the mixes."""


def drawn(number: int) -> Job:
    """Return a job on the first 2, 3 or 4 servers, in turn."""
    rng = np.random.default_rng([_SEED, number])
    job = mixes.job_of(f"alone-{number}", 2 + number % 3, 12.5e6, rng, mixes.FULL, late=False)
    return replace(job, iterations=ITERATIONS, iteration=replace(job.iteration, buckets=1))


def measure(path: Path, jobs: int) -> None:
    """Run each job alone; write a row a job: servers, message_bytes, compute_s, transfer_s (mean of its all-reduces)."""
    cluster = mixes.cluster_of(mixes.CALIBRATED)
    rows = []
    with namespace_crew(realtime=True) as crew_on, crew_on(cluster) as crew:
        for number in range(jobs):
            job = drawn(number)
            transfers = sent_freely([job], gate_settings(cluster), crew)
            counted = transfers[(transfers.iteration >= _FIRST) & (transfers.iteration < ITERATIONS - 1)]
            seconds = float((counted.ended_s - counted.granted_s).mean())
            compute_s = job.iteration.forward_s + job.iteration.backward_s
            rows.append((job.num_gpus, job.iteration.message_bytes, compute_s, seconds))
            notice(f"{number + 1} of {jobs} jobs alone")
    table = pd.DataFrame(rows, columns=["servers", "message_bytes", "compute_s", "transfer_s"])
    with replacing(path, "--measure") as file:
        table.to_csv(file, index=False, float_format="%.6g")


def fitted(table: pd.DataFrame) -> dict[str, float]:
    """Return per_byte_s and step_s with the least squares of relative errors."""
    steps = 2 * (table.servers - 1)
    amounts = np.column_stack([table.message_bytes * steps / table.servers, steps])
    found = np.linalg.lstsq(amounts / table.transfer_s.to_numpy()[:, None], np.ones(len(table)), rcond=None)[0]
    return {"per_byte_s": float(found[0]), "step_s": float(found[1])}


def main(arguments: Sequence[str]) -> None:
    """Measure if asked to, fit, print."""
    parser = argparse.ArgumentParser(description="All-reduces of jobs alone, which compute in between.")
    parser.add_argument("--measure", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=36)
    parser.add_argument("--file", type=Path, default=HERE / "measured" / "alone.csv")
    args = parser.parse_args(arguments)
    if args.measure:
        measure(args.measure, args.jobs)
    table = pd.read_csv(args.measure or args.file)
    found = fitted(table)
    print(f"{len(table)} jobs: {1e9 * found['per_byte_s']:.1f} ns a byte, {1e3 * found['step_s']:.2f} ms a step")
    moved = table.message_bytes * 2 * (table.servers - 1) / table.servers
    print((1e9 * table.transfer_s / moved).groupby(table.servers).describe().round(1).to_string())


if __name__ == "__main__":
    with reported():
        try:
            main(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(interrupted())
