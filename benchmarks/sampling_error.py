"""How far sampled runs are from exact ones at the same GPUs and starts, by class of run and of sending policy.

Each case is simulated exactly, then twice more with the same starts: sampled, and exactly with lengths that differ by a
hair, which shows what chaos alone makes of it (``hair``; ``beyond``: bias less that of such runs, with its interval).
A job whose GPUs are still taken at its start has spare ones of the same server, as a run of ``replay`` with ``spare``.
``python benchmarks/sampling_error.py`` measures
all cases on seeds that chose nothing in the method and writes ``sampling_error.csv``; ``--seeds`` takes others.
``--whole`` compares whole runs, in which placements differ, too: ten sampled ones of each seed with ten exact ones, all
of lengths that differ by a hair.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

import ddlsched
from algorithms.placement.replay import Replay
from ddlsched.comparisons.fields import seeds_of
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.results.metrics import sampling_class
from ddlsched.results.result import Result
from ddlsched.results.statistics import mean_interval, paired_change
from ddlsched.simulation import drawn
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.workload_files import workload_of

TABLE = Path(__file__).with_name("sampling_error.csv")
SENDING = {
    "max-min": {"communication": "bounded-overlap:limit=1000", "contention": "max-min"},
    "free": {"communication": "bounded-overlap:limit=1000"},
    "SRSF(2)": {"communication": "bounded-overlap:limit=2"},
    "AdaDUAL": {"communication": "adadual"},
    "SRSF(1)": {"communication": "bounded-overlap:limit=1"},
}
CLASSES = dict(zip(SENDING, ["free and max-min"] * 2 + ["SRSF(2) and AdaDUAL"] * 2 + ["SRSF(1)"], strict=True))
"""Classes of sending policies."""
ORDERS = ("srsf", "fifo")
PLACEMENTS = ("first-fit", "lwf")


@dataclass(frozen=True)
class Cluster:
    """A cluster and the jobs that load it."""

    servers: int
    workload: str
    paths: tuple[tuple[str, str], ...] = ()
    groups: bool = False


CLUSTERS = {
    "64 GPUs": Cluster(16, "microsoft-160:scale=10"),
    "512 GPUs": Cluster(128, "stream:load=0.9,num_jobs=400,scale=1"),
    "64 GPUs, groups": Cluster(16, "microsoft-160:scale=2", groups=True),
    "512 GPUs, long": Cluster(128, "stream:load=0.9,num_jobs=400,scale=10"),
    "64 GPUs, SGLB": Cluster(16, "microsoft-160:scale=10", (("topology", "leaf-spine"), ("path", "sglb"))),
}


def in_groups(job: Any) -> Any:
    """Return a job whose workers of the first half all-reduce each with one of the second, if they are even."""
    half, odd = divmod(job.num_gpus, 2)
    if odd:
        return job
    compute = ComputeTask(name="compute", duration_ns=job.dag.compute_ns)
    sent = {"message_bytes": job.iteration.message_bytes / half, "group": "pairs", "after": ("compute",)}
    pairs = {"pairs": tuple((place, place + half) for place in range(half))}
    return replace(job, iteration=IterationDag((compute, CollectiveTask(name="sum", kind="all-reduce", **sent)), pairs))


def runs_of(sending: str, order: str, placement: str, cluster: str, seed: int) -> list[Result]:
    """Return a case's runs: exact, sampled, and exact with other lengths."""
    place = CLUSTERS[cluster]
    # Lengths differ by job, as the workload's models have few.
    jobs = drawn(workload_of(place.workload, seed), seed)
    jobs = replace(jobs, jobs=tuple(map(in_groups, jobs))) if place.groups else jobs
    given: dict[str, Any] = {"order": order, **SENDING[sending]} | dict(place.paths)
    servers = ddlsched.Cluster(num_servers=place.servers, exclusive=True)
    return beside_exact(jobs, servers, placement, given, seed)


def beside_exact(
    jobs: ddlsched.Workload, servers: ddlsched.Cluster, placement: str, given: dict[str, Any], seed: int
) -> list[Result]:
    """Return an exact run of jobs, and with its starts the sampled one, and an exact one of other lengths."""
    exact = ddlsched.simulate(jobs, servers, placement=placement, **given)
    return [exact, *(at_its_starts(exact, given, how) for how in ({"sample": True}, {"draw": seed + 1}))]


def at_its_starts(run: Result, given: dict[str, Any], how: dict[str, Any]) -> Result:
    """Return a run of the same jobs with another's starts and servers: on spare GPUs where others are still taken."""
    spare = 8
    servers = replace(run.cluster, gpus_per_server=spare * run.cluster.gpus_per_server)
    with TemporaryDirectory() as folder:
        (file := Path(folder, "run.parquet")).write_bytes(run_bytes(run, {}, {}, stays=True))
        return ddlsched.simulate(run.workload, servers, placement=Replay(run=str(file), spare=spare), **given, **how)


def measured(exact: Result, sampled: Result, *others: Result) -> dict[str, Any]:
    """Return the errors of a sampled run, as parts: of the average JCT, that of exact runs, and of its jobs'."""
    jct_s, sampled_s, *others_s = (result.jobs["jct_s"].to_numpy() for result in (exact, sampled, *others))
    waits = exact.jobs["communication_s"].to_numpy() + exact.jobs["network_wait_s"].to_numpy() > 0
    errors = np.abs(sampled_s / jct_s - 1)[waits]
    return {
        "class": sampling_class(sampled),
        "average": sampled_s.mean() / jct_s.mean() - 1,
        "hair": float(np.mean([other_s.mean() / jct_s.mean() - 1 for other_s in others_s])) if others else 0.0,
        "jobs": errors.tolist(),
        "contended": sampled.contended_iterations,
        "computed": sampled.computed_iterations,
        "leapt": sampled.leapt_iterations,
    }


