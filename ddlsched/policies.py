"""The plug-in doors, on one page. Write a class with the method of a door and pass an instance of it.

A policy is a keyword-only frozen dataclass: its parameters are its fields. It is given read-only views and
returns a value; it never changes anything, so it is tested without a simulator (:mod:`ddlsched.testing`).

Each of these policies may add two methods:

``begin(cluster, rng)``
    Called once a run with the :class:`~ddlsched.cluster.Cluster` and a seeded random generator; returns the
    object that is asked during that run. For policies with memory or randomness. Default: the policy itself.
``wake_s(now_s)``
    Asked after each round of the policy's decisions; returns a time at which it wants to be asked again even
    if nothing has happened by then, or None. A time that has passed is as good as None. An order's or a
    placement's wake runs a placement round, a communication policy's a communication round.

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
