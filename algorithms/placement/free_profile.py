"""How many GPUs are expected to be free when, and the earliest times at which jobs fit in, kept from round to round."""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["NEVER", "FreeProfile"]

NEVER = np.int64(2**63 - 1)
_DIGITS = 63


class FreeProfile:
    """How many GPUs are free from each of some times on, beside running jobs and reservations.

    Parameters
    ----------
    free_from_ns
        From when each GPU is free, at least ``now_ns``.
    """

    def __init__(self, free_from_ns: np.ndarray, now_ns: int) -> None:
        first_ns, counts = np.unique(np.append(free_from_ns, now_ns), return_counts=True)
        counts[0] -= 1  # ``now_ns`` itself is no GPU
        self._length = len(first_ns)
        self._times_ns, self._free = first_ns.astype(np.int64), np.cumsum(counts)

    def reserve(self, num_gpus: np.ndarray, run_ns: np.ndarray) -> np.ndarray:
        """Give each job in turn the earliest time from which enough GPUs are free for as long as it runs.

        Returns these times, NEVER for a job that wants more GPUs than there are.
        """
        self._make_room(2 * len(num_gpus))
        starts_ns = np.empty(len(num_gpus), np.int64)
        self._length = _fill(self._times_ns, self._free, self._length, num_gpus, run_ns, starts_ns)
        return starts_ns

    def go_on(self, now_ns: int) -> None:
        """Forget what was before ``now_ns``."""
        self._length = _forget(self._times_ns, self._free, self._length, now_ns)

    def _make_room(self, num_times: int) -> None:
        if (needed := self._length + num_times) > len(self._times_ns):
            more = needed - len(self._times_ns)
            self._times_ns, self._free = np.pad(self._times_ns, (0, more)), np.pad(self._free, (0, more))


@numba.njit(cache=True)
def _fill(times_ns, free, length, num_gpus, run_ns, starts_ns):  # type: ignore[no-untyped-def]
    """``free[i]`` GPUs are free from ``times_ns[i]`` to the next of ``length`` times, the last for ever."""
    sizes = np.unique(num_gpus)
    latest_ns = np.zeros((len(sizes), _DIGITS + 1), np.int64)
    for job in range(len(num_gpus)):
        begin = np.searchsorted(times_ns[:length], _too_early(sizes, latest_ns, num_gpus[job], run_ns[job]))
        first = _earliest(times_ns, free, begin, length, num_gpus[job], run_ns[job])
        if first < 0:
            starts_ns[job] = NEVER
            continue
        starts_ns[job] = times_ns[first]
        _note(sizes, latest_ns, num_gpus[job], run_ns[job], starts_ns[job])
        last, length = _split(times_ns, free, length, times_ns[first] + run_ns[job])
        for place in range(first, last):
            free[place] -= num_gpus[job]
    return length


@numba.njit(cache=True)
def _earliest(times_ns, free, begin, length, num_gpus, run_ns):  # type: ignore[no-untyped-def]
    """Return the place of the first time from which so many GPUs are free for so long, from ``begin`` on, or -1."""
    first = -1
    for place in range(begin, length):
        if first >= 0 and times_ns[place] >= times_ns[first] + run_ns:
            break
        if free[place] < num_gpus:
            first = -1
        elif first < 0:
            first = place
    return first


# A job that does not fit before some time shows that no job of as many GPUs or more, for as long or longer, does: GPUs
# are only taken while jobs are given theirs. ``latest_ns`` has the latest such time by GPUs (a row for each number in
# ``sizes``) and by the binary digits of how long a job runs.


@numba.njit(cache=True)
def _digits(run_ns):  # type: ignore[no-untyped-def]
    """Return how many binary digits a time has."""
    count = 0
    while run_ns:
        run_ns >>= 1
        count += 1
    return count


@numba.njit(cache=True)
def _too_early(sizes, latest_ns, num_gpus, run_ns):  # type: ignore[no-untyped-def]
    """Return a time before which a job does not fit."""
    digits, latest = _digits(run_ns), 0
    for row in range(len(sizes)):
        if sizes[row] > num_gpus:
            break
        latest = max(latest, latest_ns[row, digits])
    return latest


@numba.njit(cache=True)
def _note(sizes, latest_ns, num_gpus, run_ns, time_ns):  # type: ignore[no-untyped-def]
    """Note that a job did not fit before a time, for jobs that run for a binary digit longer or more."""
    row = np.searchsorted(sizes, num_gpus)
    for digits in range(_digits(run_ns) + 1, _DIGITS + 1):
        latest_ns[row, digits] = max(latest_ns[row, digits], time_ns)


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


@numba.njit(cache=True)
def _forget(times_ns, free, length, now_ns):  # type: ignore[no-untyped-def]
    """Let the profile begin now, without times at which nothing changes, and return the new length."""
    kept = 0
    for place in range(length):
        if kept > 0 and times_ns[place] > now_ns and free[place] == free[kept - 1]:
            continue
        if times_ns[place] > now_ns and kept > 0:
            kept += 1
        else:
            kept = 1
        times_ns[kept - 1], free[kept - 1] = max(times_ns[place], now_ns), free[place]
    return kept
