"""Finish-time fairness (after Themis): the job that shares worst goes first."""

from __future__ import annotations

from dataclasses import dataclass

from ddlsched.policies.views import JobView
from ddlsched.units import ns_from_s


@dataclass(frozen=True, kw_only=True)
class FinishTimeFairness:
    """The job whose finish, were it left alone from now on, is latest in terms of its time alone (ρ).

    ρ = (time since arrival + time left alone) / time alone, communication counted once it is placed. Themis
    auctions GPUs to the jobs of the largest ρ; here the same ratio orders the queue, GPUs and transfers.

    References
    ----------
    Mahajan et al., "Themis: fair and efficient GPU cluster scheduling", NSDI 2020, section 3.
    """

    def key(self, job: JobView, now_s: float) -> float:
        """Return -ρ."""
        iteration_ns = job.compute_ns + job.communication_ns
        waited_ns = ns_from_s(now_s) - job.arrival_ns
        alone_ns = max(job.iterations * iteration_ns, 1)
        return -(waited_ns + job.iterations_left * iteration_ns) / alone_ns
