"""The smaller claims of neighbours, each with a short run.

python experiments/smaller_claims/run.py             20 seeds a claim, jobs at full size

Prints a table a claim and writes them to OUT/tables. Finished runs are kept in OUT/runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlsched import Cluster, Disturbances
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.comparisons.tuning import tune
from ddlsched.engine.stop_prices import StopPrices
from ddlsched.results.paired_comparison import compare_runs, interval_text, readable
from ddlsched.results.statistics import Interval
from experiments.commands import sweep_and_report

HERE = Path(__file__).resolve().parent
JOBS = HERE / "jobs.py"
FREE = {"communication": "bounded-overlap:limit=100000", "contention": "max-min", "order": "fifo"}
ALONE = {"cluster": Cluster(exclusive=True)}
CELLS = FREE | ALONE | {"placement": "hived:top_servers=1"}
"""Cells up to servers: on a star no servers are neighbours."""
STRICT = {"placement": "in-order:placement=hived:top_servers=1"}
STREAM = "stream:num_jobs=200,load={load}"
AWAY_S = 600.0
HELD_OUT = range(101, 121)
TIMERS = ("placement.server_s=0:1000", "placement.rack_s=0:1000")
TIMED_NETWORKS = {"star": "star", "leaf-spine, 4:1": "leaf-spine:servers_per_leaf=4,oversubscription=4"}
"""Where Dally's timers are tuned: a star has no racks, so that the rack timer can do nothing good there."""
UNTUNED = "delay:server_s=60,rack_s=60"
BESIDE_TIMERS = {
    "HiveD's cells": "hived",
    "cells up to servers": CELLS["placement"],
    "whole racks": "whole-racks:servers_per_rack=4",
}
"""Placements without timers that know as little."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A claim: the jobs on which policies are compared, the first of them the baseline."""

    name: str
    workloads: Mapping[str, str]
    policies: Mapping[str, Mapping[str, Any]]
    metric: str = "average_jct_s"
    measures: tuple[str, ...] = ()
    first_seed: int = 1

    def runs(self, seeds: int) -> list[Run]:
        """Return its runs; a policy's jobs are those of its own name, or of ""."""
        return [
            Run(
                labels={"study": self.name, "policy": policy},
                workload=self.workloads.get(policy, self.workloads.get("", "")),
                seed=seed,
                options=dict(options),
                measures=self.measures,
            )
            for policy, options in self.policies.items()
            for seed in range(self.first_seed, self.first_seed + seeds)
        ]


