"""Narrow jobs first, aged: by arrival plus a time for each GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.views import JobView
from ddlsched.ranges import Checked, ranged
from ddlsched.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class NarrowFirst(Checked, who="narrow-first"):
    """As if each job had arrived ``patience_s`` later for each of its GPUs; needs no durations.

    Where nobody knows how long jobs take, those of few GPUs are expected to do the least GPU-time, and go first, as in
    Smith's rule. In the queue a job of n GPUs is behind only those that come within n x ``patience_s`` after it, less
    their own patience. But the queue skips what does not fit: a wide job, though first, waits as long as narrow ones
    come that take what gets free before it is enough.

    Parameters
    ----------
    patience_s
        Seconds a GPU; 0 is FIFO.
    """

    patience_s: float = ranged(1.0, 0.0, 1e6)

    def key(self, job: JobView, now_s: float) -> float:
        """Return the time from which the job counts, nanoseconds."""
        return job.arrival_ns + self.patience_s * NS_PER_S * job.num_gpus
