"""The 64-GPU experiment of the Ada-SRSF paper, with bytes conserved and with the published simulator's accounting.

python experiments/contention_64gpu/run.py            the abstract's claims, on a few job sets
python experiments/contention_64gpu/run.py --full     all tables, on 100 job sets
python experiments/contention_64gpu/run.py --full --sample --out DIR      the same, runs at full size sampled
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ddlsched.comparisons.charts.jct_charts import Change, changes
from ddlsched.comparisons.charts.style import PALETTE, save
from ddlsched.comparisons.sweeps.sweep import Run, Sweep
from ddlsched.results.paired_comparison import (
    METRICS,
    compare_runs,
    interval_of,
    interval_text,
    markdown,
    readable,
    with_holm,
)
from ddlsched.results.statistics import Interval, by_seed, paired_ratio
from experiments.commands import new_parser, sweep_command, write_tables

PUBLISHED_FILE = Path(__file__).resolve().with_name("published_accounting.py")
AUTHORS = {"load_per_byte_s": 7.8125e-9}
"""The authors' code counts communication in a GPU's load at 1 GbE's b, also on 10 GbE."""

ADA = {"scheduler": "ada-srsf"} | AUTHORS
FF = ADA | {"placement": "first-fit"}
PUBLISHED = {"communication": f"{PUBLISHED_FILE}:PublishedAdaDual", "contention": f"{PUBLISHED_FILE}:PublishedRates"}
SHARE = "faster_than_alone"
FULL_SIZE, SMALL, ARTEFACT = "full size, bytes conserved", "1/100, bytes conserved", "1/100, published accounting"
COLOURS = {FULL_SIZE: PALETTE["blue"], SMALL: PALETTE["sky"], ARTEFACT: PALETTE["grey"]}
QUICK_SEEDS, FULL_SEEDS = 6, 100


@dataclass(frozen=True, kw_only=True)
class Table:
    """Policies that are compared on the same job sets; ``scale`` shortens iterations and arrivals alike."""

    name: str
    title: str
    baseline: str
    policies: dict[str, dict[str, Any]]
    scale: float = 1.0

    def runs(self, seeds: int, sample: bool = False) -> Iterator[Run]:
        """Yield the runs of seeds 1, 2, ...; those at full size may be sampled."""
        small = self.scale < 1.0
        for seed in range(1, seeds + 1):
            for policy, options in self.policies.items():
                yield Run(
                    labels={"table": self.name, "policy": policy},
                    workload=f"microsoft-160:scale={self.scale}",
                    seed=seed,
                    options=options | ({"timeline": True} if small else {"sample": True} if sample else {}),
                    measures=(f"{PUBLISHED_FILE}:{SHARE}",) if small else (),
                )


PLACEMENT = Table(
    name="placement",
    title="Placement, under Ada-SRSF",
    baseline="FF",
    policies={
        "RAND": ADA | {"placement": "random"},
        "FF": FF,
        "LS": ADA | {"placement": "list-scheduling"},
        "LWF-1": ADA,
    },
)
KAPPA = Table(
    name="kappa",
    title="κ of LWF-κ, under Ada-SRSF",
    baseline="κ=1",
    policies={f"κ={kappa}": ADA | {"placement": f"lwf:kappa={kappa}"} for kappa in (1, 2, 4, 8, 32)},
)
COMMUNICATION = Table(
    name="communication",
    title="Communication, under LWF-1",
    baseline="SRSF(1)",
    policies={
        **{f"SRSF({n})": ADA | {"communication": f"bounded-overlap:limit={n}"} for n in (1, 2, 3)},
        "Ada-SRSF": ADA,
        "Preemptive, by service": ADA | {"communication": "preemptive:by=service"},
        "Preemptive, by bytes": ADA | {"communication": "preemptive:by=bytes"},
        "Preemptive, by service per GPU": ADA | {"communication": "preemptive:by=service-per-gpu"},
    },
)
OWN_B = {"load_per_byte_s": None}
LOAD = Table(
    name="load",
    title="Time of a byte (b) in LWF-1's GPU load: 1 GbE's (authors') or 10 GbE's",
    baseline="Ada-SRSF, authors' b",
    policies={
        "Ada-SRSF, authors' b": ADA,
        "Ada-SRSF, 10 GbE's b": ADA | OWN_B,
        "SRSF(1), authors' b": COMMUNICATION.policies["SRSF(1)"],
        "SRSF(1), 10 GbE's b": COMMUNICATION.policies["SRSF(1)"] | OWN_B,
    },
)
ACCOUNTING = Table(
    name="accounting",
    title="Both accountings, 1/100 scale, times shown x 100",
    baseline="SRSF(1)",
    scale=0.01,
    policies={
        **{policy: COMMUNICATION.policies[policy] for policy in ("SRSF(1)", "SRSF(2)", "Ada-SRSF")},
        "Ada-SRSF, published": ADA | PUBLISHED,
        "FF": FF,
        "FF, published": FF | PUBLISHED,
    },
)
TABLES = (PLACEMENT, KAPPA, COMMUNICATION, LOAD, ACCOUNTING)
CLAIMED = {PLACEMENT.name: ("FF", "LWF-1"), COMMUNICATION.name: ("SRSF(1)", "SRSF(2)", "Ada-SRSF"), ACCOUNTING.name: ()}
"""What the abstract's claims are about: policies of tables, all of them if none are named."""


