"""The environments of one run, one a door: who starts, on which servers, with how many GPUs, and who may send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.loop.batch.transfers import MET
from ddlsched.envs.scheduling_env import Ask, AskedPolicy, Decision, JobSeconds, SchedulingEnv
from ddlsched.errors import InputError
from ddlsched.policies.choosing import JOB_FEATURES, Choosing, begun_placement, log_share, log_shares, queue_features
from ddlsched.policies.doors import Allocation, PlacementPolicy
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.views import ClusterView, GpuId, JobView, NetworkView, TransferView
from ddlsched.ranges import check_arguments
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Workload

SERVER_FEATURES = ("eligible", "taken", "load")


class PlacementEnv(SchedulingEnv):
    """On which servers the job runs that is first in the queue, server by server.

    Action s takes as many of the job's GPUs on server s as are eligible and still needed, the least-loaded first; it is
    asked again until the job has all. The last action lets the job wait; it is allowed before the first server, and not
    on an idle cluster.

    ``job`` has the columns :data:`~ddlsched.policies.choosing.JOB_FEATURES`; ``servers`` has a row a server: the
    GPUs eligible, and taken by this job so far, as shares of the most that a server has; the load of the least-loaded
    eligible GPU, seconds, by :func:`~ddlsched.policies.choosing.log_share`.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"placement"})

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        servers = self.cluster.num_servers
        return {"job": (len(JOB_FEATURES),), "servers": (servers, len(SERVER_FEATURES))}, servers + 1

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a placement policy that asks where."""
        most = int(np.diff(self.cluster.first_gpus).max())
        return {"placement": _AskedPlacement(ask, seconds, most)}


@dataclass(frozen=True)
class _AskedPlacement(AskedPolicy):
    ask: Ask
    seconds: JobSeconds
    most_on_a_server: int

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return GPUs of the servers that were chosen one after the other."""
        by_server, servers = self._servers(cluster.eligible(job), cluster)
        (features,), _ = queue_features([job], cluster, 1)
        taken: list[GpuId] = []
        while len(taken) < job.num_gpus:
            server = self._chosen({"job": features, "servers": servers}, by_server, bool(taken), cluster)
            if server == cluster.num_servers:
                return None
            chosen = by_server.pop(server)[: job.num_gpus - len(taken)]
            servers[server] = 0, len(chosen) / self.most_on_a_server, 0
            taken += chosen
        self.seconds.started(job)
        return taken

    def _chosen(
        self, seen: dict[str, np.ndarray], by_server: Mapping[int, list[GpuId]], has_some: bool, cluster: ClusterView
    ) -> int:
        """Return the next server, or one more than there are: the job waits."""
        may_wait = not has_some and not cluster.is_idle
        if len(by_server) + may_wait == 1:
            return next(iter(by_server), cluster.num_servers)
        mask = np.zeros(cluster.num_servers + 1, bool)
        mask[list(by_server)] = True
        mask[-1] = may_wait
        return self.ask(Decision(cluster.now_s, seen | {"servers": seen["servers"].copy()}, mask))

    def _servers(self, eligible: np.ndarray, cluster: ClusterView) -> tuple[dict[int, list[GpuId]], np.ndarray]:
        """Return the eligible GPUs of each server that has some, the least-loaded first, and the servers' features."""
        loads_ns = cluster.loads_of(eligible)
        order = np.argsort(loads_ns, kind="stable")
        servers = cluster.servers_of(eligible)[order]
        found: dict[int, list[GpuId]] = {}
        for server, gpu in zip(servers.tolist(), eligible[order].tolist(), strict=True):
            found.setdefault(server, []).append(gpu)
        features = np.zeros((cluster.num_servers, len(SERVER_FEATURES)), np.float32)
        present, first = np.unique(servers, return_index=True)
        features[present, 0] = np.bincount(servers)[present] / self.most_on_a_server
        features[present, 2] = log_shares(loads_ns[order][first] / NS_PER_S)
        return found, features


