"""How much of a cluster users and queues have used of late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.policies.views import JobView
from ddlsched.units import NS_PER_S

__all__ = ["UsageHistory"]

_PENALTY_S = 300.0
"""What counts at once of a job that starts, as if it had run for so long: what Kueue samples by default."""


class UsageHistory:
    """GPUs that each user of each queue used, what was earlier counting less, by half every half-life."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._used: dict[tuple[str, str | None], float] = defaultdict(float)
        self._now_ns = 0

    def update(self, tenants: TenantsView, running: Iterable[HeldQuota] | None = None) -> None:
        """Count what was used since it was last called, by those who run now, or by others if told."""
        kept = 0.5 ** ((tenants.now_ns - self._now_ns) / NS_PER_S / self._half_life_s)
        for key in self._used:
            self._used[key] *= kept
        for holding in tenants.holdings.values() if running is None else running:
            since_s = (tenants.now_ns - max(self._now_ns, holding.since_ns)) / NS_PER_S
            self._used[holding.queue, holding.job.user] += (1 - 0.5 ** (since_s / self._half_life_s)) * holding.num_gpus
        self._now_ns = tenants.now_ns

    def admitted(self, queue: str, job: JobView) -> None:
        """Count a job that starts at once, so that a user does not start many before they count."""
        self._used[queue, job.user] += (1 - 0.5 ** (_PENALTY_S / self._half_life_s)) * job.num_gpus

    def used(self, queue: str, user: str | None) -> float:
        """Return what a user of a queue has used of late, GPUs."""
        return self._used[queue, user]

    def of_queue(self, queue: str) -> float:
        """Return what all users of a queue have used of late, GPUs."""
        return sum(used for (name, _), used in self._used.items() if name == queue)
