"""Waits in Philly's virtual clusters, as published and as quotas would make them.

    python experiments/datacentre_traces/virtual_clusters.py    six minutes of CPU

Prints how many waits are over 10 and over 60 minutes in each virtual cluster, and writes that to OUT/tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from parts import FILES
from scipy.stats import spearmanr

from ddlsched import Cluster, DataParallelIteration, Job, Queue, Quota, Tenants, Workload, simulate
from ddlsched.cli.reporting import reported
from ddlsched.cluster.cluster import Server
from ddlsched.cluster.tenants import ANY_KIND
from experiments.commands import PUBLIC_DATA, new_parser, write_tables

PUBLISHED = Path(__file__).parent / "published_waits.csv"
SERVERS = {8: 231, 2: 321}
"""How many servers have so many GPUs, by the trace's list of machines."""
MINUTES = (10, 60)
_SIZES = {"1": 1, "2-4": 4, "5-8": 8}
_QUEUE, _ALL = "virtual_cluster", "all"


def jobs_of(data: Path) -> pd.DataFrame:
    """Return the trace's jobs in the order in which they came."""
    table = pd.read_csv(data / FILES["Philly"]).dropna(subset="duration").rename(columns={"cluster": _QUEUE})
    came = pd.to_datetime(table["timestamp"])
    table = table.assign(arrival_s=(came - came.min()).dt.total_seconds()).sort_values("arrival_s", kind="stable")
    return table.reset_index(drop=True)


def at_once(jobs: pd.DataFrame, share: float) -> int:
    """Return how many GPUs jobs that never wait have at most for this share of the time."""
    ends = pd.DataFrame({"time_s": jobs["arrival_s"] + jobs["duration"], "gpus": -jobs["num_gpus"]})
    begins = pd.DataFrame({"time_s": jobs["arrival_s"], "gpus": jobs["num_gpus"]})
    changes = pd.concat([begins, ends]).groupby("time_s")["gpus"].sum()
    spans_s = np.diff(changes.index, append=changes.index[-1])
    held = pd.Series(spans_s).groupby(changes.cumsum().to_numpy()).sum().cumsum()
    return int(held.index[np.searchsorted(held, share * held.iloc[-1])])


def quotas(jobs: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return the quotas of virtual clusters by rule; none is below its largest job.

    ``gpu_time``: all GPUs, as the trace's GPU time is shared. ``lent``: the same, and others may use what is free.
    ``demand``: what jobs that never wait have at most for 95 % of the time.
    """
    work, gpus = jobs["num_gpus"] * jobs["duration"], sum(size * count for size, count in SERVERS.items())
    largest, of_time = jobs.groupby(_QUEUE)["num_gpus"].max(), work.groupby(jobs[_QUEUE]).sum() / work.sum() * gpus
    demand = pd.Series({name: at_once(of, 0.95) for name, of in jobs.groupby(_QUEUE)})
    of_time, demand = of_time.round().clip(lower=largest).astype(int), demand.clip(lower=largest)
    return {"lent": of_time.to_dict(), "gpu_time": of_time.to_dict(), "demand": demand.to_dict()}


def waits_min(jobs: pd.DataFrame, quotas: dict[str, int], *, lent: bool) -> pd.Series:
    """Return how long each job waits, minutes, if a job of up to 8 GPUs must have them on one server."""
    parent = _ALL if lent else None
    queues = [Queue(name=_ALL)] if lent else []
    queues += [Queue(name=name, parent=parent, quotas={ANY_KIND: Quota(gpus=most)}) for name, most in quotas.items()]
    made = [
        Job(
            job_id=str(number),
            arrival_s=arrival_s,
            num_gpus=gpus,
            iterations=1,
            iteration=DataParallelIteration(forward_s=duration_s, backward_s=0.0, message_bytes=0.0),
            gpu_memory_mb=0.0,
            queue=queue,
            required_levels="server" if gpus <= max(SERVERS) else None,
        )
        for number, (arrival_s, gpus, duration_s, queue) in enumerate(
            zip(jobs["arrival_s"], jobs["num_gpus"], jobs["duration"], jobs[_QUEUE], strict=True)
        )
    ]
    servers = tuple(Server(gpus=gpus) for gpus, count in SERVERS.items() for _ in range(count))
    cluster = Cluster(num_servers=len(servers), servers=servers, exclusive=True)
    policies = {"placement": "kueue-topology", "admission": "kueue"}
    result = simulate(Workload.of(made), cluster, queues=Tenants(queues=tuple(queues)), **policies)
    return result.jobs["queueing_s"] / 60


def compared(jobs: pd.DataFrame, published: pd.DataFrame, waits: dict[str, pd.Series]) -> pd.DataFrame:
    """Return what % of waits is over 10 and 60 minutes, a row a virtual cluster: published, and by each rule.

    The published shares are by size; as many jobs count of each size as the trace has.
    """
    sizes = pd.cut(jobs["num_gpus"], [0, *_SIZES.values()], labels=list(_SIZES))
    small = jobs.assign(gpus=sizes.astype(object)).dropna(subset="gpus").merge(published, on=[_QUEUE, "gpus"])
    by_queue = small.groupby(_QUEUE)
    table = by_queue.size().to_frame("jobs")
    for minutes in MINUTES:
        table[f"published_over_{minutes}"] = by_queue[f"over_{minutes}_min"].mean()
        for rule, waited in waits.items():
            over = 100.0 * (waited[sizes.notna()] > minutes)
            table[f"{rule}_over_{minutes}"] = over.groupby(jobs[_QUEUE]).mean()
    return table.reset_index()


def main() -> int:
    """Simulate, compare, report."""
    parser = new_parser(__doc__, "virtual_clusters")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA, metavar="DIR", help="default: %(default)s")
    given = parser.parse_args()
    with reported():
        jobs = jobs_of(given.data)
        rules = quotas(jobs)
        waits = {rule: waits_min(jobs, most, lent=rule == "lent") for rule, most in rules.items()}
        table = compared(jobs, pd.read_csv(PUBLISHED, dtype={"gpus": str}), waits)
        for rule in ("gpu_time", "demand"):
            table[f"{rule}_quota"] = table[_QUEUE].map(rules[rule])
    print(table.to_string(index=False, float_format="{:.1f}".format))
    print(f"At most {at_once(jobs, 1.0)} GPUs at once, if no job waits.")
    for minutes in MINUTES:
        told = table[f"published_over_{minutes}"]
        for rule in rules:
            ours = table[f"{rule}_over_{minutes}"]
            near = ((ours - told).abs() <= 0.15 * told)[told > 0]
            order = spearmanr(told, ours).statistic if ours.nunique() > 1 else float("nan")
            found = f"rank correlation {order:.2f}, {near.sum()} of {len(near)} within 15 %"
            print(f"over {minutes} minutes, {rule}: {found}")
    write_tables(given.out / "tables", {"virtual_clusters": table}, float_format="%.5g")
    return 0


if __name__ == "__main__":
    sys.exit(main())
