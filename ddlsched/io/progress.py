"""Progress bars with the time left, on stderr: of sweeps, and of bytes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType


Told: TypeAlias = Callable[[int, int, object | None], None]
"""Told how much is done, of how much, and the text of what just failed, if it did."""


@contextlib.contextmanager
def progress_bar(title: str, under_way: Callable[[], list[str]] = list) -> Iterator[Told]:
    """Show the bar from the first that is told on, and under it the lines of ``under_way``, asked twice a second.

    Yields what is to be told of each piece of work that ends, as a sweep tells it.
    """
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class _Bar(bars.Progress):
        """The bar, and under it a line a piece of work that goes on."""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield from super().get_renderables()
            yield from (Text(f"  {line}", overflow="ellipsis", no_wrap=True) for line in under_way())

    console = Console(stderr=True)
    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()
    times = bars.TimeElapsedColumn(), bars.TextColumn("left"), bars.TimeRemainingColumn()
    # The time left is told from the runs of the last ten minutes: those of one seed differ too much.
    progress = _Bar(*columns, *times, console=console, speed_estimate_period=600.0, refresh_per_second=2)
    task = progress.add_task(title, total=None)

    def watch(done: int, total: int, failure: object | None) -> None:
        progress.update(task, completed=done, total=total)
        progress.start()
        if failure is not None:
            console.print(f"failed: {failure}", style="red", markup=False, highlight=False)

    try:
        yield watch
    finally:
        if progress.live.is_started:
            progress.stop()


@contextlib.contextmanager
def bytes_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each piece of work; yields what takes the work's name, the bytes done and the bytes in all.

    There is none where stderr is no terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = bars.TextColumn("{task.description}"), bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn()
    progress = bars.Progress(*columns, bars.TimeRemainingColumn(), console=Console(stderr=True))
    tasks: dict[str, bars.TaskID] = {}

    def watch(what: str, done: int, total: int) -> None:
        if what not in tasks:
            progress.start()
            tasks[what] = progress.add_task(what, total=total)
        progress.update(tasks[what], completed=done, total=total)

    try:
        yield watch
    finally:
        if tasks:
            progress.stop()
