"""``ddlsched validate``: is a file what it should be, and what is in it, of doors and the network too."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel
from ddlsched.cli.reporting import emit, json_text
from ddlsched.cli.run_arguments import run_arguments
from ddlsched.cluster.cluster import Cluster, Throughputs
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.deferred import np
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError
from ddlsched.io.files import opened
from ddlsched.io.tables import cell_whole, csv_rows
from ddlsched.network.topology import Network
from ddlsched.workload.groups import parts_of
from ddlsched.workload.job import Workload
from ddlsched.workload.tasks import CollectiveTask

_KINDS = (
    "a workload (.csv, .parquet, .json), a table of servers, of outages, of causes of failures or of when servers are "
    "there (.csv), a matrix of throughputs (.csv with the column model), "
    "a comparison (.yaml), queues (.yaml, .json), or what another room reads, such as a training trace of a rank (.et, "
    ".recording.json, Kineto's .json; also .gz)"
)
_LONGEST_HEADER = 65_536
_QUEUES = re.compile(rb"""^(?:\{\s*)?["']?queues["']?\s*:""", re.MULTILINE)
"""The field of a file of queues; a comparison has it further in."""
_CLUSTER = ("server_table", "topology", "throughputs", "reference_kind")


@dataclass(frozen=True)
class _Beside:
    """What a file is checked against: a cluster if one is told, and what of it was told."""

    cluster: Cluster | None
    network: bool
    price: Disturbances | None

    @property
    def usual(self) -> Cluster:
        """The cluster, or that of the 64-GPU experiment."""
        return self.cluster or Cluster()


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"What to check: {_KINDS}.", readable=False)],
    *,
    cluster: Annotated[Given[RunOptions], Panel(only=_CLUSTER, only_given=True)],
    restarts: Annotated[Given[Disturbances], Panel(only=("restart_s", "state_mb", "state_share"), only_given=True)],
    as_json: bool = False,
) -> None:
    """Check an input file and say what is in it, or what is wrong and where.

    With --server-table a workload's jobs must fit on those servers (else 16 of 4 GPUs), or those fail, join and leave.

    With --topology also the links and the paths between servers, with --throughputs also the speeds on kinds of GPUs,
    with --restart-s or --state-mb also what going on elsewhere takes.

    Parameters
    ----------
    as_json
        Print what is in the file as one JSON object.
    """
    told = run_arguments(cluster.values, {}).get("cluster")
    beside = _Beside(told, "topology" in cluster.values, restarts.made() if restarts.values else None)
    # Modules of other rooms recognise further kinds of files.
    rooms = (point.load() for point in entry_points(group="ddlsched.validator"))
    other = next((room for room in rooms if room.recognises(file)), None)
    kind = _kind(file) if other is None else str(other.KIND)
    found = _READERS[kind](file, beside) if other is None else other.found(file)
    if as_json:
        emit(json_text({"file": str(file), "kind": kind, **found}))
    else:
        lines = [f"{file}: valid ({kind})", *(f"  {name:<28}{text}" for name, text in _lines(found))]
        emit("\n".join(lines) + "\n")


