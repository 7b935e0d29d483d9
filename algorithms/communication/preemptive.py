"""Preemptive shortest-first: a short transfer interrupts a long one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.ranges import Checked


@dataclass(frozen=True, kw_only=True)
class PreemptiveShortestFirst(Checked, who="preemptive"):
    """Of all transfers, smallest key first, those run that share no link with one already taken.

    The others pause and keep their bytes, which assumes all-reduces that are sent in chunks (as ByteScheduler
    and P3 do). One that is blocked reserves nothing.

    Parameters
    ----------
    by
        The key: the job's remaining service / GPUs, that plus its remaining all-reduces without contention
        (``time``), its remaining service, or the transfer's bytes left, whole.
    """

    by: Literal["service-per-gpu", "time", "service", "bytes"] = "service-per-gpu"
    key_is_linear: ClassVar[bool] = True
    key_falls_while_sending: ClassVar[bool] = True

    def transfer_key(self, transfer: TransferView, network: NetworkView) -> int | tuple[int, float]:
        """Return what transfers are sorted by."""
        if self.by == "bytes":
            return round(transfer.bytes_left)  # parts of a byte are what floats leave, and would decide ties
        if self.by == "service":
            return transfer.job.remaining_service_ns
        if self.by == "time":
            return transfer.job.remaining_time_ns
        return transfer.job.remaining_service_per_gpu_ns
