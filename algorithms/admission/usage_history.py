"""How much of a cluster users and queues have used of late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

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
        """Count what was used since it was last called, by who ran then and who runs now; or by others if told."""
        now_ns = tenants.now_ns
        kept = self._kept(now_ns - self._now_ns)
        for key in self._used:
            self._used[key] *= kept
        left = tenants.left if running is None else ()
        staying = ((holding, now_ns) for holding in (tenants.holdings.values() if running is None else running))
        for holding, until_ns in chain(staying, left):
            since_ns = max(self._now_ns, holding.since_ns)
            if until_ns > since_ns:
                part = self._kept(now_ns - until_ns) - self._kept(now_ns - since_ns)
                self._used[holding.queue, holding.job.user] += part * holding.num_gpus
        self._now_ns = now_ns

    def _kept(self, ago_ns: int) -> float:
        """Return how much counts now of what was so long ago."""
        return float(0.5 ** (ago_ns / NS_PER_S / self._half_life_s))

    def admitted(self, queue: str, job: JobView) -> None:
        """Count a job that starts at once, so that a user does not start many before they count."""
        self._used[queue, job.user] += (1 - 0.5 ** (_PENALTY_S / self._half_life_s)) * job.num_gpus

    def used(self, queue: str, user: str | None) -> float:
        """Return what a user of a queue has used of late, GPUs."""
        return self._used[queue, user]

    def of_queue(self, queue: str) -> float:
        """Return what all users of a queue have used of late, GPUs."""
        return sum(used for (name, _), used in self._used.items() if name == queue)
