"""The simulator's units: whole nanoseconds on the clock, bytes on the network, MB (1e6 B) in files."""

from __future__ import annotations

from numbers import Integral

NS_PER_S = 1_000_000_000
MAX_NS = 2**63 - 1
MAX_MESSAGE_BYTES = 1e18
"""An exabyte: what no message is larger than."""
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


def is_whole(value: object, at_least: int, at_most: int = MAX_NS) -> bool:
    """Return whether a value is a whole number (of Python's or numpy's, no truth value) within bounds."""
    if type(value) is not int and (not isinstance(value, Integral) or isinstance(value, bool)):
        return False
    return at_least <= int(value) <= at_most