def case_of(sending: str, order: str, placement: str, cluster: str, seed: int) -> dict[str, Any]:
    """Return what a case is, and its errors."""
    case = {"sending": sending, "order": order, "placement": placement, "cluster": cluster, "seed": seed}
    return case | {"policies": CLASSES[sending]} | measured(*runs_of(**case))


def cases(seeds: list[int], clusters: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each case on each seed, one a core, but for runs that leapt over nothing and are exact."""
    given = product(clusters, SENDING, ORDERS, PLACEMENTS, seeds)
    found = Parallel(n_jobs=-1)(delayed(case_of)(*case, cluster, seed) for cluster, *case, seed in given)
    yield from (case for case in found if case["leapt"])


def table_of(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return a row a group: how many runs, the errors in %, and what part of the contended iterations was computed."""
    rows = []
    for names, own in found.groupby(by, sort=False):
        jobs = np.concatenate(own["jobs"].tolist())
        by_seed = own.groupby("seed")[["average", "hair"]].mean()
        beyond = mean_interval(100 * (by_seed["average"] - by_seed["hair"]))
        rows.append(
            dict(zip(by, names if isinstance(names, tuple) else (names,), strict=True))
            | {
                "runs": len(own),
                "average_rms": 100 * np.sqrt((own["average"] ** 2).mean()),
                "average_bias": 100 * own["average"].mean(),
                "hair_rms": 100 * np.sqrt((own["hair"] ** 2).mean()),
                "hair_bias": 100 * own["hair"].mean(),
                "beyond": beyond.mean,
                "beyond_low": beyond.low,
                "beyond_high": beyond.high,
                "job_p95": 100 * np.quantile(jobs, 0.95),
                "job_worst": 100 * jobs.max(),
                "computed": 100 * own["computed"].sum() / own["contended"].sum(),
            }
        )
    return pd.DataFrame(rows).round(3)


WHOLE, DRAWS = "microsoft-160:scale=2", 10
"""Jobs, on 64 GPUs, of which an exact run takes a second at most; and so many runs of each seed and policy."""


def whole_averages(seed: int) -> dict[str, list[list[float]]]:
    """Return average JCTs, s, by sending policy and draw: of exact runs, and of sampled ones."""
    jobs = drawn(workload_of(WHOLE, seed), seed)
    where: dict[str, Any] = {"servers": 16, "exclusive": True, "placement": "first-fit"}

    def averages(given: dict[str, Any], sample: bool) -> list[float]:
        runs = (ddlsched.simulate(jobs, **where, **given, sample=sample, draw=1 + draw) for draw in range(DRAWS))
        return [float(run.jobs["jct_s"].mean()) for run in runs]

    sending = [given for name, given in SENDING.items() if name != "max-min"]
    return {way: [averages(given, way == "sampled") for given in sending] for way in ("exact", "sampled")}


def whole_table(seeds: list[int]) -> pd.DataFrame:
    """Return how far sampled runs are from exact ones, in %, and in what part of pairs two policies come as there.

    ``mean`` is of means over the draws; ``rms`` of one run, ``draw`` of one exact run, beside one of another draw.
    """
    runs = [whole_averages(seed) for seed in seeds]
    exact, sampled = (np.array([row[way] for row in runs]) for way in ("exact", "sampled"))
    others, rows = np.roll(exact, 1, axis=2), []
    for place, sending in enumerate(name for name in SENDING if name != "max-min"):
        change = paired_change(sampled[:, place].mean(axis=1), exact[:, place].mean(axis=1))
        rms = {
            way: 100 * np.sqrt(((runs[:, place] / exact[:, place] - 1) ** 2).mean())
            for way, runs in {"rms": sampled, "draw": others}.items()
        }
        rows.append({"of": sending} | {name: 100 * getattr(change, name) for name in ("mean", "low", "high")} | rms)
    pairs = list(combinations(range(exact.shape[1]), 2))
    first = [np.array([runs[:, a] < runs[:, b] for a, b in pairs]) for runs in (exact, sampled, others)]
    alike, drawn_alike = (100 * (first[0] == other).mean(axis=(0, 2)) for other in first[1:])
    less = mean_interval(alike - drawn_alike)
    rows.append({"of": "pairs of policies in the same order", "rms": alike.mean(), "draw": drawn_alike.mean()})
    rows.append({"of": "the same, less draws'", "mean": less.mean, "low": less.low, "high": less.high})
    return pd.DataFrame(rows).round(2)


def main(arguments: list[str]) -> None:
    """Measure, print, and write the table if all cases are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", help="default: 101-110; of whole runs 201-250")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS))
    parser.add_argument("--out", type=Path, default=TABLE)
    given = parser.parse_args(arguments)
    seeds = seeds_of(given.seeds or ("201-250" if given.whole else "101-110"), "--seeds")
    if given.whole:
        print(whole_table(seeds).to_string(index=False, na_rep=""))
        return
    found = pd.DataFrame(cases(seeds, given.cluster or list(CLUSTERS)[:4]))
    plain, case = found[found["cluster"] != "64 GPUs, groups"], ["cluster", "sending", "order", "placement"]
    groups = ["policies"], ["cluster", "class"], ["cluster", "policies"]
    tables = [table_of(found, ["class"]), *(table_of(plain, by) for by in groups), table_of(found, case)]
    print(*(table.to_string(index=False) for table in tables), sep="\n")
    pd.concat(tables).to_csv(given.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
