"""Digests of what was written to new files, range by range: reading these back needs no second look at the old ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ddlsched.checkpoints.content import DIGESTS
from ddlsched.checkpoints.gathering import NewArray

__all__ = ["ReadBack", "Written", "WrittenRange"]


class WrittenRange(NamedTuple):
    """Bytes of a new file, and the digest of what was to be written there."""

    file: str
    low: int
    high: int
    digest: bytes


class Written:
    """Digests of what goes to new files, taken by the threads that copy, while it is in a processor's cache.

    Parameters
    ----------
    tensors
        Names of those to be noted.
    """

    def __init__(self, tensors: Collection[str]) -> None:
        self._tensors = set(tensors)
        self._ranges: dict[str, list[WrittenRange]] = defaultdict(list)

    def note(self, array: NewArray, offset: int, parts: Sequence[memoryview]) -> None:
        """Note parts that are to be written ``offset`` bytes behind the begin of an array, to each of its targets."""
        if array.tensor not in self._tensors:
            return
        digest = DIGESTS["xxh3"]()
        for part in parts:
            digest.update(part)
        num_bytes, found = sum(map(len, parts)), digest.digest()
        ranges = self._ranges[array.tensor]
        for file, begin in array.targets:
            ranges.append(WrittenRange(file, begin + offset, begin + offset + num_bytes, found))

    def leave_out(self, tensors: Iterable[str]) -> None:
        """Note nothing of tensors that an earlier run has written in part."""
        self._tensors.difference_update(tensors)

    def taken(self, tensor: str) -> list[WrittenRange]:
        """Return a tensor's ranges in the order of their places, and keep them no longer."""
        return sorted(self._ranges.pop(tensor, []))


class ReadBack:
    """Whether ranges of files still hold what was written to them.

    Ranges are checked while they are read for something else, as long as that reads each file in ascending order
    without a gap; what is left is read at the end.

    Parameters
    ----------
    ranges
        In the order of their places.
    """

    def __init__(self, ranges: Iterable[WrittenRange]) -> None:
        self._files: dict[str, _File] = {}
        for found in ranges:
            self._files.setdefault(found.file, _File()).ranges.append(found)

    def covers(self, num_bytes: int) -> bool:
        """Return whether the ranges do not overlap, and hold at least so many bytes."""
        each = [file.ranges for file in self._files.values()]
        apart = all(before.high <= after.low for ranges in each for before, after in pairwise(ranges))
        return apart and sum(found.high - found.low for ranges in each for found in ranges) >= num_bytes

    def see(self, file: str, low: int, data: memoryview) -> None:
        """Take note of bytes that were read from a file, from byte ``low`` on."""
        if file in self._files:
            self._files[file].see(low, data)

    def is_as_written(self, read: Callable[[str, int, int], memoryview]) -> bool:
        """Return whether all ranges are, those not seen yet read by ``read(file, low, high)``."""
        return all(
            not file.differs and all(_digest(read(*found[:3])) == found.digest for found in file.left())
            for file in self._files.values()
        )


def _digest(data: memoryview) -> bytes:
    digest = DIGESTS["xxh3"]()
    digest.update(data)
    found: bytes = digest.digest()
    return found


class _File:
    """The ranges of one file, of which the first ``_next`` have been seen, and some bytes of the one behind them."""

    def __init__(self) -> None:
        self.ranges: list[WrittenRange] = []
        self.differs = False
        self._next = 0
        self._seen_bytes = 0
        self._digest = DIGESTS["xxh3"]()

    def see(self, low: int, data: memoryview) -> None:
        high = low + len(data)
        while self._next < len(self.ranges):
            wanted = self.ranges[self._next]
            begin, end = wanted.low + self._seen_bytes, min(wanted.high, high)
            if not low <= begin < end:
                return
            self._digest.update(data[begin - low : end - low])
            self._seen_bytes += end - begin
            if end == wanted.high:
                self._end(wanted)

    def _end(self, wanted: WrittenRange) -> None:
        self.differs |= self._digest.digest() != wanted.digest
        self._next, self._seen_bytes, self._digest = self._next + 1, 0, DIGESTS["xxh3"]()

    def left(self) -> Iterator[WrittenRange]:
        return iter(self.ranges[self._next :])
