"""Sweeps: many simulations in parallel, each written to disk at once, none ever done twice.

A finished run is a Parquet file: its table of jobs, with the summary and the run's description in the file's
metadata (``stored_runs.py``). Its name is a hash of all that the outcome depends on: the inputs, the
seed, the bytes of every file of the user's, and the installed sources. So a sweep that was stopped, by whatever
means, goes on where it was, and what has changed since is run anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ddlsched.comparisons.sweeps.run import Run, fingerprint, sources_digest
from ddlsched.comparisons.sweeps.stored_runs import is_damaged, read_jobs, read_metadata, remove_leftovers, store
from ddlsched.comparisons.sweeps.workers import Done, Task, on_dask, on_this_machine
from ddlsched.deferred import pd
from ddlsched.io.files import made_folder

if TYPE_CHECKING:
    from ddlsched.comparisons.sweeps.run import RunOutcome


@dataclass(frozen=True)
class Failure:
    """A run that raised."""

    run: Run
    message: str

    def __str__(self) -> str:
        return f"{self.run.name}: {self.message}"


SweepWatcher: TypeAlias = Callable[[int, int, "Failure | None"], None]
"""Is told how many different runs are done, of how many, and which has just failed, if one did."""


@dataclass(frozen=True)
class Sweep:
    """A sweep that has come to its end.

    Attributes
    ----------
    finished
        The file of each run that did not fail, in the order in which runs were given.
    failures
        The others.
    """

    finished: tuple[tuple[Run, Path], ...]
    failures: tuple[Failure, ...]

    def summaries(self) -> pd.DataFrame:
        """Return a row a run: its labels, its seed, and the metrics of :meth:`Result.summary` and of measures."""
        rows = [{**run.labels, "seed": run.seed, **read_metadata(path)["summary"]} for run, path in self.finished]
        return pd.DataFrame(rows)

    def jobs(self, **labels: str) -> pd.DataFrame:
        """Return the jobs of all runs with the given labels: a row a job, with the run's labels and seed."""
        chosen = [(run, path) for run, path in self.finished if labels.items() <= dict(run.labels).items()]
        frames = [read_jobs(path).assign(**run.labels, seed=run.seed) for run, path in chosen]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def sweep(
    runs: Sequence[Run],
    folder: Path,
    *,
    processes: int = -1,
    dask: str | None = None,
    watch: SweepWatcher = lambda *_: None,
    progress: Path | None = None,
) -> Sweep:
    """Simulate what ``folder`` does not hold yet, and return what it then holds.

    Parameters
    ----------
    runs
        In any order; a run that raises is reported and does not stop the others.
    folder
        Made if need be; several sweeps may share it.
    processes
        How many at once on this machine; -1 for one a core.
    dask
        Address of a Dask scheduler, whose workers are to do it instead.
    watch
        Called at the start and after each run.
    progress
        Folder in which runs of this machine that are under way say how far they are
        (:func:`ddlsched.comparisons.sweeps.run.under_way`).

    Raises
    ------
    InputError
        A run's inputs cannot be told apart from others, or name a file that is not there; the folder cannot be
        written, or holds something else in a run's place; the Dask cluster cannot be used.
    """
    made_folder(folder, "finished runs")
    remove_leftovers(folder)
    sources = sources_digest()
    keys = [fingerprint(run.inputs, sources) for run in runs]
    distinct = _distinct(keys, runs)
    tasks = _missing(distinct, folder)
    done, failed = len(distinct) - len(tasks), dict[str, str]()
    watch(done, len(distinct), None)
    for task, outcome in _carried_out(tasks, processes, dask, sources, progress):
        done += 1
        failure = outcome.failure or _changed_files(task, sources, dask)
        if failure is None:
            _keep(task, outcome, folder)
        else:
            failed[task.key] = failure
        watch(done, len(distinct), None if failure is None else Failure(distinct[task.key], failure))
    both = list(zip(runs, keys, strict=True))
    return Sweep(
        finished=tuple((run, folder / f"{key}.parquet") for run, key in both if key not in failed),
        failures=tuple(Failure(run, failed[key]) for run, key in both if key in failed),
    )


def _distinct(keys: Sequence[str], runs: Sequence[Run]) -> dict[str, Run]:
    """Return each run once, with all that is to be kept of it under any of its labels."""
    distinct: dict[str, Run] = {}
    for key, run in zip(keys, runs, strict=True):
        first = distinct.setdefault(key, run)
        distinct[key] = replace(first, placements=first.placements or run.placements, window=first.window or run.window)
    return distinct


def _missing(distinct: Mapping[str, Run], folder: Path) -> list[Task]:
    there = {path.name for path in folder.iterdir()}
    wanted = {
        key: tuple(kind for kind, path in run.files(folder, key).items() if path.name not in there or _spoilt(path))
        for key, run in distinct.items()
    }
    return [Task(key, distinct[key], kinds) for key, kinds in wanted.items() if kinds]


def _spoilt(path: Path) -> bool:
    """Return whether a kept file is damaged, and say so; of a timeline, which nothing here reads, it is not asked."""
    spoilt = ".timeline-" not in path.name and is_damaged(path)
    if spoilt:
        print(f"ddlsched: {path}: is damaged; its run is done anew", file=sys.stderr, flush=True)
    return spoilt


def _carried_out(tasks: Sequence[Task], processes: int, dask: str | None, sources: str, progress: Path | None) -> Done:
    if not tasks:
        return iter(())
    if dask is not None:
        return on_dask(tasks, dask, sources)
    return on_this_machine(tasks, processes, progress)


def _changed_files(task: Task, sources: str, dask: str | None) -> str | None:
    """Return what is wrong if a file of the user's is no longer what it was; a Dask worker has a copy of its own."""
    if dask is not None or fingerprint(task.run.inputs, sources) == task.key:
        return None
    fields = "or a policy keeps in its fields what begin(cluster, rng) should return"
    return f"a file that it depends on changed while it ran, {fields}; start again"


def _keep(task: Task, outcome: RunOutcome, folder: Path) -> None:
    """Store what came of a run, last the file that says that it is finished."""
    files = task.run.files(folder, task.key)
    for kind in sorted(outcome.files, key=lambda kind: kind == "run"):
        store(files[kind], outcome.files[kind])
