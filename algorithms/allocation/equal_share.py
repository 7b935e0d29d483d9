"""Equal shares of the idle nodes: the baseline of BFTrainer and MalleTrain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.allocation.sharing import Sharing, SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.ranges import check_fields, ranged
from ddlsched.workload.malleable.trainers import Trainer

__all__ = ["NodeEqualShare"]


@dataclass(frozen=True, kw_only=True)
class NodeEqualShare:
    """As many nodes for each job, up to its most; what is left over goes to the first that have room for it.

    Parameters
    ----------
    most_jobs
        How many jobs run at a time, first come, first served.
    """

    most_jobs: int = ranged(10, 1)

    def __post_init__(self) -> None:
        check_fields(self, "malleable-equal-share")

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
