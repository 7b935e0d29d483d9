"""Shortest remaining time first (SRTF), which also takes GPUs from running jobs."""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.ordering.srtf import ShortestRemainingTimeFirst
from ddlsched.policies.stopping import StopsByKey

__all__ = ["StoppingShortestRemainingTimeFirst"]


@dataclass(frozen=True, kw_only=True)
class StoppingShortestRemainingTimeFirst(ShortestRemainingTimeFirst, StopsByKey):
    """SRTF; a job that waits takes the GPUs of running jobs that have more left."""
