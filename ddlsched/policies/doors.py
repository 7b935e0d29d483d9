"""The doors: what a policy may decide, on one page. Write a class with the method of a door and pass an instance of it.

A policy is a keyword-only frozen dataclass; its fields are its parameters. It is given read-only views and returns a
value. It changes nothing, so it is tested without a simulator (:mod:`ddlsched.testing`). ``docs/writing_policies.md``
has an example of each door.

What the views offer (:mod:`ddlsched.policies.views`, :mod:`ddlsched.policies.elastic_views`,
:mod:`ddlsched.network.contention`):

:class:`~ddlsched.policies.views.JobView`, in ``key`` and ``place``, and as ``transfer.job``
    ``number, priority, num_gpus, gpu_memory_mb, memory_bytes, iterations, iterations_left, arrival_s, arrival_ns,
    start_s, gpus, servers, compute_ns, message_bytes, service_ns, remaining_service_ns, attained_service_ns,
    used_service_ns, remaining_service_per_gpu_ns, communication_ns, remaining_communication_ns, remaining_time_ns``;
    in Python also
    ``job_id, model, user, dag, time_limit_s, queue, required_levels, preferred_levels, balanced_level``;
    ``remaining_service_per_gpu_ns`` and ``remaining_time_ns`` are pairs, whole nanoseconds and the rest of one
:class:`~ddlsched.policies.views.TransferView`, in ``admit``, ``transfer_key``, ``select`` and contention models
    ``number, job, links, servers, message_bytes, bytes_left, bytes_sent, is_active``; in Python also ``shares``
:class:`~ddlsched.policies.views.NetworkView`, in ``admit``, ``transfer_key`` and ``select``
    ``now_s, now_ns, active, waiting, met_by(transfer), most_on_links_of(transfer), transfers_on(link), num_on(link),
    links, per_byte_s, penalty_per_byte_s``
:class:`~ddlsched.network.contention.SharedLink`, in ``link_rate``
    ``number, num_transfers, relative_bandwidth, bandwidth_bytes_per_s``
:class:`~ddlsched.policies.views.ClusterView`, in ``place``
    ``now_s, now_ns, num_gpus, num_servers, exclusive, is_idle, eligible_gpus(job), fits(job, gpu), is_up(gpu),
    gpus_of(server), server_of(gpu), residents(gpu), num_residents(gpu), load_ns(gpu), loads_ns(), server_loads_ns(),
    free_memory_mb(gpu), relative_speed(gpu), kind_of(gpu), speed(job, gpu), network,
    all_reduce_s(message_bytes, num_servers), restricted_to(gpus),
    without(jobs)``; for large clusters the same on numpy arrays:
    ``eligible(job), free(job), room_for(memory_bytes), loads_of(gpus), least_loaded(gpus, count), servers_of(gpus),
    server_ranks(servers), units(level)``
:class:`~ddlsched.policies.views.FlowView`, in ``path``
    ``number, job, source, target, cards, paths, route, hash(seed)``
:class:`~ddlsched.policies.views.LinkLoads`, in ``path``
    ``now_s, now_ns, links, jobs_on(link), flows_on(link)``
:class:`~ddlsched.policies.elastic_views.ElasticJobView`, in ``allocate``
    ``number, job_id, job, samples_left, num_gpus, gpus, batch, lost_gpus, rescaling_left_s, start_s``
:class:`~ddlsched.policies.elastic_views.CapacityView`, in ``allocate``
    ``num_gpus, free_gpus, queued, cluster, network, server_of(gpu), all_reduce_s(message_bytes, num_servers)``

Jobs share GPUs as far as memory allows; a placement that wants a GPU for itself checks
``cluster.num_residents(gpu) == 0``.

A placement policy may have another method in place of ``place``:

``place_round(queue, cluster)``
    Yields pairs of a job that starts now and its GPUs; each starts before the next is asked for. When the method
    returns, nobody else starts in this round. ``queue`` has the views of all jobs that wait, in order, those too for
    which no GPUs have the memory; it makes only those that are looked at, and has their ``numbers`` as an array.
``reservations_ns()``
    Returns when jobs that wait are expected to start, by job number, nanoseconds; asked after each round of a recorded
    run, for ``ddlsched explain``. An admission policy may have it, too.

An order and a placement policy may have a method about jobs that run. It is asked at each round of placement, in
Python; what a stop or a move costs is said by ``restart_s`` and ``state_mb`` of
:class:`~ddlsched.cluster.disturbances.Disturbances`.

``stops(running, queue, cluster)``, of an order
    Returns those of the running jobs that stop now, if some run and some wait; asked before any ``place``. They lose
    the iteration under way and wait with the others, in this round already.
    :class:`~ddlsched.policies.stopping.StopsByKey` brings one that goes by the order's key.
``moves(running, cluster)``, of a placement policy
    Returns pairs of a running job and its new GPUs, which have the memory or are its own; asked after all ``place``,
    also if nobody waits. Memory is kept free for the job until its iteration has ended; then it goes there.

Two more methods, for any of these policies:

``begin(cluster, rng)``
    Called once a run with the :class:`~ddlsched.cluster.cluster.Cluster` and a seeded random generator; returns the
    object that is asked during that run. For memory and randomness. Default: the policy itself.
``wake_s(now_s)``
    Asked after each round of the policy's decisions; returns a time at which it wants to be asked again even
    if nothing has happened by then, or None. A time that has passed is as good as None. A communication policy's
    wake runs a communication round, any other's a round of allocation and placement. The engine asks the object
    that ``begin`` returned. A communication policy that has it is asked in Python, and so is an order without
    ``stops``; of an order with ``stops`` it is asked after each round of placement.

``key``, ``admit``, ``transfer_key``, ``link_rate``, ``weight`` and ``level``, and a ``path`` that is asked for each
transfer, are compiled from the class's own source; the other methods are called in Python. A class may say how:

``compiled``
    True: it is an error if the class cannot be compiled. False: it is asked in Python. Not stated: it is compiled, or a
    line on stderr says why it is asked in Python.
``refusal_lasts``, ``key_falls_while_sending``, ``key_is_linear``
    What the engine may rely on to skip ahead: :mod:`ddlsched.policies.promises`.

In a run with tenants (``queues=``) an admission policy says who may start and who gives way, in ``admit``
(:class:`~ddlsched.policies.tenants_view.AdmissionPolicy`). It is asked in place of the order; the placement policy
still chooses the GPUs, job by job.

Contention models, interference models and topologies are doors, too, without ``begin`` and ``wake_s``:
:class:`ddlsched.network.contention.ContentionModel`, :class:`ddlsched.cluster.interference.InterferenceModel`,
:class:`ddlsched.network.topology.Topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import (
    ClusterView,
    FlowView,
    GpuId,
    JobQueue,
    JobView,
    LinkLoads,
    NetworkView,
    TransferView,
)

Start: TypeAlias = tuple[JobView, Sequence[GpuId]]
"""A job that starts, and its GPUs in placement order."""


@runtime_checkable
class OrderingPolicy(Protocol):
    """Who goes first: in the queue, among ready transfers, and among the ready tasks of a GPU."""

    def key(self, job: JobView, now_s: float) -> Any:
        """Return what jobs are sorted by, smallest first: a number or a tuple of them.

        Ties go to the lower job number. Whole numbers (``remaining_service_ns``) keep ties exact.
        """


@runtime_checkable
class PlacementPolicy(Protocol):
    """On which GPUs a queued job runs, until it ends."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return ``job.num_gpus`` different GPUs with enough free memory, or None to let the job wait.

        Asked in order, whenever a job came or left (or a policy asked to be woken), for each queued job for
        which enough GPUs have the memory; jobs placed before it in the same round already count. The order of
        the GPUs is the job's placement order.
        """


@runtime_checkable
class NonPreemptivePolicy(Protocol):
    """Which ready transfers start; a started one runs to its end."""

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether a waiting transfer starts now.

        Asked for each waiting transfer, in order, whenever one ended or became ready; those admitted before
        it in the same round already count.
        """


