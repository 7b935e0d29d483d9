"""Content hashes of whole tensors, the same under any parallelism, and digests of what was written, range by range.

Checking new files against the old ones, tensor by tensor, while others are still copied.

The threads that copy take digests of what they write. A tensor is then read back once: for its content hash, and to see
whether it still is what was written. That a plan brings everything to its place is checked on one tensor of each kind,
whose content hash is taken from the old files too. So is that of tensors of which not all was written by this run, and
of old files that are not local, or were touched meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ddlsched.checkpoints.copying import Chunk, Copy, chunks
from ddlsched.checkpoints.division import divided, within
from ddlsched.checkpoints.gathering import GATHERED_BYTES, NewArray, See, ThreadBuffers, filled
from ddlsched.checkpoints.reading import Reading, Replicas, Source, Watch, no_watch
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Tensor, dense_layout, total_bytes
from ddlsched.errors import FaultyInputError, InputError
from ddlsched.io.child_processes import follow_parent

Digest: TypeAlias = Literal["xxh3", "sha256"]
"""XXH3 of 128 bits finds what goes wrong by accident, as fast as memory is read; SHA-256 what somebody makes of it."""


def _xxh3() -> Any:
    import xxhash

    return xxhash.xxh3_128()


DIGESTS: Mapping[Digest, Callable[[], Any]] = {"xxh3": _xxh3, "sha256": hashlib.sha256}


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


_Found = TypeVar("_Found")
_WORTH_A_PROCESS_BYTES = 1 << 28
"""Less is checked before another process has begun."""
_LOOKS_S = 1.0
"""How often one who waits for the other process looks whether it is there."""


class Checks(Generic[_Found]):
    """Checks of tensors, by name and by what was written of them, under way beside what else this process does.

    Parameters
    ----------
    check
        Makes one. What it changes of its object in another process is not seen in this one.
    num_bytes
        Of all tensors.
    apart
        Whether one other process makes them, if there is much to check; otherwise threads of this one do. What is
        read over a network, or takes long to compute, is better in several threads.
    """

    def __init__(self, check: Callable[[str, Sequence[WrittenRange]], _Found], num_bytes: int, *, apart: bool) -> None:
        self._check = check
        self._begun: dict[str, tuple[Sequence[WrittenRange], Future[Any]]] = {}
        in_process = apart and num_bytes >= _WORTH_A_PROCESS_BYTES and _may_fork()
        self._made: Callable[[str, Sequence[WrittenRange]], Any] = _make if in_process else check
        self._pool: Executor = _one_process(check) if in_process else as_many_threads_as_processors()

    def __contains__(self, name: str) -> bool:
        return name in self._begun

    def begin(self, name: str, ranges: Sequence[WrittenRange]) -> None:
        """Begin to check a tensor."""
        future: Future[Any] = Future()
        try:
            future = self._pool.submit(self._made, name, ranges)
        except BrokenExecutor as error:
            future.set_exception(error)
        self._begun[name] = ranges, future

    def result(self, name: str) -> _Found:
        """Wait for a tensor's; if the other process has been killed, check it here."""
        ranges, future = self._begun[name]
        try:
            while not wait([future], timeout=_LOOKS_S).done:
                self._pool.submit(int)  # refused if it has been killed: what it was given at that moment has no answer
            found: _Found = future.result()
        except BrokenExecutor:
            return self._check(name, ranges)
        return found

    def close(self) -> None:
        """End, without those that have not begun."""
        self._pool.shutdown(cancel_futures=True)


def _may_fork() -> bool:
    import multiprocessing  # A copy that checks nothing begins sooner without it.

    return sys.platform == "linux" and not multiprocessing.current_process().daemon


_check: Callable[[str, Sequence[WrittenRange]], object]
"""Set in the process that only checks, which has it, as all else, from the one that it is a copy of."""


def _one_process(check: Callable[[str, Sequence[WrittenRange]], object]) -> Executor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, (check, os.getpid()))
    pool.submit(os.getpid)  # It begins now, before the threads that copy, of which it is to have none.
    return pool


def _begin(check: Callable[[str, Sequence[WrittenRange]], object], parent: int) -> None:
    global _check
    _check = check
    follow_parent(parent)


def _make(name: str, ranges: Sequence[WrittenRange]) -> object:
    return _check(name, ranges)


_Parts: TypeAlias = tuple[tuple[Layout, tuple[str, ...]], ...]
_Kind: TypeAlias = tuple[tuple[int, ...], str, _Parts, _Parts]


class _Checked(NamedTuple):
    expected: str
    faults: list[str]


