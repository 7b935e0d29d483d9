"""Who carries out a sweep's tasks: processes of this machine, or the workers of a Dask cluster.

A process that dies costs the runs that were under way when it did; they are done again, each in a process of
its own, so that the one that brings its process down is known, and does not stop the rest.

Nothing is asked of Dask's scheduler and workers but that the same ddlsched is installed there. They need none of the
client's files: those that the runs name, and what Python files import from beside them, are sent along. They
write nothing: a finished run comes back as bytes, and the client stores it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from ddlsched.comparisons.sweeps.run import Run, RunOutcome, execute, sources_digest
from ddlsched.errors import DdlschedError, InputError, need
from ddlsched.io.child_processes import follow_parent
from ddlsched.io.files import read_bytes
from ddlsched.plugins.user_files import files_named, interrupted_plugin, substituted, with_neighbours
from ddlsched.simulation import warm_up

if TYPE_CHECKING:
    from distributed import Client

_TELL_S = 1.0
"""How long Ctrl-C waits for processes to say which line of a plug-in they are at."""
_DIED = "its process died twice, the second time with no other run in it (no memory left, or a crash of compiled code)"


class Task(NamedTuple):
    """A run under its fingerprint, and the kinds of files that are wanted of it."""

    key: str
    run: Run
    wanted: tuple[str, ...]


Done: TypeAlias = Iterator[tuple[Task, RunOutcome]]
"""Tasks with what came of them, in the order in which they end."""


def on_this_machine(tasks: Sequence[Task], processes: int, progress: Path | None) -> Done:
    """Carry out tasks in so many processes (-1: one a core); one is this process itself.

    While a task is under way, a file in the folder ``progress``, if there is one, says how far it is.
    """
    from joblib import effective_n_jobs

    count = min(effective_n_jobs(processes), len(tasks))
    if count <= 1:
        yield from ((task, execute(task.run, task.wanted, _file(progress, task))) for task in tasks)
        return
    warm_up()  # compiled once, before each process would do it
    left = deque(tasks)
    while left:
        suspects = yield from _until_one_dies(left, count, progress)
        for task in suspects:
            yield task, _alone(task, progress)


def _until_one_dies(
    left: deque[Task], count: int, progress: Path | None
) -> Generator[tuple[Task, RunOutcome], None, list[Task]]:
    """Carry out tasks until none is left or a process has died; return what was under way then."""
    from joblib.externals.loky import BrokenProcessPool, get_reusable_executor

    pool = get_reusable_executor(max_workers=count, initializer=follow_parent, initargs=(os.getpid(),))
    suspects: list[Task] = []
    futures: set[Future[RunOutcome]] = set()

    def submit(task: Task) -> Future[RunOutcome]:
        try:
            future: Future[RunOutcome] = pool.submit(_interruptible, task.run, task.wanted, _file(progress, task))
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        futures.add(future)
        return future

    try:
        for task, future in drain(left, submit, lambda: 0 if suspects else 2 * count):
            futures.remove(future)
            if isinstance(future.exception(), BrokenProcessPool):
                suspects.append(task)
            else:
                yield task, future.result()
    except BaseException as error:  # Ctrl-C, or the sweep stops
        try:
            if isinstance(error, KeyboardInterrupt):
                error.add_note(_interrupted_plugins(pool, futures))
        finally:
            pool.shutdown(wait=True, kill_workers=True)
        raise
    return suspects


def _interruptible(run: Run, wanted: Collection[str], progress: Path | None) -> RunOutcome:
    """Carry out a run; when the parent asks where it is, raise KeyboardInterrupt that names a plug-in's line."""
    signal.signal(signal.SIGUSR1, _interrupt)
    try:
        return execute(run, wanted, progress)
    except KeyboardInterrupt as by:
        raise KeyboardInterrupt(interrupted_plugin(by)) from None
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a process that waits for its next run has nothing to tell


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # by which compiled code hands on what it heard
    raise KeyboardInterrupt


def _interrupted_plugins(pool: Any, futures: Collection[Future[RunOutcome]]) -> str:
    """Return the lines of plug-ins at which the runs of a pool's processes are, and end these runs."""
    asked = [*pool._processes]
    for process in asked:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGUSR1)
    told: list[str] = []
    with suppress(TimeoutError):
        for future in as_completed(futures, timeout=_TELL_S):
            told += map(str, [error] if isinstance(error := future.exception(), KeyboardInterrupt) else [])
            if len(told) == len(asked):
                break
    return ", and in ".join(dict.fromkeys(filter(None, told)))


def drain(
    left: deque[Task],
    submit: Callable[[Task], Future[RunOutcome]],
    window: Callable[[], int],
    stalled: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Task, Future[RunOutcome]]]:
    """Submit tasks, never more than ``window()`` at once, and yield each when it is done.

    ``stalled`` is called whenever a minute has passed in which none was.
    """
    running: dict[Future[RunOutcome], Task] = {}
    while True:
        for _ in range(min(window() - len(running), len(left))):
            task = left.popleft()
            running[submit(task)] = task
        if not running:
            return
        done, _ = wait(running, timeout=60.0, return_when=FIRST_COMPLETED)
        if not done:
            stalled()
        for future in done:
            yield running.pop(future), future


def _file(progress: Path | None, task: Task) -> Path | None:
    return None if progress is None else progress / task.key


def _alone(task: Task, progress: Path | None) -> RunOutcome:
    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor

    pool = ProcessPoolExecutor(max_workers=1, initializer=follow_parent, initargs=(os.getpid(),))
    try:
        outcome: RunOutcome = pool.submit(execute, task.run, task.wanted, _file(progress, task)).result()
    except BrokenProcessPool:
        if progress is not None:
            (progress / task.key).unlink(missing_ok=True)
        return RunOutcome({}, _DIED)
    finally:
        pool.shutdown(wait=True, kill_workers=True)
    return outcome


_SENT = "<sent>"
"""Stands in a run's texts for the folder in which a worker has put the client's files."""
_TOO_OFTEN = "several workers died, one after another, also while they did nothing else (no memory left, or a crash)"
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
                yield task, RunOutcome({}, _TOO_OFTEN)
            elif error is not None:
                raise _explained(error, address)
            else:
                yield task, future.result()


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    need("a Dask cluster", "distributed", extra="dask")
    from distributed import Client

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


_own_sources = lru_cache(maxsize=1)(sources_digest)


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