def studies(maintained: Mapping[str, Path], timers: Mapping[str, str]) -> list[Study]:
    """Return the claims that runs decide.

    ``maintained`` are the tables of servers that leave, warned or not; ``timers`` the tuned ones by network.
    """
    steady = {"steady": True}
    predicted = {
        f"SRTF, lengths {error:g} off": CELLS | steady | {"order": "srtf", "disturbances": _misjudged(error)}
        for error in (0.0, 0.1, 0.3, 1.0)
    }
    taken = {"disturbances": StopPrices().disturbances()}
    rarely = {"disturbances": replace(StopPrices().disturbances(), checkpoint_iterations=1000)}
    network = {gbps: f"leaf-spine:nic_gbps={gbps},oversubscription=2" for gbps in (10, 100)}
    return [
        Study(
            name="QSSF with history, load 0.95",
            workloads={"": f"{JOBS}:helios_like:load=0.95,longer=90"},
            policies={
                "FIFO, strict": CELLS | steady | STRICT,
                "QSSF, strict": CELLS | steady | STRICT | {"order": "qssf"},
                "SRSF, strict": CELLS | steady | STRICT | {"order": "srsf"},
                "FIFO that skips": CELLS | steady,
                "QSSF that skips": CELLS | steady | {"order": "qssf"},
            },
        ),
        Study(
            name="A-SRPT with predicted lengths",
            workloads={"": STREAM.format(load=0.9)},
            policies={"FIFO that skips": CELLS | steady, **predicted},
        ),
        *(
            Study(
                name=f"Dally's timers, {network}",
                workloads={"": STREAM.format(load=0.8)},
                policies={
                    policy: {**_timed(network), "placement": placement}
                    for policy, placement in {"timers of 60 s": UNTUNED, "tuned timers": tuned, **BESIDE_TIMERS}.items()
                },
                first_seed=HELD_OUT.start,
            )
            for network, tuned in timers.items()
        ),
        *(
            Study(
                name=f"maintenance, {name}",
                workloads={"": STREAM.format(load=0.7)},
                policies={
                    policy: CELLS | steady | {"placement": placement} | differs
                    for policy, differs in {
                        "none": {},
                        "with redeployment": taken | {"capacity": str(maintained["warned"])},
                        "checkpoints each 1,000 iterations": rarely | {"capacity": str(maintained["unwarned"])},
                    }.items()
                },
            )
            for name, placement in (("cells of up to 16 servers", "hived"), ("cells up to servers", CELLS["placement"]))
        ),
        *(
            Study(
                name=f"ACCO, {gbps} Gbit/s",
                workloads={
                    "one after the other": f"{JOBS}:hidden:per_byte_s={12e-9 / gbps:g}",
                    "four buckets": f"{JOBS}:hidden:per_byte_s={12e-9 / gbps:g},buckets=4",
                    "hidden": f"{JOBS}:hidden:per_byte_s={12e-9 / gbps:g},hides=true",
                },
                policies=dict.fromkeys(
                    ("one after the other", "four buckets", "hidden"),
                    CELLS | steady | {"cluster": Cluster(exclusive=True, topology=network[gbps]), "placement": "hived"},
                ),
            )
            for gbps in (10, 100)
        ),
        Study(
            name="ensembles",
            workloads={"": f"{JOBS}:ensembles:load=1.3"},
            policies={
                "FIFO that skips": CELLS,
                "SRTF": CELLS | {"order": "srtf"},
                "LAS": CELLS | {"order": "las"},
            },
            metric="ensemble_s",
            measures=(f"{JOBS}:ensemble_times",),
        ),
    ]


def _timed(network: str) -> dict[str, Any]:
    """Return what runs with timers have in common on one of the networks."""
    return {**FREE, "cluster": Cluster(exclusive=True, topology=TIMED_NETWORKS[network]), "steady": True}


def _misjudged(error: float) -> Disturbances:
    return Disturbances(prediction_error=error)


