"""How far sampled runs are from exact ones at the same GPUs and starts, by class of sending policy.

Each case is simulated exactly, then sampled as a replay of that run. ``python benchmarks/sampling_error.py`` measures
all cases on seeds that chose nothing in the method and writes ``sampling_error.csv``; ``--seeds`` takes others.
``--hair`` measures exact runs whose lengths differ by a hair, in place of sampled ones: what chaos makes of them.
``--whole`` compares whole runs, in which placements differ, too: sampled ones with exact ones, beside exact ones whose
lengths differ by a hair. ``--kept FILE`` keeps what is measured, and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import ddlsched
from ddlsched.comparisons.fields import seeds_of
from ddlsched.comparisons.sweeps.stored_runs import run_bytes
from ddlsched.results.draws import sampling_class
from ddlsched.results.result import Result
from ddlsched.results.statistics import paired_change
from ddlsched.simulation import drawn
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


def pair(
    sending: str, order: str, placement: str, cluster: str, seed: int, hair: bool = False
) -> tuple[Result, Result]:
    """Return an exact run, and at its GPUs and starts the sampled one, or an exact one of other lengths."""
    place = CLUSTERS[cluster]
    # Lengths differ by job, as the workload's models have few.
    jobs = drawn(workload_of(place.workload, seed), seed)
    given: dict[str, Any] = {"servers": place.servers, "exclusive": True, "order": order, **SENDING[sending]} | dict(
        place.paths
    )
    exact = ddlsched.simulate(jobs, placement=placement, **given)
    again = drawn(jobs, seed + 1) if hair else jobs
    return exact, at_same_places(exact, again, sample=not hair, **given)


def at_same_places(exact: Result, *jobs: Any, **given: Any) -> Result:
    """Return a run of jobs at the GPUs and starts of another."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run.parquet"
        run.write_bytes(run_bytes(exact, {}, {}, stays=True))
        return ddlsched.simulate(*jobs, replay=run, **given)


def measured(exact: Result, sampled: Result) -> dict[str, Any]:
    """Return the errors of a sampled run, as parts: of the average JCT, and of its jobs'."""
    jct_s, sampled_s = (result.jobs["jct_s"].to_numpy() for result in (exact, sampled))
    waits = exact.jobs["communication_s"].to_numpy() + exact.jobs["network_wait_s"].to_numpy() > 0
    errors = np.abs(sampled_s / jct_s - 1)[waits]
    return {
        "class": sampling_class(sampled),
        "average": sampled_s.mean() / jct_s.mean() - 1,
        "jobs": errors.tolist(),
        "contended": sampled.contended_iterations,
        "computed": sampled.computed_iterations,
        "leapt": sampled.leapt_iterations,
    }


class Kept:
    """What was measured, a line each in a file, if there is one: what is there is not measured again."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file and file.exists() else []
        self._known: dict[str, Any] = dict(map(json.loads, lines))

    def of(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return what is kept, or is measured now."""
        if what not in self._known:
            self._known[what] = measure()
            if self._file:
                with self._file.open("a") as file:
                    file.write(json.dumps([what, self._known[what]]) + "\n")
        return self._known[what]


def cases(seeds: list[int], clusters: list[str], kept: Kept, hair: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the errors of each case on each seed, but for runs that leapt over nothing and are exact."""
    for cluster, sending, order, placement, seed in product(clusters, SENDING, ORDERS, PLACEMENTS, seeds):
        case = {"cluster": cluster, "sending": sending, "order": order, "placement": placement, "seed": seed}
        given = sending, order, placement, cluster, seed, hair
        found = kept.of(f"{given}", lambda given=given: measured(*pair(*given)))  # type: ignore[misc]
        if hair or found["leapt"]:
            yield case | found


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


def bias_by_noise(found: pd.DataFrame, by: list[str]) -> str:
    """Return how biases of groups go with the mean squares of their jobs' errors."""
    noise = found["jobs"].map(lambda jobs: np.square(jobs).mean())
    means = found.assign(noise=noise).groupby(by)[["noise", "average"]].mean()
    slope = np.polyfit(means["noise"], means["average"], 1)[0]
    return f"bias by mean square of jobs' errors: correlation {means.corr().iloc[0, 1]:.2f}, slope {slope:.2f}"


WHOLE = "microsoft-160:scale=2"
"""Twice full size, on 64 GPUs: exact runs take a second at most."""
WHOLE_SEEDS = "201-250"


def whole_averages(seed: int) -> dict[str, dict[str, float]]:
    """Return average JCTs, s, by sending policy: of exact runs, of sampled ones, and of a draw of exact ones."""
    jobs = drawn(workload_of(WHOLE, seed), seed)
    ways: dict[str, dict[str, Any]] = {
        "exact": {"workload": jobs},
        "sampled": {"workload": jobs, "sample": True},
        "draw": {"workload": drawn(jobs, seed + 1)},
    }
    where: dict[str, Any] = {"servers": 16, "exclusive": True, "placement": "first-fit"}
    return {
        way: {
            sending: float(ddlsched.simulate(**where, **given, **SENDING[sending]).jobs["jct_s"].mean())
            for sending in SENDING
            if sending != "max-min"
        }
        for way, given in ways.items()
    }


def whole_runs(seeds: list[int], kept: Kept) -> dict[str, pd.DataFrame]:
    """Return :func:`whole_averages`, a row a seed, a column a sending policy."""
    found = [kept.of(f"{WHOLE} {seed}", lambda seed=seed: whole_averages(seed)) for seed in seeds]  # type: ignore[misc]
    return {way: pd.DataFrame([row[way] for row in found], index=seeds) for way in found[0]}


def whole_table(found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return how far sampled runs, and draws, are from exact runs, in %, and how often they order policies alike."""
    exact, rows = found["exact"], []
    pairs = list(combinations(exact.columns, 2))
    for way in ("sampled", "draw"):
        other = found[way]
        for sending in exact:
            change = paired_change(other[sending], exact[sending])
            rms = np.sqrt(((other[sending] / exact[sending] - 1) ** 2).mean())
            values = [100 * value for value in (change.mean, change.low, change.high, rms)]
            rows.append({"runs": way, "of": sending} | dict(zip(("mean", "low", "high", "rms"), values, strict=True)))
        alike = [((other[a] < other[b]) == (exact[a] < exact[b])).mean() for a, b in pairs]
        rows.append({"runs": way, "of": "pairs of policies in the same order", "mean": 100 * np.mean(alike)})
    return pd.DataFrame(rows).round(2)


def main(arguments: list[str]) -> None:
    """Measure, print, and write the table if all cases are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", help="default: 101-105; of whole runs 201-250")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--hair", action="store_true", help="exact runs of other lengths; no table is written")
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS))
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="what is measured, a line each; it is gone on from")
    given = parser.parse_args(arguments)
    kept = Kept(given.kept)
    seeds = seeds_of(given.seeds or (WHOLE_SEEDS if given.whole else "101-105"), "--seeds")
    if given.whole:
        print(whole_table(whole_runs(seeds, kept)).to_string(index=False, na_rep=""))
        return
    found = pd.DataFrame(cases(seeds, given.cluster or list(CLUSTERS)[:2], kept, given.hair))
    by_class = table_of(found, ["class"])
    print(by_class.to_string(index=False))
    print(table_of(found, ["cluster"]).to_string(index=False))
    case = ["cluster", "sending", "order", "placement"]
    by_case = table_of(found, case)
    print(by_case.to_string(index=False))
    print(bias_by_noise(found, case))
    if given.hair:
        return
    by_class.assign(cluster="all").merge(by_case, how="outer").to_csv(given.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
