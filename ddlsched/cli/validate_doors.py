"""What ``ddlsched validate`` says of collectives, kinds of GPUs, the network, and the price of going on elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from ddlsched.errors import InputError
from ddlsched.workload.groups import parts_of
from ddlsched.workload.tasks import CollectiveTask

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.cluster.disturbances import Disturbances
    from ddlsched.cluster.throughputs import Throughputs
    from ddlsched.network.topology import Network
    from ddlsched.workload.job import Workload

__all__ = ["collectives", "going_on", "kinds_of_gpus", "network_of", "network_summary", "throughput_summary"]

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
        kind: {
            "tuples": len(own),
            "workers": [min(own), max(own)],
            "message_bytes": message_bytes[kind],
        }
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
    kinds = {} if cluster is None else {"kinds_of_the_servers": ", ".join(_with(cluster, throughputs).kinds)}
    return {
        "models": len(throughputs.models),
        "kinds": ", ".join(throughputs.kinds),
        "missing_pairs": len(throughputs.models) * len(throughputs.kinds) - len(values),
        "throughputs": [min(values), max(values)],
        **kinds,
    }


def _with(cluster: Cluster, throughputs: Throughputs) -> Cluster:
    return replace(cluster, throughputs=throughputs)


def network_of(cluster: Cluster) -> Network:
    """Return the network between a cluster's servers."""
    from ddlsched.plugins.names import resolve

    topology = resolve("topology", cluster.topology)
    return cluster.network(topology)


def network_summary(cluster: Cluster) -> dict[str, Any]:
    """Return the links of a cluster's network, by what they are, and the paths that a pair of servers has.

    Raises
    ------
    InputError
        A route or path that is none.
    """
    network = network_of(cluster)
    num_cards, num_ports = cluster.num_servers * network.cards, len(network.links[network.ports])
    return {
        "network_cards": num_cards,
        "card_gbps": network.nic_bytes_per_s * 8 / 1e9,
        **({} if network.inside is None else _inside(network)),
        "links_between_switches": len(network.links) - num_cards - num_ports,
        **_paths(network, cluster.num_servers),
    }


def _inside(network: Network) -> dict[str, Any]:
    assert network.inside is not None
    return {"ports_of_gpus": len(network.links[network.ports]), "port_gbps": network.inside.gpu_gbps}


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
    import numpy as np

    from ddlsched.engine.stop_prices import going_on_elsewhere_s
    from ddlsched.workload.elastic_job import ElasticJob

    rigid = [job for job in workload if not isinstance(job, ElasticJob)]
    if not rigid:
        raise InputError(
            "--restart-s, --state-mb: all jobs are elastic; expected --rescale-cost of 'simulate' for them"
        )
    per_gpu_mb = np.array([disturbances.state_bytes(job.gpu_memory_bytes) for job in rigid]) / 1e6
    network = network_of(cluster)
    times_s = [going_on_elsewhere_s(disturbances, job, network, cluster.gpus_per_server) for job in rigid]
    return {
        "restart_s": disturbances.restart_s,
        "state_mb_of_a_gpu": [float(value) for value in np.quantile(per_gpu_mb, [0.0, 0.5, 1.0])],
        "going_on_elsewhere_s": [float(value) for value in np.quantile(times_s, [0.0, 0.5, 1.0])],
    }
