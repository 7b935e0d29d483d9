"""The exact dynamic programme: how many GPUs each job gets, so that the sum of their values is the most."""

from __future__ import annotations

import numpy as np

__all__ = ["best_counts"]


def best_counts(values: np.ndarray, num_gpus: int, preferred: np.ndarray | None = None) -> np.ndarray | None:
    """Return the number of GPUs of each job in an optimum, or None if there is no way to give every job one.

    Here sums are of floats and ties are broken job by job; :func:`algorithms.allocation.count_programme.best_counts`
    makes the fewest changes in all, in whole numbers, because it has to equal a MILP in which changes cost.

    A multiple-choice knapsack, solved by ``P[j][k] = max over g of values[j, g] + P[j - 1][k - g]`` in jobs x GPUs x
    choices; GPUs may stay unused.

    Parameters
    ----------
    values
        Of each job (row) with 0, 1, 2, ... GPUs (column); -inf where it cannot have as many.
    num_gpus
        In all.
    preferred
        Where several numbers give a job's row the same sum, this one of each job if it is among them (-1: none), or
        else the smallest.

    References
    ----------
    Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", arXiv 2006.13878 (MASCOTS 2020).
    """
    jobs, choices = values.shape
    counts = np.arange(choices)
    best = np.zeros(num_gpus + 1)
    chosen = np.empty((jobs, num_gpus + 1), np.int32)
    padded = np.full(choices - 1 + num_gpus + 1, -np.inf)
    for job in range(jobs):
        padded[choices - 1 :] = best
        # Row g, column k: the best of the jobs before with k - g GPUs.
        before = np.lib.stride_tricks.sliding_window_view(padded, num_gpus + 1)[::-1]
        sums = before + values[job][:, None]
        chosen[job] = sums.argmax(axis=0)
        best = sums[chosen[job], np.arange(num_gpus + 1)]
        wanted = -1 if preferred is None else preferred[job]
        if 0 <= wanted < choices:
            chosen[job][sums[wanted] == best] = counts[wanted]
    if best[num_gpus] == -np.inf:
        return None
    return _backtrack(chosen, num_gpus)


def _backtrack(chosen: np.ndarray, num_gpus: int) -> np.ndarray:
    counts = np.empty(len(chosen), np.int64)
    for job in range(len(chosen) - 1, -1, -1):
        counts[job] = chosen[job, num_gpus]
        num_gpus -= int(counts[job])
    return counts
