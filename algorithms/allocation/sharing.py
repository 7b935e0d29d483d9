"""From an allocator of interchangeable nodes to an allocation policy: the first jobs in the queue share all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.ranges import Checked, ranged
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob
from ddlsched.workload.trainers import NodeAllocator, Numbers, Trainer


@dataclass(frozen=True, kw_only=True)
class SharingPolicy(Checked):
    """What every policy is given that shares nodes among the first jobs of the queue.

    Parameters
    ----------
    most_jobs
        How many jobs run at a time, first come, first served.
    scale_up_s
        What a larger size is believed to cost a job that states no constants of its own, seconds.
    scale_down_s
        The same of a smaller size.
    """

    most_jobs: int = ranged(10, 1)
    scale_up_s: float = ranged(18.0, 0.0)
    scale_down_s: float = ranged(12.0, 0.0)


class Sharing:
    """Admits jobs first come, first served up to a cap, and gives them what an allocator says, from their own curves.

    A node is a GPU here: of clusters whose servers have several, use one GPU a server.

    Parameters
    ----------
    allocator
        Who decides.
    policy
        Its cap, and the costs that it believes in.
    is_linear
        Whether every node is believed to add the speed of the first, whatever a job's curve says.
    """

    def __init__(self, allocator: NodeAllocator, policy: SharingPolicy, *, is_linear: bool = False) -> None:
        self._allocator, self._most_jobs, self._is_linear = allocator, policy.most_jobs, is_linear
        self._cost = ConstantRescaleCost(up_s=policy.scale_up_s, down_s=policy.scale_down_s)
        self._rates: dict[int, Numbers] = {}

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        """Return the nodes of each job."""
        served = jobs[: self._most_jobs]
        counts = self._allocator.counts([self.trainer(view) for view in served], capacity.num_gpus)
        return {view.job_id: Allocation(num_gpus=n) for view, n in zip(served, counts, strict=True) if n}

    def trainer(self, view: ElasticJobView) -> Trainer:
        """Return what is known of a job."""
        job = view.job
        if view.number not in self._rates:
            rates = rates_of(job)
            each = rates[job.min_gpus] / job.min_gpus
            self._rates[view.number] = np.arange(len(rates)) * each if self._is_linear else rates
        cost = job.rescale_cost if isinstance(job.rescale_cost, ConstantRescaleCost) else self._cost
        return Trainer(
            nodes=view.num_gpus,
            rates=self._rates[view.number],
            min_nodes=job.min_gpus,
            scale_up_s=cost.up_s,
            scale_down_s=cost.down_s,
        )


def rates_of(job: ElasticJob, reduce_s: Callable[[int], float] = lambda _: 0.0) -> Numbers:
    """Return a job's true rates on 0, 1, ..., most GPUs with the largest batch, samples/s; 0 below its fewest.

    ``reduce_s`` is the time of its all-reduce on so many.
    """
    rates = np.zeros(job.max_gpus + 1)
    for n in range(job.min_gpus, job.max_gpus + 1):
        batch = job.largest_batch(n)
        rates[n] = batch / (job.curve.iteration_s(n, batch) + reduce_s(n))
    return rates


def filled_knapsack(
    values: Iterable[np.ndarray], room: int, never: float, preferred: Sequence[int] | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the best sums with 0, 1, ..., ``room`` nodes, and of each job how many it then has.

    A multiple-choice knapsack, solved by ``P[j][k] = max over n of values[j][n] + P[j - 1][k - n]`` in jobs x nodes x
    choices. Of equally good numbers a job gets the one preferred (-1: none), or else the smallest.

    Parameters
    ----------
    values
        Of each job with 0, 1, 2, ... nodes; ``never`` where it cannot have as many.
    """
    best, chosen = np.zeros(room + 1, type(never)), list[np.ndarray]()
    for job, own in enumerate(values):
        own = own[: room + 1]
        padded = np.concatenate([np.full(len(own) - 1, never), best])
        # Row k, column n: the best of the jobs before with k - n nodes, and of this one with n.
        sums = np.lib.stride_tricks.sliding_window_view(padded, len(own))[:, ::-1] + own
        choice = sums.argmax(axis=1)
        best = np.maximum(sums[np.arange(room + 1), choice], never)
        if preferred is not None and 0 <= preferred[job] < len(own):
            choice[sums[:, preferred[job]] == best] = preferred[job]
        chosen.append(choice)
    return best, chosen


def counts_of(chosen: Sequence[np.ndarray], nodes: int) -> list[int]:
    """Return how many of so many nodes each job has, of what :func:`filled_knapsack` chose."""
    counts = list[int]()
    for choice in reversed(chosen):
        counts.append(int(choice[nodes]))
        nodes -= counts[-1]
    return counts[::-1]


@dataclass(frozen=True, kw_only=True)
class NodeEqualShare(Checked, who="malleable-equal-share"):
    """As many nodes for each job, up to its most; what is left over goes to the first that have room for it.

    Parameters
    ----------
    most_jobs
        How many jobs run at a time, first come, first served.
    """

    most_jobs: int = ranged(10, 1)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Sharing:
        """Return what is asked during a run."""
        return Sharing(self, SharingPolicy(most_jobs=self.most_jobs, scale_up_s=0.0, scale_down_s=0.0))

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return the shares; a trainer that needs more than is left for it gets as little as it may."""
        sizes = [np.flatnonzero(trainer.allowed()) for trainer in trainers]
        shares = [int(each[0]) for each in sizes]
        for most in (num_nodes // max(len(trainers), 1), num_nodes):
            for j, allowed in enumerate(sizes):
                reach = min(most, shares[j] + num_nodes - sum(shares))
                shares[j] = int(allowed[allowed <= max(reach, shares[j])][-1])
        return shares
