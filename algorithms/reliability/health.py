"""Lemon servers are those that fail again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class RepeatedFailures(Checked, who="repeated failures"):
    """A server is replaced that fails for the ``count``-th time within some days; jobs are checked for silent failures.

    Parameters
    ----------
    count
        How many failures make a lemon.
    within_days
        Within how many days.
    check_s
        Every so often what nobody notices is found, seconds; by default never.
    """

    count: int = ranged(3, 1)
    within_days: float = ranged(28.0, 0.0, above=True)
    check_s: float = inf

    def replaces(self, failed_s: Sequence[float]) -> bool:
        """Return whether so many of the failures are recent."""
        return sum(at_s >= failed_s[-1] - 86_400 * self.within_days for at_s in failed_s) >= self.count
