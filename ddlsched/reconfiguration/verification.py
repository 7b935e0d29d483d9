"""Checking new files against the old ones, tensor by tensor, while others are still copied."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple

from ddlsched.errors import FaultyInputError
from ddlsched.reconfiguration.content import (
    Digest,
    as_many_threads_as_processors,
    content_hash,
    divergences,
    other_content,
)
from ddlsched.reconfiguration.gathering import GATHERED_BYTES, ThreadBuffers
from ddlsched.reconfiguration.reading import Reading, Watch
from ddlsched.reconfiguration.tensors import total_bytes

__all__ = ["Verification"]


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
        self._buffers = ThreadBuffers(GATHERED_BYTES)
        self._begun: dict[str, Future[_Checked]] = {}
        self._pool = as_many_threads_as_processors()

    def __enter__(self) -> Verification:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, names: Iterable[str]) -> None:
        """Check tensors that are whole in the new files, in threads of its own."""
        for name in names:
            self._begun[name] = self._pool.submit(self._checked, name)

    def hashes(self, watch: Watch) -> dict[str, str]:
        """Return all tensors' content hashes when all have been checked, those without elements too.

        Raises
        ------
        FaultyInputError
            A tensor has other contents, or two files that should hold the same do not; all such tensors are named.
        """
        tensors = self._old.checkpoint.collection.tensors
        self.begin(tensor.name for tensor in tensors if tensor.name not in self._begun)
        found: dict[str, str] = {}
        faults = [
            other_content(self._new, name, "", text) for name, text in self._recorded.items() if name not in self._begun
        ]
        done, total = 0, total_bytes(tensors)
        for tensor in tensors:
            found[tensor.name], wrong = self._begun[tensor.name].result()
            faults += wrong
            done += tensor.num_bytes
            watch("checking", done, total)
        if faults:
            raise FaultyInputError(faults)
        return found

    def _checked(self, name: str) -> _Checked:
        """Return a tensor's hash and what is wrong with it: with the old files, or else with the new ones."""
        old = self._old.checkpoint.collection.by_name[name]
        parts = self._old.replicas(old)
        expected = self._recorded.get(name) or content_hash(old, parts, self._digest, self._buffers)
        return _Checked(expected, divergences(old, parts, self._buffers) or self._faults(name, expected))

    def _faults(self, name: str, expected: str) -> list[str]:
        new = self._new.checkpoint.collection.by_name.get(name)
        if new is None:
            return [other_content(self._new, name, "", expected)]
        parts = self._new.replicas(new)
        found = content_hash(new, parts, self._digest, self._buffers)
        wrong = [other_content(self._new, name, found, expected)] if found != expected else []
        return wrong + divergences(new, parts, self._buffers)
