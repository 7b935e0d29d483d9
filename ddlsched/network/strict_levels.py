"""Strict levels: transfers whose jobs (or bytes) are small go before all others on every link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import LEVELS, MOST_PARTS
from ddlsched.ranges import ranged

__all__ = ["StrictLevels"]


@dataclass(frozen=True, kw_only=True)
class StrictLevels(MaxMin):
    """Level 0 for values below ``first``, 1 below ``first x factor``, and so on; transfers of a level share max-min.

    Parameters
    ----------
    by
        The value: the job's ``gpus``; its ``compute-share``, communication / (compute x GPUs) of an iteration, so that
        jobs that compute most for their traffic go first, as Crux has it; its ``remaining-service`` or
        ``attained-service``, GPU-seconds (the orders SRSF and LAS); the transfer's ``bytes-left`` or ``bytes-sent``,
        rounded, so that what floats leave decides nothing.
    first
        Where level 0 ends, in the value's unit.
    factor
        By how much each further level is wider, greater than 1.
    levels
        From 1 to 8, as many as Ethernet has priorities.
    message_parts
        At the end of each of so many equal parts of a message levels are asked anew; matters to the last two rules.

    References
    ----------
    Cao et al., "Crux", SIGCOMM 2024 (at most 8 classes, strictly one before another); Bai et al., "PIAS", NSDI 2015
    (by bytes sent).
    """

    by: Literal["gpus", "compute-share", "remaining-service", "attained-service", "bytes-left", "bytes-sent"] = (
        "remaining-service"
    )
    first: float = ranged(60.0, 0.0, above=True)
    factor: float = ranged(10.0, 1.0, above=True)
    levels: int = ranged(8, 1, LEVELS)
    message_parts: int = ranged(1, 1, MOST_PARTS)

    def level(self, transfer: Any) -> int:
        """Return the level of the transfer's value."""
        value, end, level = self._value(transfer), self.first, 0
        while level < self.levels - 1 and value >= end:
            end *= self.factor
            level += 1
        return level

    def _value(self, transfer: Any) -> Any:
        job = transfer.job
        if self.by == "gpus":
            return float(job.num_gpus)
        if self.by == "compute-share":
            return job.communication_ns / max(job.compute_ns * job.num_gpus, 1)
        if self.by == "remaining-service":
            return job.remaining_service_ns / 1e9
        if self.by == "attained-service":
            return job.attained_service_ns / 1e9
        if self.by == "bytes-left":
            return float(round(transfer.bytes_left))
        return float(round(transfer.bytes_sent))
