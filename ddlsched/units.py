"""The simulator's units: whole nanoseconds on the clock, bytes on the network, MB (1e6 B) in files."""

from __future__ import annotations

__all__ = ["MAX_NS", "NS_PER_S", "bytes_from_mb", "ns_from_s", "s_from_ns"]

NS_PER_S = 1_000_000_000
MAX_NS = 2**63 - 1
BYTES_PER_MB = 1_000_000


def ns_from_s(seconds: float) -> int:
    """Return whole nanoseconds, rounded to the nearest, halves to even."""
    return round(seconds * NS_PER_S)


def s_from_ns(nanoseconds: int) -> float:
    """Return seconds; exact up to 104 days (2**53 ns), correctly rounded beyond."""
    return nanoseconds / NS_PER_S


def bytes_from_mb(megabytes: float) -> int:
    """Return whole bytes of a size in MB (1e6 B), so that sums of memory are exact."""
    return round(megabytes * BYTES_PER_MB)
