"""Preemptive shortest-first: a short transfer interrupts a long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ddlsched.errors import InputError, did_you_mean
from ddlsched.policies.compiled import CommunicationRule, CompiledRule
from ddlsched.policies.views import NetworkView, TransferView

__all__ = ["PreemptiveShortestFirst"]

_RULES = {
    "time": CommunicationRule.PREEMPTIVE_BY_TIME,
    "service-per-gpu": CommunicationRule.PREEMPTIVE_BY_SERVICE_PER_GPU,
    "service": CommunicationRule.PREEMPTIVE_BY_SERVICE,
    "bytes": CommunicationRule.PREEMPTIVE_BY_BYTES,
}


@dataclass(frozen=True, kw_only=True)
class PreemptiveShortestFirst:
    """Of all transfers, smallest key first, those run that share no link with one already taken.

    The others pause and keep their bytes, which assumes all-reduces that are sent in chunks (as ByteScheduler
    and P3 do). One that is blocked reserves nothing.

    Parameters
    ----------
    by
        The key: the job's remaining service / GPUs, that plus its remaining all-reduces without contention
        (``time``), its remaining service, or the transfer's bytes left.
    """

    by: Literal["service-per-gpu", "time", "service", "bytes"] = "service-per-gpu"

    def __post_init__(self) -> None:
        if self.by not in _RULES:
            raise InputError(
                f"preemptive: by is {self.by!r}; expected one of {', '.join(_RULES)}.{did_you_mean(self.by, _RULES)}"
            )

    @property
    def compiled(self) -> CompiledRule:
        """The engine's form of this policy."""
        return CompiledRule(_RULES[self.by])

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        """Return the greedy set."""
        taken: set[int] = set()
        selected = []
        for transfer in sorted(transfers, key=self._key):
            if taken.isdisjoint(transfer.links):
                taken.update(transfer.links)
                selected.append(transfer)
        return selected

    def _key(self, transfer: TransferView) -> tuple[Fraction | float, int]:
        job = transfer.job
        if self.by == "bytes":
            return transfer.bytes_left, transfer.number
        if self.by == "service":
            return job.remaining_service_ns, transfer.number
        if self.by == "time":
            return job.remaining_time_ns, transfer.number
        return job.remaining_service_per_gpu_ns, transfer.number
