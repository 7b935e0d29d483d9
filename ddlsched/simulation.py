"""The one way to run a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cloud_instances import capacity_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.interference import InterferenceModel
from ddlsched.cluster.server_tables import read_cluster
from ddlsched.cluster.throughput_tables import throughputs_of
from ddlsched.cluster.throughputs import Throughputs
from ddlsched.engine.driver import run_simulation
from ddlsched.engine.outcome import Span, Window
from ddlsched.engine.run_progress import RunWatcher
from ddlsched.engine.settings import RunSettings
from ddlsched.errors import InputError, guarded, label, says_unknown_arguments
from ddlsched.network.contention import MAX_CONSTANT_S, ContentionModel
from ddlsched.network.topology import Network, Topology
from ddlsched.plugins.defaults import DEFAULT_BUNDLE, DEFAULT_CONTENTION
from ddlsched.plugins.names import resolve, resolve_bundle
from ddlsched.policies.doors import AllocationPolicy, CommunicationPolicy, OrderingPolicy, PathPolicy, PlacementPolicy
from ddlsched.results.plausibility import refuse_faster_than_links
from ddlsched.results.result import Result
from ddlsched.units import MAX_NS, NS_PER_S, is_whole, ns_from_s, s_from_ns
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.rescale import ConstantRescaleCost, RescaleCost
from ddlsched.workload.steady import steady_part
from ddlsched.workload.workload_specs import workload_of

__all__ = ["simulate", "warm_up"]


@says_unknown_arguments
def simulate(
    workload: Workload | str | Path,
    cluster: Cluster | None = None,
    *,
    servers: int | None = None,
    gpus_per_server: int | None = None,
    gpu_memory_mb: float | None = None,
    server_table: str | Path | None = None,
    topology: Topology | str | None = None,
    exclusive: bool | None = None,
    throughputs: Throughputs | str | Path | None = None,
    reference_kind: str | None = None,
    scheduler: str | None = None,
    placement: PlacementPolicy | str | None = None,
    order: OrderingPolicy | str | None = None,
    communication: CommunicationPolicy | str | None = None,
    allocation: AllocationPolicy | str | None = None,
    path: PathPolicy | str | None = None,
    rescale_cost: RescaleCost | str | None = None,
    contention: ContentionModel | str = DEFAULT_CONTENTION,
    interference: InterferenceModel | str | None = None,
    load_per_byte_s: float | None = None,
    seed: int = 0,
    disturbances: Disturbances | None = None,
    capacity: CapacityTrace | str | None = None,
    warmup_s: float = 0.0,
    until_s: float | None = None,
    steady: bool = False,
    timeline: bool | tuple[float, float] | Window = False,
    watch: RunWatcher | None = None,
) -> Result:
    """Simulate a workload on a cluster to the end of its last job.

    Parameters
    ----------
    workload
        The jobs; a file, or a generator such as ``"microsoft-160:scale=0.01"``, whose jobs ``seed`` makes.
    cluster
        By default the 64-GPU experiment's: 16 servers of 4 GPUs on a star.
    servers, gpus_per_server, gpu_memory_mb, server_table
        The cluster's servers, in place of ``cluster``: counts, and MB a GPU; or a file of
        :func:`ddlsched.read_cluster`.
    topology, exclusive
        Of the cluster, in place of its own: a network between the servers; whether a GPU has one job at a time.
    throughputs, reference_kind
        How fast each model trains on each kind of the cluster's GPUs, in place of the cluster's own: a file of
        :func:`ddlsched.cluster.throughput_tables.read_throughputs`, and the kind on which jobs take the times that the
        workload says.
    scheduler
        A bundle of placement, order and communication, by default ``"ada-srsf"``.
    placement, order, communication
        Instances, or names such as ``"lwf:kappa=1"``; each replaces the bundle's.
    allocation
        How many GPUs each elastic job has; an instance or a name. Needed if, and only if, a job is elastic.
    path
        Which of the topology's paths the flows of a job take, an instance or a name such as ``"ecmp"``; by default the
        topology's own route.
    rescale_cost
        What a change of an elastic job's size takes, unless the job has its own; a function, or constants as in
        ``"up_s=18,down_s=12"`` or ``"restart_s=30"``; by default nothing.
    contention
        The model of transfers that share links; an instance or a name.
    interference
        How much longer compute tasks take on a GPU on which other jobs are placed; an instance or a name such as
        ``"uniform:share=0.3"``; by default no longer.
    load_per_byte_s
        Seconds a byte of communication counts in a GPU's load; by default the contention model's own.
    seed
        Of the policies' randomness and of the disturbances; the same seed gives the same run to the bit.
    disturbances
        Compute jitter, slow GPUs, servers that fail; by default none.
    capacity
        When each server is there, the file of a table, or ``instances:...`` for
        :class:`~ddlsched.cluster.cloud_instances.CloudInstances`; by default always. In place of failures.
    warmup_s
        Jobs that arrive earlier are simulated but not counted in the summary, seconds.
    until_s
        Cut the run off after this instant, seconds; jobs that are not finished are counted apart.
    steady
        Count only the middle of the arrivals, in place of a warm-up: of a stream's jobs by arrival, and by their place
        in the workload if at once, neither the first fifth nor the last tenth; all are simulated
        (:mod:`ddlsched.workload.steady`).
    timeline
        Record tasks and transfers: all of them, those of a window (from, to) in seconds, or a
        :class:`~ddlsched.engine.outcome.Window`, which may be of one job.
    watch
        Called at most twice a second with a :class:`~ddlsched.engine.run_progress.RunProgress`: how far the run is.

    Returns
    -------
    Result
        Tables of jobs, GPUs and links, the summary, and the timeline.

    Raises
    ------
    InputError
        A job that can never fit, or a bad argument.
    UnknownNameError
        A name that nobody has registered.
    PluginError, InvalidDecisionError
        A policy or model raised, or answered what cannot be.
    SimulationError
        Jobs remain that nothing will ever let finish.

    Examples
    --------
    A job of two workers: an iteration computes 0.3 s, and on two servers its 125 MB take 8.56e-10 s a byte on 10 GbE.

    >>> from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
    >>> step = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=125e6)
    >>> job = Job(job_id="a", arrival_s=0, num_gpus=2, iterations=10, iteration=step, gpu_memory_mb=4096)
    >>> simulate(Workload.of([job]), Cluster(num_servers=2, gpus_per_server=1))
    <result: 1 job on 2 GPUs, average JCT 4.070 s>
    >>> simulate(Workload.of([job]), Cluster(num_servers=1, gpus_per_server=2))
    <result: 1 job on 2 GPUs, average JCT 3.000 s>
    """
    if not is_whole(seed, 0):
        raise InputError(f"seed is {seed!r}; expected a whole number >= 0")
    if isinstance(workload, str | Path):
        workload = workload_of(str(workload), seed)
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {workload!r}; expected a Workload, or a file or generator such as 'jobs.csv'")
    cluster = _cluster(
        cluster,
        {
            "num_servers": servers,
            "gpus_per_server": gpus_per_server,
            "gpu_memory_mb": gpu_memory_mb,
            "server_table": server_table,
        },
        {"topology": topology, "exclusive": exclusive, "throughputs": throughputs_of(throughputs, reference_kind)},
    )
    if load_per_byte_s is not None and not 0 <= load_per_byte_s <= MAX_CONSTANT_S:
        raise InputError(f"load_per_byte_s is {load_per_byte_s}; expected a number from 0 to {MAX_CONSTANT_S:g} s")
    if disturbances is not None and not isinstance(disturbances, Disturbances):
        raise InputError(f"disturbances is {disturbances!r}; expected ddlsched.Disturbances(...)")
    if any(isinstance(job, ElasticJob) for job in workload) != (allocation is not None):
        one, other = ("elastic jobs", "allocation=") if allocation is None else ("an allocation policy", "elastic jobs")
        raise InputError(f"the run has {one} but no {other}; expected both or neither")
    if isinstance(capacity, str | Path):
        capacity = capacity_of(capacity, cluster.num_servers)
    if capacity is not None and disturbances is not None and disturbances.servers_fail:
        raise InputError("the run has a capacity trace and failures of servers; expected one of the two")
    if rescale_cost is None:
        rescale_cost = ConstantRescaleCost()
    names: dict[str, Any] = dict(resolve_bundle(DEFAULT_BUNDLE if scheduler is None else scheduler))
    given = {"placement": placement, "order": order, "communication": communication}
    names |= {kind: policy for kind, policy in given.items() if policy is not None}
    warmup_ns, counted = _counted(workload, warmup_s, steady)
    network = Network(
        resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards, cluster.gpus_of_servers
    )
    model = resolve("contention", contention)
    window = _window(timeline)
    settings = RunSettings(
        cluster=cluster,
        network=network,
        placement=resolve("placement", names["placement"]),
        order=resolve("order", names["order"]),
        communication=resolve("communication", names["communication"]),
        allocation=None if allocation is None else resolve("allocation", allocation),
        path=None if path is None else resolve("path", path),
        rescale_cost=ConstantRescaleCost.parse(rescale_cost) if isinstance(rescale_cost, str) else rescale_cost,
        contention=guarded(f"contention {label(model)}: bound_to", lambda: model.bound_to(network)),
        interference=None if interference is None else resolve("interference", interference),
        load_per_byte_s=load_per_byte_s,
        disturbances=disturbances or Disturbances(),
        capacity=capacity,
        seed=seed,
        span=_span(until_s, warmup_ns),
        window=window,
        watch=watch,
    )
    result = Result(workload, cluster, run_simulation(workload, settings), counted)
    refuse_faster_than_links(result)
    return result


def _cluster(cluster: Cluster | None, servers: Mapping[str, Any], other: Mapping[str, Any]) -> Cluster:
    """Return the cluster that is given, or one of the given servers; ``other`` fields replace its own."""
    given = {name: value for name, value in servers.items() if value is not None}
    fields = {name: value for name, value in other.items() if value is not None}
    if cluster is not None:
        if not isinstance(cluster, Cluster):
            raise InputError(f"cluster is {cluster!r}; expected ddlsched.Cluster(...)")
        if given:
            raise InputError(f"{', '.join(given)} and cluster= both say what the servers are; expected one of the two")
        return replace(cluster, **fields) if fields else cluster
    if "server_table" not in given:
        return Cluster(**given, **fields)
    if len(given) > 1:
        raise InputError("server_table= and counts both say what the servers are; expected one of the two")
    return replace(read_cluster(given["server_table"]), **fields)


def _counted(workload: Workload, warmup_s: float, steady: bool) -> tuple[int, np.ndarray]:
    """Return when the warm-up ends, nanoseconds, and whether each job counts."""
    if not 0 <= warmup_s < MAX_NS / NS_PER_S:
        raise InputError(f"warmup_s is {warmup_s}; expected seconds from 0")
    if warmup_s and steady:
        raise InputError(f"warmup_s is {warmup_s} and steady leaves out a warm-up of its own; expected one of the two")
    arrivals_ns = np.array([job.arrival_ns for job in workload])
    if steady:
        counted = steady_part(workload)
        return int(arrivals_ns[counted].min()), counted
    return ns_from_s(warmup_s), arrivals_ns >= ns_from_s(warmup_s)


def _span(until_s: float | None, warmup_ns: int) -> Span:
    if until_s is None:
        return Span(warmup_ns)
    warmup_s = s_from_ns(warmup_ns)
    if not warmup_s < until_s < MAX_NS / NS_PER_S:
        raise InputError(f"until_s is {until_s}; expected seconds after the warm-up, which ends at {warmup_s}")
    return Span(warmup_ns, ns_from_s(until_s))


def warm_up() -> None:
    """Compile the event loop if that was never done, so that processes started later need not each do it."""
    iteration = DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=1.0)
    job = Job(job_id="a", arrival_s=0.0, num_gpus=1, iterations=1, iteration=iteration, gpu_memory_mb=1.0)
    simulate(Workload.of([job]))


def _window(timeline: bool | tuple[float, float] | Window) -> Window | None:
    if isinstance(timeline, Window):
        return timeline
    if isinstance(timeline, bool):
        return Window() if timeline else None
    if not isinstance(timeline, tuple) or len(timeline) != 2:
        raise InputError(f"timeline is {timeline!r}; expected True, False or (from, to) in seconds")
    return Window(*timeline)