class Verification:
    """Whether each tensor of new files has the content hash of the old one, and replicas are equal, old and new.

    Parameters
    ----------
    old, new
        What is copied, and the files that are being filled, whose headers are there already.
    digest
        The content hash; what the old checkpoint records of it is not computed again.

    Raises
    ------
    InputError
        A new file is missing, truncated, or contradicts the description.
    """

    def __init__(self, old: Reading, new: Reading, digest: Digest) -> None:
        self._old, self._new, self._digest = old, new, digest
        self._recorded = dict(getattr(old.checkpoint, digest))
        new.refuse_faulty_files()
        places = ((old.place_of(rank), old.checkpoint.files[rank]) for rank in old.survivors)
        self._is_local = all(place.descriptor(file) is not None for place, file in places)
        self.written = Written(self._noted())
        self._kinds_seen: set[_Kind] = set()
        self._lock = threading.Lock()
        self._buffers = ThreadBuffers(GATHERED_BYTES)
        total = total_bytes(old.checkpoint.collection.tensors)
        self._checks = Checks(self._checked, total, apart=digest == "xxh3" and self._is_local)

    def _noted(self) -> set[str]:
        """Return the tensors whose digests are taken while they are copied; SHA-256 would cost more than it saves."""
        if self._digest != "xxh3" or not self._is_local:
            return set()
        return set(self._old.checkpoint.collection.by_name) - set(self._recorded)

    def __enter__(self) -> Verification:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checks.close()

    def begin(self, names: Iterable[str]) -> None:
        """Begin to check tensors that are whole in the new files."""
        for name in names:
            self._checks.begin(name, self.written.taken(name))

    def hashes(self, watch: Watch) -> dict[str, str]:
        """Return all tensors' content hashes when all have been checked, those without elements too.

        Raises
        ------
        FaultyInputError
            A tensor has other contents, or two files that should hold the same do not; all such tensors are named.
        """
        tensors = self._old.checkpoint.collection.tensors
        self.begin(tensor.name for tensor in tensors if tensor.name not in self._checks)
        found: dict[str, str] = {}
        faults = [
            other_content(self._new, name, "", text)
            for name, text in self._recorded.items()
            if name not in self._checks
        ]
        done, total = 0, total_bytes(tensors)
        for tensor in tensors:
            found[tensor.name], wrong = self._checks.result(tensor.name)
            faults += wrong
            done += tensor.num_bytes
            watch("checking", done, total)
        if faults:
            raise FaultyInputError(faults)
        return found

    def refuse_other_sources(self, expected: Mapping[str, str]) -> None:
        """Read the old files that were touched meanwhile once more, and check their tensors' content hashes.

        Raises
        ------
        FaultyInputError
            A tensor has another hash than expected, or replicas differ.
        """
        arrays = self._old.checkpoint.collection.arrays
        names = {name for rank in self._old.touched_ranks() for name in arrays[rank]}
        with as_many_threads_as_processors() as pool:
            found = list(pool.map(lambda name: self._changed(name, expected[name]), names))
        faults = [text for wrong in found for text in wrong]
        if faults:
            raise FaultyInputError(faults)

    def _changed(self, name: str, expected: str) -> list[str]:
        """Return what is wrong with a tensor of the old files, which were right."""
        old = self._old.checkpoint.collection.by_name[name]
        parts = self._old.replicas(old)
        found = content_hash(old, parts, self._digest, self._buffers)
        wrong = [other_content(self._old, name, found, expected)] if found != expected else []
        return wrong + divergences(old, parts, self._buffers)

    def _checked(self, name: str, ranges: Sequence[WrittenRange]) -> _Checked:
        """Return a tensor's hash and what is wrong with it: with the old files, or else with the new ones."""
        old = self._old.checkpoint.collection.by_name[name]
        parts = self._old.replicas(old)
        diverged = divergences(old, parts, self._buffers)
        as_written = "" if diverged else self._hash_as_written(old, parts, ranges)
        expected = as_written or self._recorded.get(name) or content_hash(old, parts, self._digest, self._buffers)
        return _Checked(expected, diverged or ([] if as_written else self._faults(name, expected)))

    def _hash_as_written(self, old: Tensor, old_parts: Sequence[Replicas], ranges: Sequence[WrittenRange]) -> str:
        """Return a new tensor's hash if all of it was written by this run and is still the same; else an empty text.

        Empty also for the first of its kind, which shows that the plan brings everything to its place.
        """
        new = self._new.checkpoint.collection.by_name.get(old.name)
        if not ranges or new is None:
            return ""
        parts = self._new.replicas(new)
        read_back = ReadBack(ranges)
        if not read_back.covers(_held_bytes(new, parts)) or self._is_first(_kind(old, old_parts, parts)):
            return ""
        found = content_hash(new, parts, self._digest, self._buffers, read_back.see)
        return found if read_back.is_as_written(self._new.place.read) else ""

    def _is_first(self, kind: _Kind) -> bool:
        with self._lock:
            first = kind not in self._kinds_seen
            self._kinds_seen.add(kind)
        return first

    def _faults(self, name: str, expected: str) -> list[str]:
        new = self._new.checkpoint.collection.by_name.get(name)
        if new is None:
            return [other_content(self._new, name, "", expected)]
        parts = self._new.replicas(new)
        found = content_hash(new, parts, self._digest, self._buffers)
        wrong = [other_content(self._new, name, found, expected)] if found != expected else []
        return wrong + divergences(new, parts, self._buffers)


def _kind(tensor: Tensor, old: Sequence[Replicas], new: Sequence[Replicas]) -> _Kind:
    """Return what decides how a tensor's elements go from old to new files, but for where in a file they are."""
    return tensor.shape, tensor.dtype, _parts(old), _parts(new)


def _parts(replicas: Sequence[Replicas]) -> _Parts:
    return tuple((part.layout, tuple(source.file for source in part.sources)) for part in replicas)


def _held_bytes(tensor: Tensor, parts: Sequence[Replicas]) -> int:
    """Return the bytes of a tensor's elements in all files that hold it, without padding."""
    elements = sum(len(part.sources) * sum(piece.num_elements for piece in part.layout.pieces) for part in parts)
    return elements * DTYPE_BYTES[tensor.dtype]
