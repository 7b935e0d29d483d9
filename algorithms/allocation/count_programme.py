"""The exact allocation of interchangeable nodes: a multiple-choice knapsack over counts.

Nodes are interchangeable, and a job only adds or only loses nodes. So the objective depends on how many nodes each job
has, any counts that fit can be reached (who shrinks gives back what it likes, who grows takes what is free), and the
best counts are the best map of nodes to jobs (:mod:`algorithms.allocation.node_milp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from algorithms.allocation.sharing import Sharing, SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.ranges import ranged
from ddlsched.workload.malleable.trainers import Trainer, gains

__all__ = ["CountProgramme", "best_counts"]

_BITS = 57
_CHANGE = 1 << 12
"""Units of gain that a change of a job's size must be worth: more than the roundings of thousands of jobs."""
_NEVER = -(1 << 60)


@dataclass(frozen=True, kw_only=True)
class CountProgramme(SharingPolicy):
    """The most samples within the look-ahead, less what changes cost: FreeTrain's and MalleTrain's optimum, exactly.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last.
    believes
        ``curve``: the job's own, which its owner has supplied; ``linear``: that every node adds the speed of the first.

    References
    ----------
    Liu et al., arXiv 2106.12091 (BFTrainer, there solved as a node-level MILP); arXiv 2404.15668 (MalleTrain).
    """

    lookahead_s: float = ranged(10.0, 0.0)
    believes: Literal["curve", "linear"] = "curve"

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Sharing:
        """Return what is asked during a run."""
        return Sharing(self, self, is_linear=self.believes == "linear")

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return the best size of each trainer; of equally good ones those with the fewest changes."""
        now = [trainer.nodes for trainer in trainers]
        return best_counts([gains(trainer, self.lookahead_s) for trainer in trainers], num_nodes, now)


def best_counts(gains: Sequence[npt.NDArray[np.float64]], nodes: int, now: Sequence[int]) -> list[int]:
    """Return the sizes with the greatest sum of gains; among those, with the fewest jobs changed.

    V_j(k) = max_n V_{j-1}(k - n) + gain_j(n), in O(jobs x nodes x sizes), over whole numbers: a unit is about 2^-57 of
    the sum of the largest gains, and sums within 2^-45 of it are ties, whatever the order of additions: it is to equal
    the MILP and to change as few jobs as can be, which elastic scaling's
    :func:`algorithms.allocation.elastic_scaling.best_counts` does not ask for.

    Parameters
    ----------
    gains
        Of each job, at 0, 1, ..., its most nodes; -inf where it may not be.
    nodes
        How many there are.
    now
        Each job's present size, which breaks ties.

    Raises
    ------
    InputError
        The jobs' least sizes need more nodes than there are.
    """
    best = np.zeros(nodes + 1, np.int64)
    choices = []
    for whole in _whole_gains(gains, now):
        window = whole[: nodes + 1]
        padded = np.concatenate([np.full(len(window) - 1, _NEVER), best])
        sums = sliding_window_view(padded, len(window))[:, ::-1] + window
        choice = sums.argmax(axis=1)
        best = np.maximum(sums[np.arange(nodes + 1), choice], _NEVER)
        choices.append(choice)
    left = int(best.argmax())
    if best[left] <= _NEVER // 2:
        raise InputError(f"allocation: the jobs' least sizes need more than the {nodes} nodes that there are")
    counts = []
    for choice in reversed(choices):
        counts.append(int(choice[left]))
        left -= counts[-1]
    return counts[::-1]


def _whole_gains(gains: Sequence[npt.NDArray[np.float64]], now: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Return gains in whole units, less what every change must be worth."""
    largest = sum(np.abs(gain[np.isfinite(gain)]).max(initial=0.0) for gain in gains)
    scale = 0.0 if largest == 0 else 2.0 ** (_BITS - np.ceil(np.log2(largest)))
    return [_whole(gain, float(scale), size) for gain, size in zip(gains, now, strict=True)]


def _whole(gain: npt.NDArray[np.float64], scale: float, now: int) -> npt.NDArray[np.int64]:
    can = np.isfinite(gain)
    whole = np.full(len(gain), _NEVER)
    whole[can] = np.rint(gain[can] * scale).astype(np.int64) - _CHANGE * (np.flatnonzero(can) != now)
    return whole
