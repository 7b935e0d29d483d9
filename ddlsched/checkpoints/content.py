"""Content hashes of whole tensors, the same under any parallelism, and digests of what was written, range by range."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from ddlsched.checkpoints.copying import Chunk, Copy, chunks
from ddlsched.checkpoints.division import divided, within
from ddlsched.checkpoints.gathering import GATHERED_BYTES, NewArray, See, ThreadBuffers, filled
from ddlsched.checkpoints.reading import Reading, Replicas, Source, Watch, no_watch
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Tensor, dense_layout, total_bytes
from ddlsched.errors import FaultyInputError, InputError

Digest: TypeAlias = Literal["xxh3", "sha256"]
"""XXH3 of 128 bits finds what goes wrong by accident, as fast as memory is read; SHA-256 what somebody makes of it."""


def _xxh3(data: Any = b"") -> Any:
    import xxhash

    return xxhash.xxh3_128(data)


DIGESTS: Mapping[Digest, Callable[..., Any]] = {"xxh3": _xxh3, "sha256": hashlib.sha256}
"""What begins one, perhaps with some bytes."""


def content_hashes(reading: Reading, digest: Digest = "sha256", *, watch: Watch = no_watch) -> dict[str, str]:
    """Return the digest of each whole tensor, read from the first replica of each part.

    Raises
    ------
    InputError
        A file is missing, truncated, or contradicts the description, or a part of a tensor is nowhere.
    """
    tensors = reading.checkpoint.collection.tensors
    reading.refuse_faulty_files()
    total = total_bytes(tensors)
    hashes: dict[str, str] = {}
    done = 0
    # The longest first: so no thread is left with one at the end.
    ordered = sorted(tensors, key=lambda tensor: -tensor.num_bytes)
    buffers = ThreadBuffers(GATHERED_BYTES)

    def hashed(tensor: Tensor) -> str:
        return content_hash(tensor, reading.replicas(tensor), digest, buffers)

    with as_many_threads_as_processors() as pool:
        for tensor, found in zip(ordered, pool.map(hashed, ordered), strict=True):
            hashes[tensor.name] = found
            done += tensor.num_bytes
            watch("hashing", done, total)
    return {tensor.name: hashes[tensor.name] for tensor in tensors}


def as_many_threads_as_processors() -> ThreadPoolExecutor:
    """Return as many threads as there are processors: digests and reads leave the interpreter to each other."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)))


def content_hash(
    tensor: Tensor, parts: Sequence[Replicas], digest: Digest, buffers: ThreadBuffers, see: See | None = None
) -> str:
    """Return the digest of a whole tensor, read from the first replica of each part; the files have been looked at.

    ``see`` is told what is read.

    Raises
    ------
    InputError
        A file has changed, or a part of the tensor is nowhere.
    """
    layouts = tuple(part.layout for part in parts)
    found = _in_chunks(tensor.shape, layouts, GATHERED_BYTES // DTYPE_BYTES[tensor.dtype])
    if found is None:
        raise InputError(f"tensor {tensor.name}: no replica of a part of it is left; expected one at least")
    sources = tuple(part.sources[0] for part in parts)
    return _hashed(NewArray(tensor=tensor.name, dtype=tensor.dtype, sources=sources), found, digest, buffers, see)


def _hashed(
    array: NewArray, parts: Iterable[Chunk], digest: Digest, buffers: ThreadBuffers, see: See | None = None
) -> str:
    found, own = DIGESTS[digest](), buffers.own(see)
    for chunk in parts:
        for part in filled(array, chunk, own):
            found.update(part)
    text: str = found.hexdigest()
    return text


@lru_cache(maxsize=64)  # A model has few kinds of tensors, and many of each.
def _in_chunks(shape: tuple[int, ...], layouts: tuple[Layout, ...], most_elements: int) -> tuple[Chunk, ...] | None:
    """Return the chunks of a whole tensor that is put together from its parts; None: a part is missing."""
    whole = dense_layout(shape, (), ())
    copies = []
    for cell in divided(layouts, (whole,)):
        if not cell.old:
            return None
        held = cell.old[0]
        read = within(layouts[held.shard].pieces[held.piece], cell.box)
        copies.append(Copy(held.shard, read, within(whole.pieces[0], cell.box)))
    return tuple(chunks(copies, most_elements))


def refuse_other_content(
    reading: Reading, expected: Mapping[str, str], digest: Digest = "sha256", *, watch: Watch = no_watch
) -> None:
    """Check each tensor's content hash against the expected one, and each replica against the first.

    Raises
    ------
    FaultyInputError
        A tensor has other contents, or two files that should hold the same do not; all such tensors are named.
    """
    found = content_hashes(reading, digest, watch=watch)
    faults = [
        other_content(reading, name, found.get(name, ""), text)
        for name, text in expected.items()
        if found.get(name) != text
    ]
    buffers = ThreadBuffers(GATHERED_BYTES)

    def diverged_replicas(tensor: Tensor) -> list[str]:
        return divergences(tensor, reading.replicas(tensor), buffers)

    with as_many_threads_as_processors() as pool:
        for diverged in pool.map(diverged_replicas, reading.checkpoint.collection.tensors):
            faults += diverged
    if faults:
        raise FaultyInputError(faults)


def other_content(reading: Reading, name: str, found: str, expected: str) -> str:
    """Return the message about a tensor with another digest than expected."""
    tensor = reading.checkpoint.collection.by_name.get(name)
    if tensor is None:
        return f"{reading.place.name_of('')}: tensor {name} has a content hash, but is not there; expected it"
    parts = reading.replicas(tensor)
    others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    text = f"{parts[0].sources[0].name}{others}: tensor {name} has content hash {found[:12]}"
    return f"{text}; expected {expected[:12]}: its contents are not those that were saved"


def divergences(tensor: Tensor, parts: Sequence[Replicas], buffers: ThreadBuffers) -> list[str]:
    """Return a line for each replica of a part of a tensor that differs from the first in an element."""
    faults = []
    for layout, sources in parts:
        first = _part_hash(tensor, layout, sources[0], buffers) if len(sources) > 1 else ""
        for other in sources[1:]:
            if _part_hash(tensor, layout, other, buffers) != first:
                text = f"{other.name}: tensor {tensor.name} differs from its replica in {sources[0].file}"
                faults.append(f"{text}; expected the same contents")
    return faults


def _part_hash(tensor: Tensor, layout: Layout, source: Source, buffers: ThreadBuffers) -> str:
    """Return a digest of what a rank holds of a tensor, without padding."""
    array = NewArray(tensor=tensor.name, dtype=tensor.dtype, sources=(source,))
    most_elements = GATHERED_BYTES // DTYPE_BYTES[tensor.dtype]
    parts = (chunk for piece in layout.pieces for chunk in chunks([Copy(0, piece, piece)], most_elements))
    return _hashed(array, parts, "xxh3", buffers)


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
        digest = _xxh3()
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
            not file.differs and all(_xxh3(read(*found[:3])).digest() == found.digest for found in file.left())
            for file in self._files.values()
        )


class _File:
    """The ranges of one file, of which the first ``_next`` have been seen, and some bytes of the one behind them."""

    def __init__(self) -> None:
        self.ranges: list[WrittenRange] = []
        self.differs = False
        self._next = 0
        self._seen_bytes = 0
        self._digest = _xxh3()

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
        self._next, self._seen_bytes, self._digest = self._next + 1, 0, _xxh3()

    def left(self) -> Iterator[WrittenRange]:
        return iter(self.ranges[self._next :])
