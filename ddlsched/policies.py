"""The plug-in doors, on one page. Write a class with the method of a door and pass an instance of it.

A policy is a keyword-only frozen dataclass: its parameters are its fields. It is given read-only views and
returns a value; it never changes anything, so it is tested without a simulator (:mod:`ddlsched.testing`).

What the views offer, in short (each documented in :mod:`ddlsched.views`):

:class:`~ddlsched.views.JobView`
    ``number, job_id, num_gpus, iterations, iterations_left, arrival_s, start_s, remaining_service_ns,
    attained_service_ns, compute_ns, message_bytes, communication_ns, gpu_memory_mb, gpus, servers, dag, model, user``
:class:`~ddlsched.views.ClusterView`
    ``now_s, eligible_gpus(job), fits(job, gpu), gpus_of(server), server_of(gpu), residents(gpu),
    num_residents(gpu), load_ns(gpu), loads_ns(), server_loads_ns(), free_memory_mb(gpu), network``; for large
    clusters the same on numpy arrays: ``eligible(job), loads_of(gpus), least_loaded(gpus, count), servers_of(gpus),
    server_ranks(servers)``
:class:`~ddlsched.views.TransferView`
    ``number, job, links, servers, message_bytes, bytes_left, is_active``
:class:`~ddlsched.views.NetworkView`
    ``now_s, active, waiting, met_by(transfer), most_on_links_of(transfer), transfers_on(link), num_on(link),
    links, per_byte_s, penalty_per_byte_s``

Jobs share GPUs as far as memory allows; a placement that wants a GPU for itself checks
``cluster.num_residents(gpu) == 0``.

Each of these policies may add two methods:

``begin(cluster, rng)``
    Called once a run with the :class:`~ddlsched.cluster.Cluster` and a seeded random generator; returns the
    object that is asked during that run. For policies with memory or randomness. Default: the policy itself.
``wake_s(now_s)``
    Asked after each round of the policy's decisions; returns a time at which it wants to be asked again even
    if nothing has happened by then, or None. A time that has passed is as good as None. An order's or a
    placement's wake runs a placement round, a communication policy's a communication round. The engine asks the
    object that ``begin`` returned.

Contention models and topologies are the other two doors, without these two methods: see
:class:`ddlsched.contention.ContentionModel` and :class:`ddlsched.topology.Topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ddlsched.cluster import Cluster
from ddlsched.views import ClusterView, GpuId, JobView, NetworkView, TransferView

__all__ = [
    "Begins",
    "CommunicationPolicy",
    "NonPreemptivePolicy",
    "OrderingPolicy",
    "PlacementPolicy",
    "PreemptivePolicy",
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
class PreemptivePolicy(Protocol):
    """Which transfers run now; the others pause and keep their bytes (assumes chunked all-reduces)."""

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> Iterable[TransferView]:
        """Return those of ``transfers`` (all that run or wait, in the job order) that run from now on.

        Asked whenever a transfer ended or became ready, unless none is left.
        """
        ...


CommunicationPolicy: TypeAlias = NonPreemptivePolicy | PreemptivePolicy


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
