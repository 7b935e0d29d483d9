"""When the process of rank 0 commits: after every step, or as a simulated run's checkpoint policy says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from ddlsched.cluster.reliability_doors import CheckpointedJob, CheckpointPolicy
from ddlsched.plugins.names import resolve
from ddlsched.real.live.seat import Orders

__all__ = ["CommitTimes"]


class CommitTimes:
    """Asks the policy that orders name, when a group begins and after each commit.

    Attributes
    ----------
    write_s
        For how long the job's last commit held it up, seconds; 0 before the first, so that one comes soon.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id, self.write_s = job_id, 0.0
        self._policy: CheckpointPolicy | None = None
        self._orders: Orders | None = None
        self._since_s = self._interval_s = 0.0

    def begin(self, orders: Orders) -> None:
        """Begin with a group."""
        self._orders, self._policy, self.write_s = orders, None, self.write_s or orders.commit_s
        if orders.checkpoint:
            self._policy = resolve("checkpoint", orders.checkpoint)
        self._ask()

    def is_due(self) -> bool:
        """Return whether so much time has passed that the step that has just ended is to be committed."""
        return self._policy is None or time.monotonic() >= self._since_s + self._interval_s

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure a commit, and count from its end."""
        begun_s = time.monotonic()
        yield
        self.write_s = time.monotonic() - begun_s
        if self._orders is not None:
            self._ask()

    def _ask(self) -> None:
        orders, self._since_s = self._orders, time.monotonic()
        if orders is None or self._policy is None:
            return
        seen = CheckpointedJob(
            job_id=self._job_id,
            num_gpus=orders.ranks,
            write_s=self.write_s,
            restart_s=0.0,
            time_to_failure_s=orders.time_to_failure_s or inf,
            now_s=self._since_s,
        )
        self._interval_s = self._policy.interval_s(seen)
