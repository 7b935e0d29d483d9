"""The options of a run, which 'simulate' and 'compare' have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ddlsched.cli.dataclass_options import like, option
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.plugins.defaults import DEFAULT_BUNDLE, DEFAULT_CONTENTION

__all__ = [
    "COMPARED_FIELDS",
    "RESTART_FIELDS",
    "ClusterOptions",
    "ElasticOptions",
    "KindOptions",
    "NetworkOptions",
    "OutputOptions",
    "PolicyOptions",
    "SpanOptions",
]

RESTART_FIELDS = ("restart_s", "state_mb")
"""What going on after a failure, a stop or a move costs: fields of :class:`ddlsched.Disturbances`."""
COMPARED_FIELDS = (*RESTART_FIELDS, "prediction_error")
"""What of :class:`ddlsched.Disturbances` has a flag of its own where policies are compared."""
_BUNDLES = "the bundle's"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Servers, and the network between them."""

    servers: int = like(Cluster, "num_servers")
    gpus_per_server: int = like(Cluster, "gpus_per_server")
    gpu_memory_mb: float = like(Cluster, "gpu_memory_mb")
    server_table: Path | None = option(
        None,
        "Servers that differ, in place of the three above: CSV with the columns gpus, gpu_memory_mb and optionally "
        "servers (how many like this), relative_speed, nic_gbps, gpu_kind, exclusive (0 or 1, the same in every row).",
        metavar="FILE.csv",
    )
    topology: str = like(Cluster, "topology")
    exclusive: bool = option(
        Cluster.exclusive, "One job a GPU at a time, however little memory it needs.", flag="--exclusive"
    )

    def cluster(self) -> Cluster:
        """Return the cluster; a table of servers is read."""
        if self.server_table is not None:
            from ddlsched.cluster.server_tables import read_cluster

            return read_cluster(self.server_table, topology=self.topology, exclusive=self.exclusive)
        return Cluster(
            num_servers=self.servers,
            gpus_per_server=self.gpus_per_server,
            gpu_memory_mb=self.gpu_memory_mb,
            topology=self.topology,
            exclusive=self.exclusive,
        )


@dataclass(frozen=True, kw_only=True)
class KindOptions:
    """How fast models train on the kinds of GPUs of a table of servers."""

    throughputs: Path | None = option(
        None,
        "Throughput of each model on each gpu_kind of --server-table: CSV with the column model and a column a kind, "
        "or JSON.",
        metavar="FILE",
        shown="all alike",
    )
    reference_kind: str | None = option(
        None,
        "The kind on which jobs take the times that the workload says.",
        metavar="KIND",
        shown="a throughput of 1 means those times",
    )

    def applied_to(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the table of throughputs, which is read."""
        if self.throughputs is None:
            if self.reference_kind is not None:
                raise InputError("--reference-kind: does nothing alone; expected --throughputs as well")
            return cluster
        from ddlsched.cluster.throughput_tables import read_throughputs

        return replace(cluster, throughputs=read_throughputs(self.throughputs, self.reference_kind))


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Arguments of :func:`ddlsched.simulate` that decide."""

    scheduler: str = option(
        DEFAULT_BUNDLE, "Bundle of a placement, an order and a communication policy.", metavar="BUNDLE"
    )
    placement: str | None = option(
        None, "On which GPUs a job runs, e.g. lwf:kappa=1 or mine.py:MyPolicy:alpha=0.5.", shown=_BUNDLES
    )
    order: str | None = option(None, "Which job goes first, e.g. srsf:communication=true.", shown=_BUNDLES)
    communication: str | None = option(
        None, "Which all-reduces overlap, e.g. bounded-overlap:limit=2 or preemptive:by=bytes.", shown=_BUNDLES
    )
    path: str | None = option(
        None,
        "Which of the topology's paths a job's flows take, e.g. ecmp:seed=1 or least-congested.",
        shown="the topology's route",
    )
    interference: str | None = option(
        None,
        "How much longer compute takes on shared GPUs, e.g. uniform:share=0.3 or pairs:file=penalties.csv.",
        shown="no longer",
    )


@dataclass(frozen=True, kw_only=True)
class ElasticOptions:
    """Arguments of :func:`ddlsched.simulate` about jobs, and servers, whose number changes."""

    allocation: str | None = option(
        None,
        "How many GPUs each elastic job has, e.g. elastic-scaling:interval_s=600,queue=true.",
        shown="none: no job is elastic",
    )
    rescale_cost: str | None = option(
        None,
        "What a change of an elastic job takes, e.g. restart_s=30 or up_s=18,down_s=12,resume_s=12.",
        metavar="TIMES",
        shown="nothing",
    )
    capacity: str | None = option(
        None,
        "When each server is there: CSV with the columns server, join_s, leave_s and optionally warned; or preemptible "
        "instances: instances:mean_life_s=7200,mean_wait_s=60 (or lifetimes=FILE.csv), until_s, warned, seed.",
        metavar="FILE.csv",
        shown="always",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Arguments of :func:`ddlsched.simulate` about transfers."""

    contention: str = option(
        DEFAULT_CONTENTION,
        "How fast transfers go that share a link, e.g. 1gbe or linear:per_byte_s=1e-9,latency_s=1e-4; constants that "
        "linear is not given are scaled to the topology's card.",
    )
    load_per_byte_s: float | None = option(
        None,
        "Time that a byte counts in a GPU's load, by which placements choose, seconds.",
        shown="time of a byte alone",
    )


@dataclass(frozen=True, kw_only=True)
class SpanOptions:
    """Arguments of :func:`ddlsched.simulate` about chance and time."""

    seed: int = option(
        0, "Of the policies' and disturbances' randomness, from 0; the same seed repeats the run exactly."
    )
    warmup_s: float = option(0.0, "Leave jobs that arrive earlier out of the metrics, seconds.")
    until_s: float | None = option(
        None,
        "Cut the run off at this time, seconds; unfinished jobs are counted apart.",
        shown="the last finish",
    )
    steady: bool = option(
        False,
        "Count only the middle of the arrivals: neither the first fifth of the jobs nor the last tenth.",
        flag="--steady",
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a run writes and prints."""

    jobs_out: Path | None = option(
        None,
        "Write each job's job_id, start_s, finish_s, jct_s, exact to the nanosecond, as CSV (empty where the run was "
        "cut off before).",
        metavar="FILE.csv",
    )
    run_out: Path | None = option(
        None,
        "Write the run's file, which 'ddlsched explain' reads: its jobs with all metrics, the workload, and the flags.",
        metavar="FILE.parquet",
    )
    timeline: Path | None = option(
        None, "Write tasks and transfers as a trace for https://ui.perfetto.dev.", metavar="FILE.json"
    )
    timeline_window: str | None = option(
        None, "Only this part of the timeline, seconds, e.g. 100:160.", metavar="FROM:TO", shown="all"
    )
    as_json: bool = option(False, "Print the metrics as one JSON object.", flag="--json")
