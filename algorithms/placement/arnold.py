"""Arnold: the parallel groups of a large job on as few pods of the network as can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.solving import Solver
from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.elastic_views import free_by_server, on_one_server
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class Arnold(Checked, who="arnold"):
    """Where alpha x the most pods of a data-parallel group + beta x the most of a pipeline is least.

    The servers of the job are a matrix: a row a group that reduces gradients, a column one that passes activations on.
    A mixed-integer programme says how many servers of each pod each has. A job without such groups is one row. Jobs on
    one server go to the one with the fewest free GPUs that suffice.

    Assumed, as the programme is not published in full: its constraints (each server of the job in one pod, no more
    than the pod's free whole servers). alpha, which the paper takes from the most similar job that was measured, is a
    parameter. Left out: reserving the planned servers before the job comes. Within a pod servers are alike.

    Parameters
    ----------
    servers_per_pod
        Servers s to s + n - 1 for s a multiple of it are a pod: those under one leaf, or a pod of a Clos.
    alpha
        Weight of the data-parallel spread, from 0 to 1; beta is 1 - alpha. The paper's tests favoured pipelines.
    data
        What the data-parallel group is called in jobs' iterations.
    pipeline
        What the pipeline group is called there.
    time_limit_s
        Of one programme; the best found by then is used.

    References
    ----------
    He et al., "Arnold", NeurIPS 2025, arXiv 2509.15940.
    """

    servers_per_pod: int = ranged(4, 1, 1_000_000)
    alpha: float = ranged(0.5, 0.0, 1.0)
    data: str = "data"
    pipeline: str = "pipeline"
    time_limit_s: float = ranged(10.0, 0.0, above=True)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Planner:
        """Return the planner of a run."""
        return _Planner(self)


class _Planner:
    def __init__(self, policy: Arnold) -> None:
        self._policy = policy
        self.solver = Solver("placement arnold", policy.time_limit_s)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return the GPUs of a job, in the order of its workers."""
        free = free_by_server(cluster.free(job).tolist(), cluster.server_of)
        if chosen := on_one_server(free, job.num_gpus):
            return chosen
        most = max(len(cluster.gpus_of(server)) for server in range(cluster.num_servers))
        whole = [server for server, gpus in free.items() if len(gpus) == most]
        count = -(-job.num_gpus // most)
        if len(whole) < count:
            return None
        servers = self._planned(job, whole, count, most, cluster.now_s)
        return [gpu for server in servers for gpu in free[server]][: job.num_gpus]

    def _planned(self, job: JobView, whole: Sequence[int], count: int, gpus: int, now_s: float) -> list[int]:
        """Return the servers of a job, in the order of its workers."""
        room: dict[int, list[int]] = {}
        for server in whole:
            room.setdefault(server // self._policy.servers_per_pod, []).append(server)
        groups = self._groups(job, count, gpus)
        names = sorted(room, key=lambda pod: (-len(room[pod]), pod))
        pods = pods_of_servers(
            groups, count, [len(room[pod]) for pod in names], self._policy.alpha, self.solver, now_s, job.job_id
        )
        if pods is None:
            return [server for pod in names for server in room[pod]][:count]
        return [room[names[pod]].pop(0) for pod in pods]

    def _groups(self, job: JobView, count: int, gpus: int) -> tuple[list[set[int]], list[set[int]]]:
        """Return the servers, by their place in the job, of each data-parallel and each pipeline group."""
        rows, columns = (
            [{worker // gpus for worker in members} for members in job.dag.groups.get(name, ())]
            for name in (self._policy.data, self._policy.pipeline)
        )
        return rows or [set(range(count))], columns


def pods_of_servers(
    groups: tuple[Sequence[set[int]], Sequence[set[int]]],
    count: int,
    room: Sequence[int],
    alpha: float,
    solver: Solver,
    now_s: float = 0.0,
    job: str = "",
) -> list[int] | None:
    """Return the pod of each of a job's servers, or None if none was found.

    Parameters
    ----------
    groups
        Data-parallel and pipeline groups, each the places of its servers in the job.
    count
        Servers of the job.
    room
        Free servers of each pod.
    alpha
        Weight of the largest data-parallel spread; 1 - alpha that of the largest pipeline spread.
    """
    from ortools.math_opt.python import mathopt

    model, pods = mathopt.Model(name="arnold"), range(len(room))
    at = [[model.add_binary_variable() for _ in pods] for _ in range(count)]
    for row in at:
        model.add_linear_constraint(mathopt.fast_sum(row) == 1)
    for pod in pods:
        model.add_linear_constraint(mathopt.fast_sum(row[pod] for row in at) <= room[pod])
    worst = [model.add_integer_variable(lb=0, ub=len(room)) for _ in groups]
    for of_kind, spread in zip(groups, worst, strict=True):
        for members in of_kind:
            touched = [model.add_binary_variable() for _ in pods]
            for pod in pods:
                for server in members:
                    model.add_linear_constraint(at[server][pod] <= touched[pod])
            model.add_linear_constraint(mathopt.fast_sum(touched) <= spread)
    model.minimize(alpha * worst[0] + (1 - alpha) * worst[1])
    values = solver.solve(model, now_s, f"job {job!r}", is_whole=True)
    if values is None:
        return None
    return [next(pod for pod in pods if values[row[pod]] > 0.5) for row in at]
