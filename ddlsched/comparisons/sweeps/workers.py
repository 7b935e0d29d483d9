"""The processes of this machine that carry out a sweep's tasks.

A process that dies costs the runs that were under way when it did; they are done again, each in a process of
its own, so that the one that brings its process down is known, and does not stop the rest.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ddlsched.comparisons.sweeps.run import Run, RunOutcome, execute
from ddlsched.io.child_processes import follow_parent
from ddlsched.simulation import warm_up

__all__ = ["Done", "Task", "drain", "on_this_machine"]

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

    def submit(task: Task) -> Future[RunOutcome]:
        try:
            future: Future[RunOutcome] = pool.submit(execute, task.run, task.wanted, _file(progress, task))
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        return future

    try:
        for task, future in drain(left, submit, lambda: 0 if suspects else 2 * count):
            if isinstance(future.exception(), BrokenProcessPool):
                suspects.append(task)
            else:
                yield task, future.result()
    except BaseException:  # Ctrl-C, or the sweep stops
        pool.shutdown(wait=True, kill_workers=True)
        raise
    return suspects


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
