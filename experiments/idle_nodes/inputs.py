"""The idle nodes and training jobs of the experiment: the measured ones where they are, else those that ship here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from replay import TrainingJob

from ddlsched.cluster.idle_trace import IdleTrace, read_fragments
from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, cell_time_s, cell_whole, csv_rows, readable
from ddlsched.workload.trainers import rates_at

HERE = Path(__file__).resolve().parent
SIZES = (1, 2, 4, 8, 16, 32, 64)
START_S = 72_743.0
"""Where the authors' replayer begins in the measured fragments: after their first 1,000 rows."""
NODES = 1024


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is replayed; time 0 is the beginning of the replay. ``idle`` is of the first 1024 nodes."""

    name: str
    idle: IdleTrace
    all_nodes: IdleTrace
    hpo: list[TrainingJob]
    imagenet: list[TrainingJob]


def load(folder: Path | None) -> Inputs:
    """Return the measured inputs if ``folder`` has them, else the generated ones.

    Raises
    ------
    InputError
        A folder was given and a file in it is missing or wrong.
    """
    if folder is None:
        idle = read_fragments(HERE / "generated" / "idle_fragments.csv")
        begin_s, name = 6 * 3600.0, "generated"
        folder = HERE / "generated"
    else:
        idle, begin_s, name = read_fragments(folder / "idle_fragments.parquet"), START_S, "measured"
    jobs = [read_trainers(folder / f"trainers_{kind}.csv", begin_s) for kind in ("hpo", "imagenet")]
    all_nodes = idle.since(begin_s)
    return Inputs(name=name, idle=all_nodes.of_nodes(0, NODES), all_nodes=all_nodes, hpo=jobs[0], imagenet=jobs[1])


def read_trainers(path: Path, begin_s: float) -> list[TrainingJob]:
    """Read a table of trainers, one job a row, in the order of submission."""
    return readable(path, "a table of trainers (CSV)", lambda path: _read(path, begin_s))


def _read(path: Path, begin_s: float) -> list[TrainingJob]:
    speeds = tuple(f"samples_per_s_{size}" for size in SIZES)
    columns = ("trainer", "submit_s", "min_nodes", "max_nodes", "scale_up_s", "scale_down_s", "samples", *speeds)
    jobs = []
    for where, row in csv_rows(path, columns, ()):
        points = [(size, cell_number(where, name, row[name])) for size, name in zip(SIZES, speeds, strict=True)]
        jobs.append(
            TrainingJob(
                job_id=row["trainer"],
                submit_s=max(cell_time_s(where, "submit_s", row["submit_s"]) - begin_s, 0.0),
                samples=cell_number(where, "samples", row["samples"]),
                rates=rates_at(points, cell_whole(where, "max_nodes", row["max_nodes"], at_most=SIZES[-1])),
                min_nodes=cell_whole(where, "min_nodes", row["min_nodes"], at_most=SIZES[-1]),
                scale_up_s=cell_time_s(where, "scale_up_s", row["scale_up_s"]),
                scale_down_s=cell_time_s(where, "scale_down_s", row["scale_down_s"]),
            )
        )
    if not jobs:
        raise InputError(f"{path}: holds no trainer; expected at least one row")
    return sorted(jobs, key=lambda job: job.submit_s)


def shared_evenly(jobs: Sequence[TrainingJob], mean_idle: float, most_jobs: int) -> float:
    """Return the samples/s of ``most_jobs`` trainers that share the mean idle nodes evenly: U's denominator."""
    mean = np.mean([job.rates for job in jobs], axis=0)
    return float(most_jobs * np.interp(mean_idle / most_jobs, np.arange(len(mean)), mean))