def rows(claims: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row a policy of the table of claims, as texts."""
    found = []
    for row in claims.to_dict("records"):
        mean = Interval(row["mean"], row["low"], row["high"], row["seeds"])
        change = Interval(row["change"], row["change_low"], row["change_high"], row["seeds"])
        is_baseline = row["policy"] == row["baseline"]
        against = "" if is_baseline else interval_text(change.scaled(100.0), sign=True)
        texts = {"study": row["study"], "policy": row["policy"], "mean (s)": interval_text(mean, decimals=2)}
        found.append(texts | {"against the study's first, %": against})
    return found


def maintenance(folder: Path) -> dict[str, Path]:
    """Write when servers are there if each is away once, one after the other, warned or not."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for kind in ("warned", "unwarned"):
        rows = []
        for server in range(Cluster.num_servers):
            away_s = 1000.0 + AWAY_S * server
            rows.append({"server": server, "join_s": 0, "leave_s": away_s, "warned": int(kind == "warned")})
            rows.append({"server": server, "join_s": away_s + AWAY_S, "leave_s": "", "warned": 0})
        paths[kind] = folder / f"{kind}.csv"
        pd.DataFrame(rows).to_csv(paths[kind], index=False)
    return paths


def tuned_timers(out: Path, processes: int) -> pd.DataFrame:
    """Return what tuning Dally's two timers gains on each network, on the tuning and on held-out seeds."""
    return pd.DataFrame([_tuned_on(network, out, processes) for network in TIMED_NETWORKS])


def _tuned_on(network: str, out: Path, processes: int) -> dict[str, Any]:
    found = tune(
        STREAM.format(load=0.8),
        {"placement": UNTUNED},
        ranges=TIMERS,
        trials=12,
        seeds=range(1, 4),
        held_out=HELD_OUT,
        options=_timed(network),
        folder=out / "tuning" / network.split(",")[0],
        processes=processes,
    )
    low, high = found.held_out_interval or (np.nan, np.nan)
    row = {"network": network, "timers": found.policies["placement"], "tuning_change": found.tuning_change}
    return row | {"change": found.held_out_change, "change_low": low, "change_high": high, "seeds": len(HELD_OUT)}


def gradient_coding(workers: int = 8) -> pd.DataFrame:
    """Return the mean time of an iteration's compute over that without stragglers, plain and with codes, exactly.

    Each GPU is slow with probability ``share``, and then takes ``slowdown`` times as long. A code that survives s
    stragglers gives each worker s + 1 parts in place of one, and waits for all but the s slowest.
    """
    from scipy.stats import binom

    rows = []
    for share in (0.01, 0.05, 0.2):
        for slowdown in (1.5, 2.0, 4.0):
            row: dict[str, float] = {"share": share, "slowdown": slowdown}
            for survives in (0, 1, 2):
                too_many = binom.sf(survives, workers, share)
                row[f"code_{survives}"] = (survives + 1) * (1 + too_many * (slowdown - 1))
            rows.append(row)
    return pd.DataFrame(rows)


def energy(worth: pd.DataFrame) -> pd.DataFrame:
    """Return the least energy of a step of each cluster, over an A100's, by the power of the rest of a node, watts.

    ``worth`` is the table of ``experiments/cluster_design``, made with 400 W a GPU for the rest and 1.2 for the
    building; the latter multiplies all alike and changes no ratio.
    """
    seconds = worth["gpus"] * worth["step_s"]
    gpu_watts = worth["energy_j"] / (1.2 * seconds) - 400.0
    rows = []
    for rest_w in (0.0, 200.0, 400.0, 800.0):
        least = (seconds * (gpu_watts + rest_w)).groupby(worth["cluster"], sort=False).min()
        rows.append({"rest_w": rest_w, **(least / least["a100-80"]).to_dict()})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Report:
    """Where tables go, and those that need no runs."""

    out: Path
    asked: list[Study]
    others: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def __call__(self, done: Sweep) -> None:
        """Print the tables and write them as CSV files."""
        (self.out / "tables").mkdir(parents=True, exist_ok=True)
        runs = done.summaries()
        compared = []
        for study in self.asked:
            baseline = next(iter(study.policies))
            table = compare_runs(runs[runs["study"] == study.name], baseline=baseline, metrics=[study.metric])
            print(f"## {study.name}\n\n{readable(table, baseline=baseline)}\n")
            compared.append(table.assign(study=study.name, baseline=baseline))
        tables = {"claims": pd.concat(compared, ignore_index=True), **self.others}
        for name, table in tables.items():
            table.to_csv(self.out / "tables" / f"{name}.csv", index=False, float_format="%.5g", lineterminator="\n")
        for name, table in self.others.items():
            print(f"## {name}\n\n{table.to_string(index=False, float_format='{:.3g}'.format)}\n")


def main() -> int:
    """Run what is missing, print the tables and write them as CSV files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("results/smaller_claims"), metavar="DIR")
    parser.add_argument("--processes", type=int, default=-1, metavar="N", help="default: one a core")
    given = parser.parse_args()
    timers = tuned_timers(given.out, given.processes)
    asked = studies(maintenance(given.out.resolve() / "servers"), timers.set_index("network")["timers"])
    worth = pd.read_csv(HERE.parent / "cluster_design" / "expected" / "worth.csv")
    others = {
        "timers": timers,
        "gradient_coding": gradient_coding(),
        "energy": energy(worth),
    }
    runs = [run for study in asked for run in study.runs(given.seeds)]
    return sweep_and_report(runs, given.out / "runs", given.processes, Report(given.out, asked, others))


if __name__ == "__main__":
    sys.exit(main())
