"""Views with given contents, so that a policy is tested without a simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.records import Columns, make_records
from ddlsched.network.topology import Link, Network, Topology
from ddlsched.plugins.names import resolve
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.view_parts import write_fields
from ddlsched.policies.views import ClusterView, FlowView, JobQueue, JobView, LinkLoads, NetworkView, TransferView
from ddlsched.units import bytes_from_mb, ns_from_s
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from ddlsched.workload.job import Job

_NIC_BYTES_PER_S = 1.25e9


def job_view(
    *,
    number: int = 0,
    num_gpus: int = 1,
    arrival_s: float = 0.0,
    iterations: int = 100,
    compute_s: float = 0.1,
    message_bytes: float = 100e6,
    gpu_memory_mb: float = 1000.0,
    iterations_left: int | None = None,
    servers: Sequence[int] = (),
    gpus: Sequence[int] = (),
    **others: Any,
) -> JobView:
    """Return the view of a job of which whole iterations are done; placed if ``servers`` are given.

    ``others`` are what else a :class:`~ddlsched.Job` has, such as ``model``, ``queue`` or ``time_limit_s``.
    """
    iteration = DataParallelIteration(forward_s=compute_s, backward_s=0.0, message_bytes=message_bytes)
    job = Job(
        job_id=f"job-{number}",
        arrival_s=arrival_s,
        num_gpus=num_gpus,
        iterations=iterations,
        iteration=iteration,
        gpu_memory_mb=gpu_memory_mb,
        **others,
    )
    records = make_records("job", 1)
    write_fields(JobView, records, [job])
    record = records[0]
    record.iterations_left = iterations if iterations_left is None else iterations_left
    record.remaining_service_ns = job.compute_ns * record.iterations_left * num_gpus
    view = JobView(job, number, Columns(records), 0)
    view._placed(tuple(gpus), tuple(servers))
    return view


def cluster_view(
    *,
    num_servers: int = 4,
    gpus_per_server: int = 4,
    free_memory_mb: Sequence[float] | float = 32768.0,
    load_s: Sequence[float] | float = 0.0,
    now_s: float = 0.0,
    residents: Mapping[int, Sequence[JobView]] | None = None,
    topology: Topology | str = "star",
    exclusive: bool = False,
) -> ClusterView:
    """Return the view of a cluster; free memory and load are one for all GPUs or one for each.

    If it is exclusive, a GPU with a resident has no free memory.
    """
    cluster = Cluster(num_servers=num_servers, gpus_per_server=gpus_per_server, exclusive=exclusive)
    num_gpus = cluster.num_gpus
    gpus = make_records("gpu", num_gpus)
    gpus.server = cluster.server_of_gpu
    gpus.free_bytes = [bytes_from_mb(float(mb)) for mb in np.broadcast_to(free_memory_mb, num_gpus)]
    load_ns = np.array([ns_from_s(float(s)) for s in np.broadcast_to(load_s, num_gpus)], np.int64)
    shared = {gpu: list(jobs) for gpu, jobs in (residents or {}).items()}
    for gpu, jobs in shared.items():
        gpus.num_residents[gpu] = len(jobs)
        if exclusive and jobs:
            gpus.free_bytes[gpu] = -1
    network = Network(resolve("topology", topology), num_servers)
    return ClusterView(
        Columns(gpus),
        cluster,
        lambda asked: load_ns[asked],
        lambda memory_bytes: np.flatnonzero(gpus.free_bytes >= memory_bytes),
        ns_from_s(now_s),
        network,
        lambda gpu: shared.get(gpu, []),
        lambda message_bytes, _: message_bytes / _NIC_BYTES_PER_S,
    )


def job_queue(*jobs: JobView) -> JobQueue:
    """Return jobs that wait, in this order."""
    by_number = {job.number: job for job in jobs}
    views = [by_number.get(number, jobs[0]) for number in range(max(by_number, default=-1) + 1)]
    return JobQueue(np.array([job.number for job in jobs], np.int64), views)


def transfer_view(
    job: JobView, *, bytes_left: float | None = None, message_bytes: float = 100e6, links: Sequence[int] | None = None
) -> TransferView:
    """Return the view of a job's all-reduce; on a star the links are the job's servers, which is the default."""
    records = make_records("transfer", 1)
    records.bytes = message_bytes
    records.bytes_left = message_bytes if bytes_left is None else bytes_left
    records.state = TransferState.WAITING
    crossed = tuple(sorted(job.servers) if links is None else links)
    return TransferView(job.number, job, crossed, Columns(records), 0, Columns(make_records("run", 1)))


def example_network(num_servers: int = 6) -> list[Link]:
    """Return the links of a star of equal servers."""
    return _links("server", num_servers, {})


def _links(what: str, count: int, relative_bandwidth: Mapping[int, float]) -> list[Link]:
    shares = [relative_bandwidth.get(number, 1.0) for number in range(count)]
    return [
        Link(name=f"{what} {number}", bandwidth_bytes_per_s=_NIC_BYTES_PER_S * share, relative_bandwidth=share)
        for number, share in enumerate(shares)
    ]


def network_view(
    *,
    active: Sequence[TransferView] = (),
    waiting: Sequence[TransferView] = (),
    num_links: int = 4,
    per_byte_s: float = 8.56e-10,
    penalty_per_byte_s: float = 2.35e-10,
    now_s: float = 0.0,
) -> NetworkView:
    """Return the view of a network of equal links."""
    links, count = example_network(num_links), np.zeros(num_links, np.int64)
    for transfer in active:
        transfer._columns.state[0] = TransferState.ACTIVE
        np.add.at(count, list(transfer.links), 1)
    return NetworkView(
        links, count, lambda: list(active), lambda: list(waiting), per_byte_s, penalty_per_byte_s, ns_from_s(now_s)
    )


def flow_view(
    job: JobView, paths: Sequence[Sequence[int]], *, number: int = 0, source: int = 0, target: int = 1, route: int = 0
) -> FlowView:
    """Return the view of a job's flow of some number that may take some paths, each the numbers of its links."""
    return FlowView(number, job, source, target, [tuple(links) for links in paths], route)


