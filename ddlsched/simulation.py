"""The one way to run a simulation, and draws of its jobs' lengths, for what one run of a trace is worth."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Unpack, cast

import numpy as np

from ddlsched.cluster.capacity import capacity_of
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.cluster_files import read_cluster, tenants_of, throughputs_of
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.driver import run_simulation
from ddlsched.engine.outcome import CountedSpan, Window
from ddlsched.engine.run_options import RunOptions, RunSettings
from ddlsched.errors import InputError, guarded, label, says_unknown_arguments
from ddlsched.network.contention import MAX_CONSTANT_S
from ddlsched.network.topology import Network
from ddlsched.options import filled, keywords_of
from ddlsched.plugins import DEFAULT_ADMISSION, DEFAULT_BUNDLE
from ddlsched.plugins.names import Kind, made_by, resolve, resolve_bundle
from ddlsched.results.result import Result, refuse_faster_than_links
from ddlsched.units import MAX_NS, NS_PER_S, is_whole, ns_from_s, s_from_ns
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob
from ddlsched.workload.job import Job, Workload, steady_part
from ddlsched.workload.workload_files import workload_of

_DOORS: Final[tuple[Kind, ...]] = ("placement", "order", "communication", "allocation", "path", "interference")


@says_unknown_arguments
@keywords_of(RunOptions)
def simulate(workload: Workload | str | Path, cluster: Cluster | None = None, **options: Unpack[RunOptions]) -> Result:
    """Simulate a workload on a cluster to the end of its last job.

    Parameters
    ----------
    workload
        The jobs; a file, or a generator such as ``"microsoft-160:scale=0.01"``, whose jobs ``seed`` makes.
    cluster
        By default the 64-GPU experiment's: 16 servers of 4 GPUs on a star.

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
    given = cast(RunOptions, filled(RunOptions, options))
    if not is_whole(given["seed"], 0):
        raise InputError(f"seed is {given['seed']!r}; expected a whole number >= 0")
    if isinstance(workload, str | Path):
        workload = workload_of(str(workload), given["seed"])
    if not isinstance(workload, Workload):
        expected = "a Workload (Workload.of(jobs) makes one of Job objects), or a file or generator such as 'jobs.csv'"
        raise InputError(f"workload is {reprlib.repr(workload)}; expected {expected}")
    workload = drawn(workload, given["draw"])
    cluster = cluster_of(cluster, given)
    _refuse_options(workload, given)
    warmup_ns, counted = _counted(workload, given["warmup_s"], given["steady"])
    settings = _settings(cluster, given, _span(given["until_s"], warmup_ns))
    result = Result(workload, cluster, run_simulation(workload, settings), counted)
    refuse_faster_than_links(result)
    return result


def cluster_of(cluster: Cluster | None, given: RunOptions) -> Cluster:
    """Return the cluster that is given, or one of the given servers; further options replace what it has of its own.

    Raises
    ------
    InputError
        Both are given, or a table of servers beside counts; or as :class:`ddlsched.Cluster`.
    """
    counts = {"num_servers": given.get("servers"), "gpus_per_server": given.get("gpus_per_server")}
    servers = _without_none(counts | {"gpu_memory_mb": given.get("gpu_memory_mb")})
    throughputs = throughputs_of(given.get("throughputs"), given.get("reference_kind"))
    fields = {"topology": given.get("topology"), "exclusive": given.get("exclusive"), "throughputs": throughputs}
    further, table = _without_none(fields), given.get("server_table")
    if cluster is not None:
        if not isinstance(cluster, Cluster):
            raise InputError(f"cluster is {reprlib.repr(cluster)}; expected ddlsched.Cluster(...)")
        if told := [*servers, *([] if table is None else ["server_table"])]:
            raise InputError(f"{', '.join(told)} and cluster= both say what the servers are; expected one of the two")
        return replace(cluster, **further) if further else cluster
    if table is None:
        return Cluster(**servers, **further)
    if servers:
        raise InputError("server_table= and counts both say what the servers are; expected one of the two")
    return replace(read_cluster(table), **further)