def _kind(path: Path) -> str:
    """Return what a file is meant to be, by its suffix and, of a CSV, its header, of YAML and JSON its first field."""
    suffix = path.suffix.lower()
    kind = {".yaml": "comparison", ".yml": "comparison"}.get(suffix, "workload")
    if suffix not in (".csv", ".yaml", ".yml", ".json"):
        return kind
    try:
        with opened(path) as file:
            if suffix != ".csv":
                return "queues" if _QUEUES.search(file.read(_LONGEST_HEADER)) else kind
            first = file.readline(_LONGEST_HEADER).decode("utf-8-sig")
        header = {name.strip() for name in next(csv.reader([first]), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return kind  # whose reader says what is wrong
    if "from_s" in header or "to_s" in header:
        return "outages"
    if "per_1000_days" in header or {"cause", "per"} <= header:
        return "failures"
    if "join_s" in header or "leave_s" in header:
        return "capacity"
    if "model" in header and not header & {"job_id", "iterations", "arrival_s", "other"}:
        return "throughputs"
    return "servers" if "gpus" in header and not header & {"job_id", "iterations", "arrival_s"} else "workload"


def _workload(path: Path, beside: _Beside) -> dict[str, Any]:
    from ddlsched.workload.workload_files import read_workload

    workload, cluster = read_workload(path), beside.usual
    gpus = np.array([job.num_gpus for job in workload])
    arrivals_s = np.array([job.arrival_s for job in workload])
    service_s = sum(job.service_ns for job in workload) / 1e9
    grouped = sum(bool(job.dag.groups) for job in workload)
    return {
        "jobs": len(workload),
        "gpus_of_a_job": _quantiles(gpus),
        "jobs_of_1_gpu": int((gpus == 1).sum()),
        "jobs_of_2_to_4_gpus": int(((gpus >= 2) & (gpus <= 4)).sum()),
        "jobs_of_8_or_more_gpus": int((gpus >= 8).sum()),
        "arrivals_s": [float(arrivals_s.min()), float(arrivals_s.max())],
        "gpu_hours_of_compute": round(service_s / 3600, 3),
        "jobs_that_never_fit": _misfits(workload, cluster),
        **({"jobs_with_groups": grouped, "collectives": collectives(workload)} if grouped else {}),
        **kinds_of_gpus(workload, cluster),
        **(network_summary(cluster) if beside.network else {}),
        **(going_on(workload, cluster, beside.price) if beside.price else {}),
    }


def _misfits(workload: Workload, cluster: Cluster) -> int:
    """Return how many jobs can never be placed on the cluster."""
    from ddlsched.engine.build import num_large_enough

    ascending_bytes = np.sort(cluster.gpu_memory_bytes)
    return sum(job.num_gpus > num_large_enough(job, ascending_bytes) for job in workload)


def _quantiles(values: Any) -> list[float]:
    return [float(value) for value in np.quantile(values, [0.0, 0.5, 1.0])]


def _servers(path: Path, beside: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.cluster_files import read_cluster

    cluster = read_cluster(path, topology=beside.usual.topology)
    counts: Counter[str] = Counter()
    for server in cluster.servers:
        counts.update({server.gpu_kind: server.gpus} if server.gpu_kind else {})
    kinds = ", ".join(f"{kind} ({count} GPUs)" for kind, count in counts.items())
    return {
        "servers": cluster.num_servers,
        "gpus": cluster.num_gpus,
        "gpu_memory_mb": _quantiles([server.gpu_memory_mb for server in cluster.servers]),
        "relative_speed": _quantiles([server.relative_speed for server in cluster.servers]),
        **({"gpu_kinds": kinds} if kinds else {}),
        "exclusive": cluster.exclusive,
        **(network_summary(cluster) if beside.network else {}),
    }


def _throughputs(path: Path, beside: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.cluster_files import read_throughputs

    return throughput_summary(read_throughputs(path), beside.cluster)


def _outages(path: Path, beside: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.disturbances import read_outages

    outages = read_outages(path)
    last = max((outage.server for outage in outages), default=0)
    cluster = beside.cluster
    if cluster is not None and last >= cluster.num_servers:
        raise InputError(f"{path}: server {last} is down; expected servers from 0 to {cluster.num_servers - 1}")
    return {
        "outages": len(outages),
        "servers": len({outage.server for outage in outages}),
        "never_repaired": sum(outage.to_s == float("inf") for outage in outages),
    }


def _failures(path: Path, _: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.failure_causes import read_causes

    causes = read_causes(str(path))
    return {"causes": len(causes), "of_each": ", ".join(sorted({cause.per for cause in causes}))}


def _capacity(path: Path, beside: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.capacity import CapacityTrace

    trace = CapacityTrace.read(path)
    cluster = beside.cluster
    if cluster is not None:
        for where, row in csv_rows(path, ("server", "join_s", "leave_s"), ("warned",)):
            cell_whole(where, "server", row["server"], at_most=cluster.num_servers - 1, at_least=0)
    stays = trace.presences
    return {
        "stays": len(stays),
        "servers": len({stay.server for stay in stays}),
        "never_leave": sum(stay.leave_s == float("inf") for stay in stays),
        "leave_with_a_warning": sum(stay.warned for stay in stays),
        "joins_s": [min(stay.join_s for stay in stays), max(stay.join_s for stay in stays)],
    }


def _queues(path: Path, _: _Beside) -> dict[str, Any]:
    from ddlsched.cluster.cluster_files import read_tenants

    tenants = read_tenants(path)
    return {"queues": len(tenants.queues), "queues_that_take_jobs": len(tenants.leaves)}


def _comparison(path: Path, _: _Beside) -> dict[str, Any]:
    from pandas import DataFrame

    from ddlsched.comparisons.compare import planned
    from ddlsched.comparisons.comparison_tables import conditions
    from ddlsched.comparisons.settings import read_yaml

    plan = planned(*read_yaml(path))
    told = conditions(plan.described(), DataFrame())
    return {
        "policies": len(plan.policies),
        "workloads": len(plan.workloads),
        "clusters": len(plan.places),
        "seeds": len(plan.settings.seeds),
        "runs": len(plan.runs()),
        **({"conditions": " ".join(told)} if told else {}),
    }


_READERS: dict[str, Callable[[Path, _Beside], dict[str, Any]]] = {
    "workload": _workload,
    "servers": _servers,
    "throughputs": _throughputs,
    "outages": _outages,
    "failures": _failures,
    "capacity": _capacity,
    "queues": _queues,
    "comparison": _comparison,
}


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each thing found, for each kind of collective one."""
    for name, value in found.items():
        if isinstance(value, dict):
            for kind, own in value.items():
                few, many = own["workers"]
                sizes = f"{few}" if few == many else f"{few} to {many}"
                yield kind, f"{own['tuples']:,} over {sizes} workers, {own['message_bytes'] / 1e9:,.6g} GB in all runs"
        else:
            yield name.replace("_", " "), _text(name, value)


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        ends = ("first", "last") if name in ("arrivals_s", "joins_s") else ("smallest", "largest")
        names = ("smallest", "median", "largest") if len(value) == 3 else ends
        return ", ".join(f"{name} {number:g}" for name, number in zip(names, value, strict=True))
    return value if isinstance(value, str) else f"{value:,}"


_MOST_SERVERS = 48
"""Of so many, evenly spread, the paths of every pair are looked at."""


def collectives(workload: Workload) -> dict[str, Any]:
    """Return for each kind of collective of a workload its tuples of workers, their sizes and the bytes of all runs."""
    sizes: dict[str, list[int]] = defaultdict(list)
    message_bytes: dict[str, float] = defaultdict(float)
    for job in workload:
        tasks = job.dag.tasks
        for part in parts_of(tasks, job.dag.groups, job.num_gpus):
            task = tasks[part.task]
            if isinstance(task, CollectiveTask) and len(part.workers) > 1:
                sizes[task.kind].append(len(part.workers))
                message_bytes[task.kind] += task.message_bytes * job.iterations
    return {
        kind: {"tuples": len(own), "workers": [min(own), max(own)], "message_bytes": message_bytes[kind]}
        for kind, own in sizes.items()
    }


def kinds_of_gpus(workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """Return how fast the slowest and the fastest pair of a workload's model and a cluster's kind of GPUs is.

    Raises
    ------
    InputError
        A job's model lacks a throughput on a kind.
    """
    if cluster.throughputs is None:
        return {}
    cluster.refuse_without_throughput((workload.where(n), job.job_id, job.model) for n, job in enumerate(workload))
    models = {job.model for job in workload}
    speeds = [cluster.throughputs.speed(model, kind, "") for model in models for kind in cluster.kinds]
    return {"models": len(models), "speeds_by_kind": [min(speeds), max(speeds)]}


def throughput_summary(throughputs: Throughputs, cluster: Cluster | None) -> dict[str, Any]:
    """Return what is in a matrix of throughputs, and which kinds of a cluster it has.

    Raises
    ------
    InputError
        It lacks a kind of the cluster.
    """
    values = [throughput for *_, throughput in throughputs.values]
    return {
        "models": len(throughputs.models),
        "kinds": ", ".join(throughputs.kinds),
        "missing_pairs": len(throughputs.models) * len(throughputs.kinds) - len(values),
        "throughputs": [min(values), max(values)],
        **({"kinds_of_the_servers": ", ".join(replace(cluster, throughputs=throughputs).kinds)} if cluster else {}),
    }


def network_summary(cluster: Cluster) -> dict[str, Any]:
    """Return the links of a cluster's network, by what they are, and the paths that a pair of servers has.

    Raises
    ------
    InputError
        A route or path that is none.
    """
    from ddlsched.simulation import network_of

    network = network_of(cluster)
    num_cards, num_ports = cluster.num_servers * network.cards, len(network.links[network.ports])
    return {
        "network_cards": num_cards,
        "card_gbps": network.nic_bytes_per_s * 8 / 1e9,
        **({"ports_of_gpus": num_ports, "port_gbps": network.inside.gpu_gbps} if network.inside else {}),
        "links_between_switches": len(network.links) - num_cards - num_ports,
        **_paths(network, cluster.num_servers),
    }


def _paths(network: Network, num_servers: int) -> dict[str, Any]:
    """Return how many paths pairs of servers have, of all servers or of some that are evenly spread."""
    from statistics import median

    step = -(-num_servers // _MOST_SERVERS)
    pairs = list(permutations(range(0, num_servers, step), 2))
    if not pairs:
        return {}
    counts = [len(network.paths(network.node((a, 0)), network.node((b, 0)))) for a, b in pairs]
    for a, b in pairs:
        network.place_of_route(network.node((a, 0)), network.node((b, 0)))
    looked_at = {"pairs_looked_at": len(pairs)} if step > 1 else {}
    return {"paths_of_a_pair": [min(counts), float(median(counts)), max(counts)], **looked_at}


def going_on(workload: Workload, cluster: Cluster, disturbances: Disturbances) -> dict[str, Any]:
    """Return the price of going on, on the same servers and on others.

    On others all its workers' state crosses the cards of as few servers as hold the job, alone.
    """
    from ddlsched.engine.stop_prices import going_on_elsewhere_s
    from ddlsched.simulation import network_of
    from ddlsched.workload.elastic_job import ElasticJob

    rigid = [job for job in workload if not isinstance(job, ElasticJob)]
    if not rigid:
        raise InputError("--restart-s, --state-mb: all jobs are elastic; expected --rescale-cost of 'simulate'")
    per_gpu_mb = np.array([disturbances.state_bytes(job.gpu_memory_bytes) for job in rigid]) / 1e6
    network = network_of(cluster)
    times_s = [going_on_elsewhere_s(disturbances, job, network, cluster.gpus_per_server) for job in rigid]
    return {
        "restart_s": disturbances.restart_s,
        "state_mb_of_a_gpu": _quantiles(per_gpu_mb),
        "going_on_elsewhere_s": _quantiles(times_s),
    }
