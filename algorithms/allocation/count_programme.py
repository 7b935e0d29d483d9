"""The exact allocation of interchangeable nodes: a multiple-choice knapsack over counts.

Nodes are interchangeable, and a job only adds or only loses nodes. So the objective depends on how many nodes each job
has, any counts that fit can be reached (who shrinks gives back what it likes, who grows takes what is free), and the
best counts are the best map of nodes to jobs (:mod:`algorithms.allocation.node_milp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms.allocation.programme import best_counts
from algorithms.allocation.sharing import Sharing, check_fields
from ddlsched.cluster import Cluster
from ddlsched.elastic.trainers import Trainer, gains
from ddlsched.errors import InputError

__all__ = ["CountProgramme"]


@dataclass(frozen=True, kw_only=True)
class CountProgramme:
    """The most samples within the look-ahead, less what changes cost: FreeTrain's and MalleTrain's optimum, exactly.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last.
    most_jobs
        How many jobs run at a time, first come, first served.
    scale_up_s, scale_down_s
        What changes of a job's size are believed to cost that states no constants of its own.
    believes
        ``curve``: the job's own, which its owner has supplied; ``linear``: that every node adds the speed of the first.

    References
    ----------
    Liu et al., arXiv 2106.12091 (BFTrainer, there solved as a node-level MILP); arXiv 2404.15668 (MalleTrain).
    """

    lookahead_s: float = 10.0
    most_jobs: int = 10
    scale_up_s: float = 18.0
    scale_down_s: float = 12.0
    believes: str = "curve"

    def __post_init__(self) -> None:
        times = {"scale_up_s": self.scale_up_s, "scale_down_s": self.scale_down_s}
        check_fields("malleable", self.most_jobs, lookahead_s=self.lookahead_s, **times)
        if self.believes not in (known := ("curve", "linear")):
            raise InputError(f"malleable: believes is {self.believes!r}; expected one of {', '.join(known)}")

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Sharing:
        """Return what is asked during a run."""
        return Sharing(
            self,
            most_jobs=self.most_jobs,
            scale_up_s=self.scale_up_s,
            scale_down_s=self.scale_down_s,
            is_linear=self.believes == "linear",
        )

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return the best size of each trainer; of equally good ones those with the fewest changes."""
        now = [trainer.nodes for trainer in trainers]
        return best_counts([gains(trainer, self.lookahead_s) for trainer in trainers], num_nodes, now)