def link_loads(
    *,
    num_links: int = 4,
    jobs: Mapping[int, int] | None = None,
    flows: Mapping[int, int] | None = None,
    relative_bandwidth: Mapping[int, float] | None = None,
    now_s: float = 0.0,
) -> LinkLoads:
    """Return what is on links: the jobs and flows on some of them, none on the others."""
    jobs, flows, links = jobs or {}, flows or {}, _links("link", num_links, relative_bandwidth or {})
    return LinkLoads(links, lambda link: jobs.get(link, 0), lambda link: flows.get(link, 0), ns_from_s(now_s))


def elastic_job_view(
    *,
    number: int = 0,
    samples_left: int | None = None,
    gpus: Sequence[int] = (),
    batch: int = 0,
    lost_gpus: int = 0,
    **others: Any,
) -> ElasticJobView:
    """Return the view of an elastic job; by default one on 1 to 8 GPUs, in proportion to which its speed grows.

    ``others`` are what else an :class:`~ddlsched.workload.elastic_job.ElasticJob` has, such as ``curve`` or
    ``min_gpus``.
    """
    usual: dict[str, Any] = {"arrival_s": 0.0, "samples": 100_000, "gpu_batch": 32, "max_gpus": 8}
    curve = LinearCurve(fixed_s=0.0, sample_s=0.01)
    job = ElasticJob(job_id=f"job-{number}", **usual | {"curve": curve} | others)
    left = job.samples if samples_left is None else samples_left
    return ElasticJobView(job=job, number=number, samples_left=left, gpus=tuple(gpus), batch=batch, lost_gpus=lost_gpus)


def capacity_view(
    *, num_servers: int = 4, gpus_per_server: int = 4, held: Sequence[int] = (), absent: Sequence[int] = ()
) -> CapacityView:
    """Return the GPUs of a cluster of which elastic jobs hold some, and of which some servers are absent."""
    cluster = Cluster(num_servers=num_servers, gpus_per_server=gpus_per_server)
    there = [gpu for gpu in range(cluster.num_gpus) if gpu // gpus_per_server not in absent]
    free = tuple(gpu for gpu in there if gpu not in held)
    return CapacityView(num_gpus=len(there), free_gpus=free, cluster=cluster)
