"""A process that checks while the threads of this one copy, which share one interpreter.

Beside them checks in threads take twice the time on two processors: each read and each digest waits for the
interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, Generic, TypeVar

from ddlsched.checkpoints.content import as_many_threads_as_processors
from ddlsched.checkpoints.written import WrittenRange
from ddlsched.io.child_processes import follow_parent

__all__ = ["Checks"]

_Checked = TypeVar("_Checked")
_WORTH_A_PROCESS_BYTES = 1 << 28
"""Less is checked before another process has begun."""


class Checks(Generic[_Checked]):
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

    def __init__(
        self, check: Callable[[str, Sequence[WrittenRange]], _Checked], num_bytes: int, *, apart: bool
    ) -> None:
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

    def result(self, name: str) -> _Checked:
        """Wait for a tensor's; if the other process has been killed, check it here."""
        ranges, future = self._begun[name]
        try:
            found: _Checked = future.result()
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
