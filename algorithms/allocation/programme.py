"""The exact dynamic programme: how many GPUs each job gets, so that the sum of their gains is the most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from ddlsched.errors import InputError

__all__ = ["best_counts"]

_BITS = 57
_CHANGE = 1 << 12
"""Units of gain that a change of a job's size must be worth: more than the roundings of thousands of jobs."""
_NEVER = -(1 << 60)


def best_counts(gains: Sequence[npt.NDArray[np.float64]], num_gpus: int, now: Sequence[int]) -> list[int]:
    """Return the sizes with the greatest sum of gains; among those, with the fewest jobs changed.

    A multiple-choice knapsack, V_j(k) = max_n V_{j-1}(k - n) + gain_j(n), in O(jobs x GPUs x sizes); GPUs may stay
    unused. It is over whole numbers: a unit is about 2^-57 of the sum of the largest gains, and sums within 2^-45 of
    it are ties, whatever the order of additions.

    Parameters
    ----------
    gains
        Of each job, with 0, 1, ..., its most GPUs; -inf where it may not have as many.
    num_gpus
        How many there are.
    now
        Each job's present size, which breaks ties; where that does not, smaller sizes do.

    Raises
    ------
    InputError
        The jobs' least sizes need more GPUs than there are.

    References
    ----------
    Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", arXiv 2006.13878 (MASCOTS 2020).
    """
    best = np.zeros(num_gpus + 1, np.int64)
    widest = max(map(len, gains), default=1)
    padded = np.full(widest + num_gpus, _NEVER)
    columns = np.arange(num_gpus + 1)
    choices = []
    for whole in _whole_gains(gains, now):
        padded[widest - 1 :] = best
        # Row n, column k: the best of the jobs before with k - n GPUs.
        before = sliding_window_view(padded, num_gpus + 1)[::-1][: len(whole)]
        sums = before + whole[:, None]
        choice = sums.argmax(axis=0)
        best = np.maximum(sums[choice, columns], _NEVER)
        choices.append(choice)
    left = int(best.argmax())
    if best[left] <= _NEVER // 2:
        raise InputError(f"allocation: the jobs' least sizes need more than the {num_gpus} GPUs that there are")
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