class Measured:
    """A table's runs, and what is told of them."""

    def __init__(self, table: Table, done: Sweep) -> None:
        runs = done.summaries()
        self.table = table
        self.runs = runs[runs["table"] == table.name].reset_index(drop=True)
        times = [metric for metric in METRICS if metric.endswith("_s")]
        self.runs[times] /= table.scale

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """Means and paired changes with intervals: the table's CSV file."""
        comparison = compare_runs(self.runs, baseline=self.table.baseline)
        if self.table.scale == 1.0:
            return comparison
        share = compare_runs(self.runs, baseline=self.table.baseline, metrics=[SHARE])
        return with_holm(pd.concat([comparison, share], ignore_index=True))

    @cached_property
    def per_seed(self) -> pd.DataFrame:
        """The average JCT (s) of each run: a row a seed, a column a policy."""
        return by_seed(self.runs, "average_jct_s")

    def change(self, policy: str, baseline: str) -> Interval:
        """Return the paired change of the average JCT against any of the policies, %."""
        comparison = compare_runs(self.runs, baseline=baseline, metrics=["average_jct_s"])
        return interval_of(comparison, policy, "average_jct_s", change=True).scaled(100.0)


def quick_tables() -> list[Table]:
    """Return what of the tables the abstract's claims are about."""
    tables = [table for table in TABLES if table.name in CLAIMED]
    kept = [CLAIMED[table.name] or tuple(table.policies) for table in tables]
    return [
        replace(table, policies={policy: table.policies[policy] for policy in policies})
        for table, policies in zip(tables, kept, strict=True)
    ]


def came_out(measured: dict[str, Measured]) -> str:
    """Return what came of the abstract's claims, a sentence each with its condition."""
    placement, communication, accounting = (measured[name] for name in CLAIMED)
    ratio = paired_ratio(placement.per_seed["FF"], placement.per_seed["LWF-1"])
    conserved = communication.change("Ada-SRSF", "SRSF(1)")
    published = accounting.change("Ada-SRSF, published", "SRSF(1)")
    faster = interval_of(accounting.comparison, "Ada-SRSF, published", SHARE).mean
    full = f"over {len(placement.per_seed)} sets of 160 jobs on 64 GPUs and 10 Gbit/s"
    return (
        f"Jobs take {interval_text(ratio, decimals=2)} times as long on average with first-fit placement as with "
        f"LWF-1, {full}; the paper's abstract says up to 1.59 times.\n"
        f"Where each transfer moves all its bytes, Ada-SRSF changes the average JCT of SRSF(1) by "
        f"{interval_text(conserved, sign=True)} %, {full}; the abstract says -20.1 %.\n"
        f"With the accounting of the paper's simulator it changes it by {interval_text(published, sign=True)} %, but "
        f"{100 * faster:.0f} % of its transfers then end sooner than the network can send their bytes, over "
        f"{len(accounting.per_seed)} sets at 1/100 of the size.\n"
    )