class OrderEnv(SchedulingEnv):
    """Who of the queue starts next, or nobody until something has changed.

    Asked while a job has room. Action i starts the i-th job of the queue, where ``placement`` puts it; the last action
    waits. Waiting is not allowed on an idle cluster. Decisions without a choice are not asked for.

    ``queue`` has a row a job, columns :data:`~ddlsched.policies.choosing.JOB_FEATURES`, in the order of
    ``order``.

    Parameters
    ----------
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.scheduling_env.SchedulingEnv`.
    placement
        Where jobs run: a policy with ``place``, or its name.
    slots
        Jobs of the queue that are seen.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"placement"})

    def __init__(
        self,
        workload: Workload | str | Path,
        *,
        placement: PlacementPolicy | str = "lwf",
        slots: int = 16,
        **given: Any,
    ) -> None:
        check_arguments(type(self).__name__, slots=(slots, 1))
        self.slots, self.placement = slots, placement
        super().__init__(workload, **given)

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"queue": (self.slots, len(JOB_FEATURES))}, self.slots + 1

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a placement policy that asks who starts."""

        def choose(features: np.ndarray, allowed: np.ndarray, now_s: float) -> int:
            return ask(Decision(now_s, {"queue": features}, allowed))

        return {"placement": _Of(self.placement, lambda own: Choosing(own, self.slots, choose, seconds.started))}


@dataclass(frozen=True)
class _Of:
    """A placement policy that is made of another one once that has begun."""

    placement: PlacementPolicy | str
    made: Callable[[Any], Any]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return the policy with the one that decides."""
        return self.made(begun_placement(self.placement, cluster, rng))


ELASTIC_JOB_FEATURES = ("gpus", "least", "most", "samples_left", "waited", "rescaling_left")
SUMS = ("gpus_left", "jobs_left", "jobs")


class AllocationEnv(SchedulingEnv):
    """How many GPUs each elastic job has from now on, job by job in the order of arrival: action n gives n GPUs.

    Asked whenever a job came or left; the batch is the largest. 0 is not allowed to the last job while the cluster
    would be idle. All jobs must be elastic.

    ``job`` has the GPUs that it has, at least needs and at most uses, as shares of the cluster's; samples left, time
    since its arrival and time for which it is still being resized, s, by
    :func:`~ddlsched.policies.choosing.log_share`. ``cluster`` has the GPUs not given yet as a share; the jobs to
    be asked after this one, and all, by the same function.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"allocation"})

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"job": (len(ELASTIC_JOB_FEATURES),), "cluster": (len(SUMS),)}, self.cluster.num_gpus + 1

    def _check(self, jobs: Workload) -> None:
        other = next((job.job_id for job in jobs if not isinstance(job, ElasticJob)), None)
        if other is not None:
            raise InputError(f"job {other!r} is not elastic; expected elastic jobs only")

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return an allocation policy that asks how many."""
        return {"allocation": _AskedAllocation(ask, seconds)}


@dataclass(frozen=True)
class _AskedAllocation(AskedPolicy):
    ask: Ask
    seconds: JobSeconds

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return what is decided for each job."""
        self.seconds.there(len(jobs))
        left, given = capacity.num_gpus, {}
        for place, job in enumerate(jobs):
            last_chance = left == capacity.num_gpus and place + 1 == len(jobs)
            num_gpus = self._chosen(job, (left, len(jobs) - 1 - place, len(jobs)), capacity, now_s, last_chance)
            if num_gpus:
                given[job.job_id] = Allocation(num_gpus)
            left -= num_gpus
        return given

    def _chosen(
        self, job: ElasticJobView, sums: tuple[int, int, int], capacity: CapacityView, now_s: float, last_chance: bool
    ) -> int:
        num_gpus, left = capacity.cluster.num_gpus, sums[0]
        least, most = job.job.min_gpus, min(job.job.max_gpus, left)
        if most < least:
            return 0
        if last_chance and most == least:
            return least
        mask = np.zeros(num_gpus + 1, bool)
        mask[least : most + 1] = True
        mask[0] = not last_chance
        observed = {
            "job": np.array(_features(job, num_gpus, now_s), np.float32),
            "cluster": np.array([left / num_gpus, log_share(sums[1]), log_share(sums[2])], np.float32),
        }
        return self.ask(Decision(now_s, observed, mask))


