"""A Dask cluster's workers that carry out a sweep's tasks.

Nothing is asked of scheduler and workers but that the same ddlsched is installed there. They need none of the
client's files: those that the runs name, and what Python files import from beside them, are sent along. They
write nothing: a finished run comes back as bytes, and the client stores it.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ddlsched.comparisons.sweeps.run import Run, RunOutcome, execute, sources_digest
from ddlsched.comparisons.sweeps.workers import Done, Task, drain
from ddlsched.errors import DdlschedError, InputError
from ddlsched.io.reading import read_bytes
from ddlsched.plugins.user_files import files_named, substituted, with_neighbours

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["on_dask"]

_SENT = "<sent>"
"""Stands in a run's texts for the folder in which a worker has put the client's files."""
_DIED = "several workers died, one after another, also while they did nothing else (no memory left, or a crash)"
_ANSWER_S = 15.0
_NO_WORKER_S = 60.0

Parcel: TypeAlias = Mapping[str, bytes]
"""Files by their absolute path on the client's machine."""


def on_dask(tasks: Sequence[Task], address: str, sources: str) -> Done:
    """Carry out tasks on the cluster of the scheduler at ``address``, such as ``tcp://127.0.0.1:8786``.

    What a worker had under way when it died is done by another.

    Raises
    ------
    InputError
        Nobody answers there, or a worker's ddlsched is not the client's, whose hash is ``sources``.
    DdlschedError
        The cluster went away.
    """
    with _connected(address) as client:
        from distributed.scheduler import KilledWorker

        parcel = client.submit(_same, _packed(tasks))  # computed, not scattered: made again if its worker dies
        pool = client.get_executor(pure=False)

        def submit(task: Task) -> Future[RunOutcome]:
            sent = task.run.with_texts(lambda text: substituted(text, lambda path: f"{_SENT}{path.resolve()}"))
            future: Future[RunOutcome] = pool.submit(_on_worker, sent, task.wanted, parcel, sources)
            return future

        def stalled() -> None:
            _refuse_no_workers(client, address)

        suspects: deque[Task] = deque()
        tried: set[str] = set()
        first = drain(deque(tasks), submit, lambda: _window(client), stalled)
        for task, future in chain(first, drain(suspects, submit, lambda: 1, stalled)):
            error = _error_of(future)
            if isinstance(error, KilledWorker) and task.key not in tried:
                tried.add(task.key)
                suspects.append(task)  # or one beside it; it is done again when nothing else is
            elif isinstance(error, KilledWorker):
                yield task, RunOutcome({}, _DIED)
            elif error is not None:
                raise _explained(error, address)
            else:
                yield task, future.result()


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("a Dask cluster needs the package distributed; pip install 'ddlsched[dask]'") from None
    try:
        client = Client(address, timeout=_ANSWER_S)
    except (OSError, ValueError) as error:
        why = f"no Dask scheduler answers there ({error or type(error).__name__})"
        raise InputError(f"dask {address}: {why}; expected an address such as tcp://127.0.0.1:8786") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_NO_WORKER_S)
        except TimeoutError:
            raise _without_workers(address) from None
        yield client


def _window(client: Client) -> int:
    """Return how many tasks are at the scheduler at once, so that no worker waits for its next one."""
    threads: dict[str, int] = client.nthreads()
    return 4 * max(1, sum(threads.values()))


def _refuse_no_workers(client: Client, address: str) -> None:
    if not client.nthreads():
        raise _without_workers(address)


def _without_workers(address: str) -> DdlschedError:
    return DdlschedError(f"dask {address}: has no workers; finished runs are kept, and the same command goes on")


def _error_of(future: Future[RunOutcome]) -> BaseException | None:
    return ConnectionError("the scheduler is gone") if future.cancelled() else future.exception()


def _explained(error: BaseException, address: str) -> DdlschedError:
    if isinstance(error, DdlschedError):
        return error
    if isinstance(error, OSError):
        return DdlschedError(f"dask {address}: {error}; finished runs are kept, and the same command goes on")
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return InputError(
        f"dask {address}: the workers cannot do the runs ({why}); expected ddlsched to be installed there"
    )


def _packed(tasks: Sequence[Task]) -> Parcel:
    named: list[Path] = []

    def note(text: str) -> str:
        named.extend(files_named(text))
        return text

    for task in tasks:
        task.run.with_texts(note)
    files = {part.resolve() for path in named for part in with_neighbours(path)}
    return {str(path): read_bytes(path) for path in sorted(files)}


# ---- On a worker


def _same(parcel: Parcel) -> Parcel:
    return parcel


def _on_worker(run: Run, wanted: tuple[str, ...], parcel: Parcel, sources: str) -> RunOutcome:
    if _own_sources() != sources:
        from distributed import get_worker

        where = f"dask worker {get_worker().address}"
        raise InputError(f"{where}: another ddlsched, numpy or plug-in is installed; expected the same as here")
    folder = _unpacked(parcel)
    outcome = execute(run.with_texts(lambda text: text.replace(_SENT, folder)), wanted)
    return outcome._replace(failure=outcome.failure and outcome.failure.replace(folder, ""))


@lru_cache(maxsize=1)
def _own_sources() -> str:
    return sources_digest()


_UNPACKING = threading.Lock()
_FOLDERS: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""Where this worker has put which parcel; removed when it ends."""


def _unpacked(parcel: Parcel) -> str:
    with _UNPACKING:
        key = repr([(name, hash(data)) for name, data in parcel.items()])
        if key not in _FOLDERS:
            folder = tempfile.TemporaryDirectory(prefix="ddlsched-")
            for name, data in parcel.items():
                path = Path(folder.name + name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            _FOLDERS[key] = folder
        return _FOLDERS[key].name
