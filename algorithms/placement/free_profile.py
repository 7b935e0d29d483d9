"""How many GPUs are expected to be free when, and the earliest times at which jobs, one after the other, fit in."""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["NEVER", "earliest_starts_ns"]

NEVER = np.int64(2**63 - 1)


def earliest_starts_ns(free_from_ns: np.ndarray, now_ns: int, num_gpus: np.ndarray, run_ns: np.ndarray) -> np.ndarray:
    """Return from when each job finds enough GPUs free for as long as it runs, beside those before it; NEVER for none.

    Parameters
    ----------
    free_from_ns
        From when each GPU is free, at least ``now_ns``.
    num_gpus, run_ns
        What each job needs, in the order in which they are given GPUs.
    """
    first_ns, counts = np.unique(np.append(free_from_ns, now_ns), return_counts=True)
    counts[0] -= 1  # ``now_ns`` itself is no GPU
    times_ns = np.empty(len(first_ns) + 2 * len(num_gpus), np.int64)
    free = np.empty(len(times_ns), np.int64)
    times_ns[: len(first_ns)], free[: len(first_ns)] = first_ns, np.cumsum(counts)
    starts_ns = np.empty(len(num_gpus), np.int64)
    _fill(times_ns, free, len(first_ns), num_gpus, run_ns, starts_ns)
    return starts_ns


@numba.njit(cache=True)
def _fill(times_ns, free, length, num_gpus, run_ns, starts_ns):  # type: ignore[no-untyped-def]
    """``free[i]`` GPUs are free from ``times_ns[i]`` to the next of ``length`` times, the last for ever."""
    for job in range(len(num_gpus)):
        first = _earliest(times_ns, free, length, num_gpus[job], run_ns[job])
        if first < 0:
            starts_ns[job] = NEVER
            continue
        starts_ns[job] = times_ns[first]
        last, length = _split(times_ns, free, length, times_ns[first] + run_ns[job])
        for place in range(first, last):
            free[place] -= num_gpus[job]


@numba.njit(cache=True)
def _earliest(times_ns, free, length, num_gpus, run_ns):  # type: ignore[no-untyped-def]
    """Return the place of the first time from which so many GPUs are free for so long, or -1."""
    first = -1
    for place in range(length):
        if first >= 0 and times_ns[place] >= times_ns[first] + run_ns:
            break
        if free[place] < num_gpus:
            first = -1
        elif first < 0:
            first = place
    return first


@numba.njit(cache=True)
def _split(times_ns, free, length, time_ns):  # type: ignore[no-untyped-def]
    """Return the place of a time, which is put in if it is not there, and the new length."""
    place = np.searchsorted(times_ns[:length], time_ns)
    if place < length and times_ns[place] == time_ns:
        return place, length
    for behind in range(length, place, -1):
        times_ns[behind], free[behind] = times_ns[behind - 1], free[behind - 1]
    times_ns[place], free[place] = time_ns, free[place - 1]
    return place, length + 1
