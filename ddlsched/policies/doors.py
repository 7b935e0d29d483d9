"""The plug-in doors, on one page. Write a class with the method of a door and pass an instance of it.

A policy is a keyword-only frozen dataclass: its parameters are its fields. It is given read-only views and
returns a value; it never changes anything, so it is tested without a simulator (:mod:`ddlsched.testing`).

What the views offer, in short (each documented in :mod:`ddlsched.policies.views`):

:class:`~ddlsched.policies.views.JobView`
    ``number, job_id, num_gpus, iterations, iterations_left, arrival_s, start_s, remaining_service_ns,
    attained_service_ns, compute_ns, message_bytes, communication_ns, gpu_memory_mb, gpus, servers, dag, model, user``
:class:`~ddlsched.policies.views.ClusterView`
    ``now_s, eligible_gpus(job), fits(job, gpu), gpus_of(server), server_of(gpu), residents(gpu),
    num_residents(gpu), load_ns(gpu), loads_ns(), server_loads_ns(), free_memory_mb(gpu), network``; for large
    clusters the same on numpy arrays: ``eligible(job), loads_of(gpus), least_loaded(gpus, count), servers_of(gpus),
    server_ranks(servers)``
:class:`~ddlsched.policies.views.TransferView`
    ``number, job, links, servers, message_bytes, bytes_left, is_active``
:class:`~ddlsched.policies.views.NetworkView`
    ``now_s, active, waiting, met_by(transfer), most_on_links_of(transfer), transfers_on(link), num_on(link),
    links, per_byte_s, penalty_per_byte_s``
:class:`~ddlsched.policies.elastic_views.ElasticJobView`
    ``number, job_id, job, samples_left, num_gpus, gpus, batch, lost_gpus, rescaling_left_s, start_s``
:class:`~ddlsched.policies.elastic_views.CapacityView`
    ``num_gpus, free_gpus, queued, cluster, network, server_of(gpu), all_reduce_s(message_bytes, num_servers)``

Jobs share GPUs as far as memory allows; a placement that wants a GPU for itself checks
``cluster.num_residents(gpu) == 0``.

Each of these policies may add two methods:

``begin(cluster, rng)``
    Called once a run with the :class:`~ddlsched.cluster.cluster.Cluster` and a seeded random generator; returns the
    object that is asked during that run. For policies with memory or randomness. Default: the policy itself.
``wake_s(now_s)``
    Asked after each round of the policy's decisions; returns a time at which it wants to be asked again even
    if nothing has happened by then, or None. A time that has passed is as good as None. A communication policy's
    wake runs a communication round, any other's a round of allocation and placement. The engine asks the object
    that ``begin`` returned.

Contention models and topologies are the other two doors, without these two methods: see
:class:`ddlsched.network.contention.ContentionModel` and :class:`ddlsched.network.topology.Topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import ClusterView, GpuId, JobView, NetworkView, TransferView

__all__ = [
    "DROP",
    "Allocation",
    "AllocationPolicy",
    "Begins",
    "CommunicationPolicy",
    "Drop",
    "NonPreemptivePolicy",
    "OrderingPolicy",
    "PlacementPolicy",
    "PreemptivePolicy",
    "TransferKeyPolicy",
    "Wakes",
]


@runtime_checkable
class OrderingPolicy(Protocol):
    """Who goes first: in the queue, among ready transfers, and among the ready tasks of a GPU."""

    def key(self, job: JobView, now_s: float) -> Any:
        """Return what jobs are sorted by, smallest first: a number or a tuple of them.

        Ties go to the lower job number. Whole numbers (``remaining_service_ns``) keep ties exact.
        """
        ...


@runtime_checkable
class PlacementPolicy(Protocol):
    """On which GPUs a queued job runs, until it ends."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return ``job.num_gpus`` different GPUs with enough free memory, or None to let the job wait.

        Asked in order, whenever a job came or left (or a policy asked to be woken), for each queued job for
        which enough GPUs have the memory; jobs placed before it in the same round already count. The order of
        the GPUs is the job's placement order.
        """
        ...


@runtime_checkable
class NonPreemptivePolicy(Protocol):
    """Which ready transfers start; a started one runs to its end."""

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether a waiting transfer starts now.

        Asked for each waiting transfer, in order, whenever one ended or became ready; those admitted before
        it in the same round already count.
        """
        ...


@runtime_checkable
class TransferKeyPolicy(Protocol):
    """Which transfers run now, by a key; the others pause and keep their bytes (assumes chunked all-reduces)."""

    def transfer_key(self, transfer: TransferView, network: NetworkView) -> Any:
        """Return what transfers are sorted by, smallest first: a number or a tuple of them.

        Asked for all that run or wait, whenever a transfer ended or became ready. In this order (ties go to the lower
        number) each transfer runs that shares no link with one already taken.
        """
        ...


@runtime_checkable
class PreemptivePolicy(Protocol):
    """Which transfers run now, chosen in any way; called in Python."""

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> Iterable[TransferView]:
        """Return those of ``transfers`` (all that run or wait, in the job order) that run from now on.

        Asked whenever a transfer ended or became ready, unless none is left.
        """
        ...


CommunicationPolicy: TypeAlias = NonPreemptivePolicy | TransferKeyPolicy | PreemptivePolicy


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many GPUs an elastic job has from now on, and how many samples it trains an iteration.

    Parameters
    ----------
    num_gpus
        From the job's ``min_gpus`` to its ``max_gpus``.
    batch
        From ``job.smallest_batch(num_gpus)`` to ``job.largest_batch(num_gpus)``; by default the largest.
    gpus
        Which ones; by default the engine keeps as many of those it has as it can and adds the nearest free ones.
    """

    num_gpus: int
    batch: int | None = None
    gpus: tuple[GpuId, ...] | None = None


class Drop(Enum):
    """The type of :data:`DROP`."""

    DROP = "drop"


DROP: Literal[Drop.DROP] = Drop.DROP
"""In place of an :class:`Allocation`: the job is turned away for good."""


@runtime_checkable
class AllocationPolicy(Protocol):
    """How many GPUs, and which batch, each elastic job has now."""

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation | Drop]:
        """Return what each job has from now on, by ``job_id``; a job left out has nothing: it stops, or stays queued.

        Asked whenever a job came or left, servers joined or left, or a policy asked to be woken; before the
        placement of jobs that are not elastic. ``jobs`` are all elastic ones that are there, in the order of arrival.
        A job whose GPUs and batch stay the same goes on undisturbed; any other change takes its rescale cost.
        A job that lost GPUs with a server has been stopped: to have it go on with those left is a change too.
        """
        ...


@runtime_checkable
class Begins(Protocol):
    """A policy with memory or randomness within a run."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the object that is asked during this run."""
        ...


@runtime_checkable
class Wakes(Protocol):
    """A policy that needs time to pass."""

    def wake_s(self, now_s: float) -> float | None:
        """Return when to ask again at the latest, seconds, later than ``now_s``; or None."""
        ...