@runtime_checkable
class TransferKeyPolicy(Protocol):
    """Which transfers run now, by a key; the others pause and keep their bytes (assumes chunked all-reduces)."""

    def transfer_key(self, transfer: TransferView, network: NetworkView) -> Any:
        """Return what transfers are sorted by, smallest first: a number or a tuple of them.

        Asked for all that run or wait, whenever a transfer ended or became ready. In this order (ties go to the lower
        number) each transfer runs that shares no link with one already taken.
        """


@runtime_checkable
class PreemptivePolicy(Protocol):
    """Which transfers run now, chosen in any way; called in Python."""

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> Iterable[TransferView]:
        """Return those of ``transfers`` (all that run or wait, in the job order) that run from now on.

        Asked whenever a transfer ended or became ready, unless none is left.
        """


@runtime_checkable
class PathPolicy(Protocol):
    """Which of the topology's paths the flows of a job take."""

    def path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return the place in ``flow.paths`` of the path that a flow takes.

        Asked when a job is placed, for each flow of its collectives; flows of the job that have their path count at
        once. It holds until the job leaves its GPUs. A class with ``chosen = "transfer"`` is asked instead whenever a
        transfer becomes ready, for each of its flows, and a path holds until the transfer ends; it is compiled. While
        the ``paths_version`` of one in Python is the same, if it has any, a flow keeps the path that it had before.
        """


@runtime_checkable
class RankOrder(Protocol):
    """Which worker of a job gets which of its GPUs; asked by the placement ``ranked``."""

    def order(self, job: JobView, gpus: Sequence[GpuId], cluster: ClusterView) -> Sequence[GpuId]:
        """Return the same GPUs in the order of the job's workers."""


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


@runtime_checkable
class Begins(Protocol):
    """A policy with memory or randomness within a run."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the object that is asked during this run."""


@runtime_checkable
class RoundPolicy(Protocol):
    """A placement policy that decides about all jobs that wait at once."""

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterable[Start]:
        """Yield the jobs that start, with their GPUs; each has started when the next is asked for."""


@runtime_checkable
class Wakes(Protocol):
    """A policy that needs time to pass."""

    def wake_s(self, now_s: float) -> float | None:
        """Return when to ask again at the latest, seconds, later than ``now_s``; or None."""
