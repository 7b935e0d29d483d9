"""How far sampled runs are from exact ones at the same GPUs and starts, by class of sending policy.

Each case is simulated exactly, then sampled as a replay of that run. ``python benchmarks/sampling_error.py`` measures
all cases on seeds that chose nothing in the method and writes ``sampling_error.csv``; ``--seeds`` takes others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import ddlsched
from ddlsched.comparisons.fields import seeds_of
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.results.result import Result
from ddlsched.results.sampled import sampling_class
from ddlsched.workload.length_draws import drawn
from ddlsched.workload.workload_specs import workload_of

TABLE = Path(__file__).with_name("sampling_error.csv")
SENDING = {
    "max-min": {"communication": "bounded-overlap:limit=1000", "contention": "max-min"},
    "free": {"communication": "bounded-overlap:limit=1000"},
    "SRSF(2)": {"communication": "bounded-overlap:limit=2"},
    "AdaDUAL": {"communication": "adadual"},
    "SRSF(1)": {"communication": "bounded-overlap:limit=1"},
}
ORDERS = ("srsf", "fifo")
PLACEMENTS = ("first-fit", "lwf")


@dataclass(frozen=True)
class Cluster:
    """A cluster and the jobs that load it."""

    servers: int
    workload: str
    paths: tuple[tuple[str, str], ...] = ()


CLUSTERS = {
    "64 GPUs": Cluster(16, "microsoft-160:scale=10"),
    "512 GPUs": Cluster(128, "stream:load=0.9,num_jobs=400,scale=1"),
    "64 GPUs, SGLB": Cluster(16, "microsoft-160:scale=10", (("topology", "leaf-spine"), ("path", "sglb"))),
}


def pair(sending: str, order: str, placement: str, cluster: str, seed: int) -> tuple[Result, Result]:
    """Return an exact run, and the sampled one at its GPUs and starts."""
    place = CLUSTERS[cluster]
    # Lengths differ by job, as the workload's models have few.
    jobs = drawn(workload_of(place.workload, seed), seed)
    given: dict[str, Any] = {"servers": place.servers, "exclusive": True, "order": order, **SENDING[sending]} | dict(
        place.paths
    )
    exact = ddlsched.simulate(jobs, placement=placement, **given)
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run.parquet"
        run.write_bytes(run_bytes(exact, {}, {}, stays=True))
        return exact, ddlsched.simulate(jobs, replay=run, sample=True, **given)


def measured(exact: Result, sampled: Result) -> dict[str, Any]:
    """Return the errors of a sampled run, as parts: of the average JCT, and of its jobs'."""
    jct_s, sampled_s = (result.jobs["jct_s"].to_numpy() for result in (exact, sampled))
    waits = exact.jobs["communication_s"].to_numpy() + exact.jobs["network_wait_s"].to_numpy() > 0
    errors = np.abs(sampled_s / jct_s - 1)[waits]
    return {
        "class": sampling_class(sampled),
        "average": sampled_s.mean() / jct_s.mean() - 1,
        "jobs": errors,
        "contended": sampled.contended_iterations,
        "computed": sampled.computed_iterations,
        "leapt": sampled.leapt_iterations,
    }


def cases(seeds: list[int], clusters: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the errors of each case on each seed, but for runs that leapt over nothing and are exact."""
    for cluster, sending, order, placement, seed in product(clusters, SENDING, ORDERS, PLACEMENTS, seeds):
        case = {"cluster": cluster, "sending": sending, "order": order, "placement": placement, "seed": seed}
        exact, sampled = pair(sending, order, placement, cluster, seed)
        if sampled.leapt_iterations:
            yield case | measured(exact, sampled)


def table_of(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return a row a group: how many runs, the errors in %, and what part of the contended iterations was computed."""
    rows = []
    for names, own in found.groupby(by, sort=False):
        jobs = np.concatenate(own["jobs"].tolist())
        rows.append(
            dict(zip(by, names if isinstance(names, tuple) else (names,), strict=True))
            | {
                "runs": len(own),
                "average_rms": 100 * np.sqrt((own["average"] ** 2).mean()),
                "average_bias": 100 * own["average"].mean(),
                "job_mean": 100 * jobs.mean(),
                "job_p95": 100 * np.quantile(jobs, 0.95),
                "job_worst": 100 * jobs.max(),
                "computed": 100 * own["computed"].sum() / own["contended"].sum(),
                "leapt": 100 * own["leapt"].sum() / own["contended"].sum(),
            }
        )
    return pd.DataFrame(rows).round(3)


def main(arguments: list[str]) -> None:
    """Measure, print, and write the table if all cases are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="101-105")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS))
    parser.add_argument("--out", type=Path, default=TABLE)
    given = parser.parse_args(arguments)
    found = pd.DataFrame(cases(seeds_of(given.seeds, "--seeds"), given.cluster or list(CLUSTERS)[:2]))
    by_class = table_of(found, ["class"])
    print(by_class.to_string(index=False))
    print(table_of(found, ["cluster"]).to_string(index=False))
    by_case = table_of(found, ["cluster", "sending", "order", "placement"])
    print(by_case.to_string(index=False))
    by_class.assign(cluster="all").merge(by_case, how="outer").to_csv(given.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
