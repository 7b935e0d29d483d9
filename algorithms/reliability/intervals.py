"""Intervals between checkpoints: fixed, Young's and Daly's.

References
----------
J. W. Young: A first order approximation to the optimum checkpoint interval. Communications of the ACM 17 (1974).
J. T. Daly: A higher order estimate of the optimum checkpoint interval for restart dumps. Future Generation Computer
Systems 22 (2006), equation 37.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

from ddlsched.cluster.reliability_doors import CheckpointedJob
from ddlsched.ranges import LAST_S, Checked, ranged


@dataclass(frozen=True, kw_only=True)
class FixedInterval(Checked, who="fixed interval"):
    """The same interval for every job.

    Parameters
    ----------
    every_s
        For how long a job trains between two checkpoints, seconds.
    """

    every_s: float = ranged(1800.0, 0.0, LAST_S, above=True)

    def interval_s(self, job: CheckpointedJob) -> float:
        """Return the interval."""
        return self.every_s


@dataclass(frozen=True, kw_only=True)
class Young:
    """Young's: the square root of 2 x what a checkpoint takes x the time to failure."""

    def interval_s(self, job: CheckpointedJob) -> float:
        """Return the interval, seconds; infinite where nothing fails."""
        return max(sqrt(2 * job.write_s * job.time_to_failure_s), 1e-9) if job.time_to_failure_s < inf else inf


@dataclass(frozen=True, kw_only=True)
class Daly:
    """Daly's, of higher order: less than Young's where checkpoints are dear."""

    def interval_s(self, job: CheckpointedJob) -> float:
        """Return the interval, seconds; infinite where nothing fails."""
        if job.time_to_failure_s == inf:
            return inf
        part = job.write_s / (2 * job.time_to_failure_s)
        if part >= 1:
            return job.time_to_failure_s
        whole_s = 2 * job.time_to_failure_s * sqrt(part) * (1 + sqrt(part) / 3 + part / 9)
        return max(whole_s - job.write_s, 1e-9)
