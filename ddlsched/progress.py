"""A progress bar with the time left, on stderr, for what :func:`ddlsched.sweeps.sweep.sweep` reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlsched.sweeps.sweep import Failure, Watcher

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Watcher]:
    """Show the bar; yields what :func:`~ddlsched.sweeps.sweep.sweep` takes as ``watch``."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()
    times = bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn()
    # The time left is told from the runs of the last ten minutes: those of one seed differ too much.
    with bars.Progress(*columns, *times, console=console, speed_estimate_period=600.0) as progress:
        task = progress.add_task(title, total=None)

        def watch(done: int, total: int, failure: Failure | None) -> None:
            progress.update(task, completed=done, total=total)
            if failure is not None:
                console.print(f"failed: {failure}", style="red", markup=False, highlight=False)

        yield watch
