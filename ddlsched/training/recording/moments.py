"""When something happened: on the host's clock, or on the current stream of a GPU."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

__all__ = ["CudaClock", "HostClock", "RecordingClock", "clock_of_this_process"]


class RecordingClock(Protocol):
    """Takes moments, which are told in nanoseconds once the step is over."""

    def moment(self) -> Any:
        """Return the moment that computation has reached."""
        ...

    def ns(self, moment: Any) -> int:
        """Return a moment, nanoseconds of a clock that the ranks on one host share."""
        ...


class HostClock:
    """The monotonic clock of the host."""

    def moment(self) -> int:
        """Return now."""
        return time.perf_counter_ns()

    def ns(self, moment: int) -> int:
        """Return the same."""
        return moment


class CudaClock:
    """Events on the current stream: a moment is when the GPU has done what was launched there before."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._begin = self.moment()
        self._begin.synchronize()
        self._begin_ns = time.perf_counter_ns()

    def moment(self) -> Any:
        """Return an event, recorded now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns(self, moment: Any) -> int:
        """Wait for an event, and return when it took place."""
        moment.synchronize()
        return self._begin_ns + round(float(self._begin.elapsed_time(moment)) * 1e6)


def clock_of_this_process() -> RecordingClock:
    """Return the clock of the device on which this process trains."""
    return CudaClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else HostClock()