def _features(job: ElasticJobView, num_gpus: int, now_s: float) -> tuple[float, ...]:
    return (
        job.num_gpus / num_gpus,
        job.job.min_gpus / num_gpus,
        min(job.job.max_gpus, num_gpus) / num_gpus,
        log_share(job.samples_left),
        log_share(now_s - job.job.arrival_s),
        log_share(job.rescaling_left_s),
    )


_TRANSFER_FEATURES = ("bytes_left", "time_left", "gpus", "present")
_Row: TypeAlias = tuple[float, float, float, float]
_NOBODY: _Row = (0.0, 0.0, 0.0, 0.0)
_BOTH = np.ones(2, bool)


class CommunicationEnv(SchedulingEnv):
    """Whether a transfer starts now, beside those that run on its links: action 1, or waits: 0.

    Asked for each transfer that waits and would meet another; one that meets nobody starts.

    ``transfers`` has a row for the transfer and for the first 4 that it would meet: MB left and the compute time left
    of its job, s, by :func:`~ddlsched.policies.choosing.log_share`, the job's GPUs / the cluster's, and 1.
    ``most`` is the most transfers on one of its links, by the same function.

    Parameters
    ----------
    workload, cluster, settings, unit_s
        As of :class:`~ddlsched.envs.scheduling_env.SchedulingEnv`.
    placement
        Where jobs run: a policy with ``place``, or its name.
    """

    doors: ClassVar[frozenset[str]] = frozenset({"communication", "placement"})

    def __init__(
        self, workload: Workload | str | Path, *, placement: PlacementPolicy | str = "lwf", **given: Any
    ) -> None:
        self.placement = placement
        super().__init__(workload, **given)

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"transfers": (1 + MET, len(_TRANSFER_FEATURES)), "most": (1,)}, 2

    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return a communication policy that asks, and a placement that notes who starts."""
        return {
            "communication": _AskedAdmission(ask, self.cluster.num_gpus),
            "placement": _Of(self.placement, lambda own: _Noting(own, seconds)),
        }


class _AskedAdmission(AskedPolicy):
    compiled: ClassVar[bool] = False

    def __init__(self, ask: Ask, num_gpus: int) -> None:
        self._ask, self._num_gpus = ask, num_gpus
        self._rows: dict[int, _Row] = {}
        self._rows_ns = -1

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return what is decided."""
        met = network.met_by(transfer)
        if not met:
            return True
        if network.now_ns != self._rows_ns:
            self._rows, self._rows_ns = {}, network.now_ns
        rows = [self._row(each) for each in (transfer, *met[:MET])]
        features = np.array(rows + [_NOBODY] * (1 + MET - len(rows)), np.float32)
        most = np.array([log_share(network.most_on_links_of(transfer))], np.float32)
        return bool(self._ask(Decision(network.now_s, {"transfers": features, "most": most}, _BOTH)))

    def _row(self, transfer: TransferView) -> _Row:
        """Return the features of a transfer, which at an instant stay the same whatever is decided."""
        row = self._rows.get(transfer.number)
        if row is None:
            job = transfer.job
            time_left_s = job.remaining_service_ns / job.num_gpus / NS_PER_S
            mb_left, gpus = transfer.bytes_left / 1e6, job.num_gpus / self._num_gpus
            row = self._rows[transfer.number] = (log_share(mb_left), log_share(time_left_s), gpus, 1.0)
        return row


class _Noting:
    def __init__(self, placement: Any, seconds: JobSeconds) -> None:
        self._placement, self._seconds = placement, seconds

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return what the placement policy answers."""
        gpus: Sequence[GpuId] | None = self._placement.place(job, cluster)
        if gpus is not None:
            self._seconds.started(job)
        return gpus

    def wake_s(self, now_s: float) -> float | None:
        """Return when the placement policy wants to be asked again."""
        return self._placement.wake_s(now_s) if hasattr(self._placement, "wake_s") else None
