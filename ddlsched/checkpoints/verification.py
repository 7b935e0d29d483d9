"""Checking new files against the old ones, tensor by tensor, while others are still copied.

The threads that copy take digests of what they write. A tensor is then read back once: for its content hash, and to see
whether it still is what was written. That a plan brings everything to its place is checked on one tensor of each kind,
whose content hash is taken from the old files too. So is that of tensors of which not all was written by this run, and
of old files that are not local, or were touched meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ddlsched.checkpoints.content import (
    Digest,
    ReadBack,
    Written,
    WrittenRange,
    as_many_threads_as_processors,
    content_hash,
    divergences,
    other_content,
)
from ddlsched.checkpoints.gathering import GATHERED_BYTES, ThreadBuffers
from ddlsched.checkpoints.reading import Reading, Replicas, Watch
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Layout, Tensor, total_bytes
from ddlsched.errors import FaultyInputError
from ddlsched.io.child_processes import follow_parent

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

    def close(self) -> None:
        """End, without what has not begun."""
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
            found = list(pool.map(lambda name: self._changed(self._old, name, expected[name]), names))
        faults = [text for wrong in found for text in wrong]
        if faults:
            raise FaultyInputError(faults)

    def _changed(self, reading: Reading, name: str, expected: str) -> list[str]:
        """Return what is wrong with a tensor of the old or of the new files."""
        tensor = reading.checkpoint.collection.by_name[name]
        parts = reading.replicas(tensor)
        found = content_hash(tensor, parts, self._digest, self._buffers)
        wrong = [other_content(reading, name, found, expected)] if found != expected else []
        return wrong + divergences(tensor, parts, self._buffers)

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
        if name not in self._new.checkpoint.collection.by_name:
            return [other_content(self._new, name, "", expected)]
        return self._changed(self._new, name, expected)


def _kind(tensor: Tensor, old: Sequence[Replicas], new: Sequence[Replicas]) -> _Kind:
    """Return what decides how a tensor's elements go from old to new files, but for where in a file they are."""
    return tensor.shape, tensor.dtype, _parts(old), _parts(new)


def _parts(replicas: Sequence[Replicas]) -> _Parts:
    return tuple((part.layout, tuple(source.file for source in part.sources)) for part in replicas)


def _held_bytes(tensor: Tensor, parts: Sequence[Replicas]) -> int:
    """Return the bytes of a tensor's elements in all files that hold it, without padding."""
    elements = sum(len(part.sources) * sum(piece.num_elements for piece in part.layout.pieces) for part in parts)
    return elements * DTYPE_BYTES[tensor.dtype]