def network_of(cluster: Cluster) -> Network:
    """Return the network between a cluster's servers."""
    return cluster.network(resolve("topology", cluster.topology))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _refuse_options(workload: Workload, given: RunOptions) -> None:
    """Refuse options that are none, or that do not go together."""
    load_per_byte_s, disturbances = given["load_per_byte_s"], given["disturbances"]
    if load_per_byte_s is not None and not 0 <= load_per_byte_s <= MAX_CONSTANT_S:
        raise InputError(f"load_per_byte_s is {load_per_byte_s}; expected a number from 0 to {MAX_CONSTANT_S:g} s")
    if disturbances is not None and not isinstance(disturbances, Disturbances):
        raise InputError(f"disturbances is {disturbances!r}; expected ddlsched.Disturbances(...)")
    if given["replay"] is not None and given["placement"] is not None:
        raise InputError("placement= and replay= both say where jobs run; expected one of the two")
    if given["replay"] is not None and given["allocation"] is not None:
        raise InputError(
            "replay= says on which GPUs jobs run, and of elastic jobs allocation= does; expected one of them"
        )
    if given["capacity"] is not None and disturbances is not None and disturbances.servers_fail:
        raise InputError("the run has a capacity trace and failures of servers; expected one of the two")
    if any(isinstance(job, ElasticJob) for job in workload) != (given["allocation"] is not None):
        one, other = "an allocation policy", "elastic jobs"
        one, other = ("elastic jobs", "allocation=") if given["allocation"] is None else (one, other)
        raise InputError(f"the run has {one} but no {other}; expected both or neither")


def _settings(cluster: Cluster, given: RunOptions, span: CountedSpan) -> RunSettings:
    """Return what the engine is given: instances in place of names, the contention model bound to the network."""
    scheduler = given["scheduler"]
    bundle = resolve_bundle(DEFAULT_BUNDLE if scheduler is None else scheduler)
    doors = {kind: bundle.get(kind) if (own := given.get(kind)) is None else own for kind in _DOORS}
    if given["replay"] is not None:
        doors["placement"] = made_by("placement", "replay")[0](run=str(given["replay"]))
    network = network_of(cluster)
    model = resolve("contention", given["contention"])
    cost, capacity = given["rescale_cost"], given["capacity"]
    tenants, admission = tenants_of(given["queues"]), given["admission"]
    if tenants is None and admission is not None:
        raise InputError("admission is given; expected queues as well, the tenants that it decides about")
    deciding = None if tenants is None else resolve("admission", admission or DEFAULT_ADMISSION)
    if getattr(deciding, "chooses_gpus", False) and given["placement"] is not None:
        placement = label(given["placement"])
        raise InputError(f"admission {label(admission)} does not ask placement {placement}; expected one of the two")
    return RunSettings(
        cluster=cluster,
        tenants=tenants,
        admission=deciding,
        network=network,
        **{kind: None if door is None else resolve(kind, door) for kind, door in doors.items()},
        rescale_cost=ConstantRescaleCost.parse(cost) if isinstance(cost, str) else cost or ConstantRescaleCost(),
        contention=guarded(f"contention {label(model)}: bound_to", lambda: model.bound_to(network)),
        disturbances=given["disturbances"] or Disturbances(),
        capacity=capacity_of(capacity, cluster.num_servers) if isinstance(capacity, str | Path) else capacity,
        span=span,
        window=_window(given["timeline"]),
        options=given,
    )


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


def _span(until_s: float | None, warmup_ns: int) -> CountedSpan:
    if until_s is None:
        return CountedSpan(warmup_ns)
    warmup_s = s_from_ns(warmup_ns)
    if not warmup_s < until_s < MAX_NS / NS_PER_S:
        raise InputError(f"until_s is {until_s}; expected seconds after the warm-up, which ends at {warmup_s}")
    return CountedSpan(warmup_ns, ns_from_s(until_s))


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


HAIR = 1e-3
"""By so large a part, or by one iteration if that is more, a draw's jobs are longer or shorter at most."""


def drawn(workload: Workload, draw: int) -> Workload:
    """Return a draw of a workload: each job of at least two iterations is up to a hair longer or shorter, at random.

    Draw 0 is the workload itself. An elastic job's samples take the place of iterations.

    Raises
    ------
    InputError
        ``draw`` is no whole number from 0.
    """
    if not is_whole(draw, 0):
        raise InputError(f"draw is {draw!r}; expected a whole number >= 0")
    if draw == 0:
        return workload
    names = ["samples" if isinstance(job, ElasticJob) else "iterations" for job in workload]
    lengths = np.array([getattr(job, name) for name, job in zip(names, workload, strict=True)])
    most = np.where(lengths > 1, np.maximum(np.rint(HAIR * lengths), 1), 0).astype(np.int64)
    new = lengths + np.random.default_rng(draw).integers(-most, most, endpoint=True)
    changed = zip(workload, names, new.tolist(), strict=True)
    return dataclasses.replace(
        workload, jobs=tuple(dataclasses.replace(job, **{name: length}) for job, name, length in changed)
    )
