"""The options of a run, each declared once: its name, type, default, and what it is.

The keywords of :func:`ddlsched.simulate`, the command line, the YAML of a comparison and what a sweep hashes of a run
follow from here; the engine has them as ``settings.options``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster, Throughputs
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.interference import InterferenceModel
from ddlsched.cluster.tenants import Tenants
from ddlsched.engine.outcome import CountedSpan, Window
from ddlsched.engine.run_progress import RunWatcher
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Network, Topology
from ddlsched.options import Option, declared
from ddlsched.plugins import DEFAULT_ADMISSION, DEFAULT_BUNDLE, DEFAULT_CONTENTION
from ddlsched.policies.doors import AllocationPolicy, CommunicationPolicy, OrderingPolicy, PathPolicy, PlacementPolicy
from ddlsched.policies.tenants_view import AdmissionPolicy
from ddlsched.workload.elastic_job import RescaleCost

_CLUSTER = "Cluster"
_POLICIES = "Policies"
_COMING = "Elastic jobs, and servers that come and go"
_NETWORK = "Network"
_RUN = "Run and results"
_BUNDLES = "the bundle's"


class RunOptions(TypedDict, total=False):
    """The options of a run, which its docstring describes for Python and, up to "; in Python", for the command line.

    Attributes
    ----------
    servers
        Number of servers; in Python in place of ``cluster``, as the three that follow.
    gpus_per_server
        GPUs of each server.
    gpu_memory_mb
        Memory of each GPU, MB (1e6 B).
    server_table
        Servers that differ, in place of the three above: CSV with the columns gpus, gpu_memory_mb and optionally
        servers (how many like this), relative_speed, nic_gbps, gpu_kind, exclusive (0 or 1, the same in every row),
        and ``level NAME`` for its unit of a level of the topology.
    topology
        Network between the servers, e.g. ``leaf-spine:servers_per_leaf=4,spines=2``; in Python also an instance, and in
        place of the cluster's own.
    exclusive
        One job a GPU at a time, however little memory it needs; in Python in place of the cluster's own.
    throughputs
        Throughput of each model on each gpu_kind of the table of servers: CSV with the column model and a column a
        kind, or JSON; in Python also an instance, and in place of the cluster's own.
    reference_kind
        The kind on which jobs take the times that the workload says.
    scheduler
        Bundle of a placement, an order and a communication policy.
    placement
        On which GPUs a job runs, e.g. ``lwf:kappa=1`` or ``mine.py:MyPolicy:alpha=0.5``; in Python also an instance, as
        of every policy and model below.
    replay
        A run's file (of --run-out): each job has the GPUs that it had there, from then on; in place of a placement.
    order
        Which job goes first, e.g. ``srsf:communication=true``.
    communication
        Which all-reduces overlap, e.g. ``bounded-overlap:limit=2`` or ``preemptive:by=bytes``.
    path
        Which of the topology's paths a job's flows take, e.g. ``ecmp:seed=1`` or ``least-congested``.
    queues
        Tenants: their queues, quotas and whom they may preempt, YAML or JSON (docs/tenants.md); in Python also a
        :class:`~ddlsched.cluster.tenants.Tenants`.
    admission
        Who of the tenants' jobs may start, and who gives way, e.g. ``kueue:fair_sharing=true`` or ``volcano``.
    interference
        How much longer compute takes on shared GPUs, e.g. ``uniform:share=0.3`` or ``pairs:file=penalties.csv``.
    allocation
        How many GPUs each elastic job has, e.g. ``elastic-scaling:interval_s=600,queue=true``; in Python needed if, and
        only if, a job is elastic.
    rescale_cost
        What a change of an elastic job takes, e.g. ``restart_s=30`` or ``up_s=18,down_s=12,resume_s=12``; in Python
        also a function; a job's own comes first.
    capacity
        When each server is there: CSV with the columns server, join_s, leave_s and optionally warned; or preemptible
        instances: ``instances:mean_life_s=7200,mean_wait_s=60`` (or lifetimes=FILE.csv), until_s, warned, seed; in
        Python in place of failures.
    contention
        How fast transfers go that share a link, e.g. 1gbe or ``linear:per_byte_s=1e-9,latency_s=1e-4``; constants that
        linear is not given are scaled to the topology's card.
    load_per_byte_s
        Time that a byte counts in a GPU's load, by which placements choose, seconds.
    disturbances
        Compute jitter, slow GPUs, servers that fail, and what going on costs.
    seed
        Of the policies' and disturbances' randomness, from 0; the same seed repeats the run exactly.
    warmup_s
        Leave jobs that arrive earlier out of the metrics, seconds.
    until_s
        Cut the run off at this time, seconds; unfinished jobs are counted apart.
    steady
        Count only the middle of the arrivals: neither the first fifth of the jobs nor the last tenth; in Python in
        place of a warm-up, by place in the workload if all arrive at once (:mod:`ddlsched.workload.job`).
    sample
        Simulate a part of the iterations of jobs that share GPUs or links, and let the rest pass at the rates of that
        part: faster, with an error that the result states.
    draw
        Which draw of the jobs' lengths (:func:`ddlsched.simulation.drawn`), from 0, the lengths that were given.
    timeline
        Record tasks and transfers: all of them, those of a window (from, to) in seconds, or a
        :class:`~ddlsched.engine.outcome.Window`, which may be of one job.
    watch
        Called at most twice a second with a :class:`~ddlsched.engine.run_progress.RunProgress`: how far the run is.
    """

    servers: Annotated[int | None, Option(panel=_CLUSTER, shown=str(Cluster.num_servers), listed=True)]
    gpus_per_server: Annotated[int | None, Option(panel=_CLUSTER, shown=str(Cluster.gpus_per_server), listed=True)]
    gpu_memory_mb: Annotated[float | None, Option(panel=_CLUSTER, shown=f"{Cluster.gpu_memory_mb:g}", listed=True)]
    server_table: Annotated[str | Path | None, Option(panel=_CLUSTER, metavar="FILE.csv", listed=True)]
    topology: Annotated[Topology | str | None, Option(panel=_CLUSTER, shown=str(Cluster.topology), listed=True)]
    exclusive: Annotated[bool | None, Option(panel=_CLUSTER, flag="--exclusive", listed=True)]
    throughputs: Annotated[
        Throughputs | str | Path | None, Option(panel=_CLUSTER, metavar="FILE", shown="all alike", listed=True)
    ]
    reference_kind: Annotated[
        str | None,
        Option(panel=_CLUSTER, metavar="KIND", shown="a throughput of 1 means those times", listed=True),
    ]
    scheduler: Annotated[str | None, Option(panel=_POLICIES, metavar="BUNDLE", shown=DEFAULT_BUNDLE, listed=True)]
    placement: Annotated[PlacementPolicy | str | None, Option(panel=_POLICIES, shown=_BUNDLES, listed=True)]
    replay: Annotated[str | Path | None, Option(panel=_POLICIES, metavar="RUN.parquet", listed=True)]
    order: Annotated[OrderingPolicy | str | None, Option(panel=_POLICIES, shown=_BUNDLES, listed=True)]
    communication: Annotated[CommunicationPolicy | str | None, Option(panel=_POLICIES, shown=_BUNDLES, listed=True)]
    path: Annotated[PathPolicy | str | None, Option(panel=_POLICIES, shown="the topology's route", listed=True)]
    queues: Annotated[Tenants | str | None, Option(panel=_POLICIES, metavar="FILE.yaml", shown="no tenants")]
    admission: Annotated[
        AdmissionPolicy | str | None, Option(panel=_POLICIES, shown=f"{DEFAULT_ADMISSION}, with queues", listed=True)
    ]
    interference: Annotated[InterferenceModel | str | None, Option(panel=_POLICIES, shown="no longer")]
    allocation: Annotated[
        AllocationPolicy | str | None, Option(panel=_COMING, shown="none: no job is elastic", listed=True)
    ]
    rescale_cost: Annotated[RescaleCost | str | None, Option(panel=_COMING, metavar="TIMES", shown="nothing")]
    capacity: Annotated[CapacityTrace | str | None, Option(panel=_COMING, metavar="FILE.csv", shown="always")]
    contention: Annotated[ContentionModel | str, Option(DEFAULT_CONTENTION, panel=_NETWORK, listed=True)]
    load_per_byte_s: Annotated[float | None, Option(panel=_NETWORK, shown="time of a byte alone")]
    disturbances: Annotated[Disturbances | None, Option(draws=True)]
    seed: Annotated[int, Option(0, panel=_RUN, listed=True, draws=True)]
    warmup_s: Annotated[float, Option(0.0, panel=_RUN)]
    until_s: Annotated[float | None, Option(panel=_RUN, shown="the last finish")]
    steady: Annotated[bool, Option(False, panel=_RUN, flag="--steady")]
    sample: Annotated[bool, Option(False, panel=_RUN, flag="--sample")]
    draw: Annotated[int, Option(0, listed=True)]
    timeline: Annotated[bool | tuple[float, float] | Window, Option(False, listed=True)]
    watch: Annotated[RunWatcher | None, Option(listed=True)]


CLUSTER_OPTIONS = tuple(name for name, option in declared(RunOptions).items() if option.panel == _CLUSTER)
"""What makes the cluster."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Instances, not names; ``contention`` is bound to ``network``, ``options`` are all, as they were given."""

    cluster: Cluster
    network: Network
    placement: Any
    order: Any
    communication: Any
    allocation: Any
    path: Any
    admission: Any
    tenants: Tenants | None
    rescale_cost: RescaleCost
    contention: ContentionModel
    interference: InterferenceModel | None
    disturbances: Disturbances
    capacity: CapacityTrace | None
    span: CountedSpan
    window: Window | None
    options: RunOptions