def abstract(measured: dict[str, Measured]) -> tuple[str, list[Change]]:
    """Return the abstract's three claims beside what is measured, as a table and as rows of a chart."""
    placement, communication, accounting = (measured[name] for name in CLAIMED)
    ratios = {
        FULL_SIZE: paired_ratio(placement.per_seed["FF"], placement.per_seed["LWF-1"]),
        SMALL: paired_ratio(accounting.per_seed["FF"], accounting.per_seed["Ada-SRSF"]),
        ARTEFACT: paired_ratio(accounting.per_seed["FF, published"], accounting.per_seed["Ada-SRSF, published"]),
    }
    rows = [{"claim": "average JCT of FF / LWF-1", "abstract": "up to 1.59"}]
    rows[0] |= {name: interval_text(ratio, decimals=2) for name, ratio in ratios.items()}
    lwf = {
        FULL_SIZE: placement.change("LWF-1", "FF"),
        SMALL: accounting.change("Ada-SRSF", "FF"),
        ARTEFACT: accounting.change("Ada-SRSF, published", "FF, published"),
    }
    chart = [Change("LWF-1\nagainst FF", lwf, claimed=100.0 * (1 / 1.59 - 1))]
    for baseline, claimed in (("SRSF(1)", -20.1), ("SRSF(2)", -36.7)):
        found = {
            FULL_SIZE: communication.change("Ada-SRSF", baseline),
            SMALL: accounting.change("Ada-SRSF", baseline),
            ARTEFACT: accounting.change("Ada-SRSF, published", baseline),
        }
        cells = {name: interval_text(change, sign=True) for name, change in found.items()}
        rows.append({"claim": f"Ada-SRSF against {baseline}, average JCT, %", "abstract": f"{claimed}"} | cells)
        chart.append(Change(f"Ada-SRSF\nagainst {baseline}", found, claimed=claimed))
    seeds = f"{len(placement.per_seed)} seeds at full size, {len(accounting.per_seed)} at 1/100"
    return f"## The abstract's claims (mean [95 % interval]; {seeds})\n\n{markdown(rows)}\n", chart


def report(done: Sweep, tables: Sequence[Table], out: Path) -> None:
    """Write tables and a chart of the claims, and print what came out; if all tables are there, these too."""
    measured = {table.name: Measured(table, done) for table in tables}
    if len(tables) == len(TABLES):
        for part in measured.values():
            print(f"## {part.table.title}\n\n{readable(part.comparison, baseline=part.table.baseline)}\n")
    write_tables(out / "tables", {name: part.comparison for name, part in measured.items()})
    everything = pd.concat([part.per_seed.add_prefix(f"{name}: ") for name, part in measured.items()], axis=1).round(9)
    write_tables(out / "tables", {"average_jct_s_per_seed": everything}, index=True, float_format=None)
    text, claims = abstract(measured)
    drawn = changes(claims, axis="Change of the average JCT (%)", claim="the paper's abstract", colour=COLOURS)
    charts = save(drawn, out / "charts" / "abstract")
    print(came_out(measured), text, "Tables:", *sorted((out / "tables").glob("*.csv")), "Charts:", *charts, sep="\n")


def main() -> int:
    """Run what is missing, then report."""
    parser = new_parser(__doc__, "contention_64gpu")
    parser.add_argument("--full", action="store_true", help=f"all tables, on {FULL_SEEDS} seeds")
    parser.add_argument("--seeds", type=int, metavar="N", help="all tables, on seeds 1 to N")
    parser.add_argument("--sample", action="store_true", help="sample runs at full size")

    def seeds_of(given: argparse.Namespace) -> int | None:
        return given.seeds or (FULL_SEEDS if given.full else None)

    def tables(given: argparse.Namespace) -> Sequence[Table]:
        return quick_tables() if seeds_of(given) is None else TABLES

    def runs(given: argparse.Namespace) -> list[Run]:
        seeds = seeds_of(given) or QUICK_SEEDS
        return [run for table in tables(given) for run in table.runs(seeds, given.sample)]

    return sweep_command(parser, runs, lambda done, given: report(done, tables(given), given.out))


if __name__ == "__main__":
    sys.exit(main())
