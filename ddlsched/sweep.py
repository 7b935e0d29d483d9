"""Sweeps: many simulations in parallel, each written to disk at once, none ever done twice.

A finished run is a Parquet file: its table of jobs, with the summary and the run's description in the file's
metadata. Its name is a hash of all that the outcome depends on: the inputs, the seed, the bytes of every file
of the user's, and the installed sources. So a sweep that was stopped, by whatever means, goes on where it was,
and what has changed since is run anew.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddlsched.errors import DdlschedError
from ddlsched.fingerprint import describe, fingerprint, sources_digest
from ddlsched.jobs import Workload
from ddlsched.plugins import class_in_file
from ddlsched.simulation import warm_up

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Failure", "Run", "Sweep", "Watcher", "sweep"]

_METADATA = b"ddlsched"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulation of a sweep, described by data alone, so that it can be hashed, sent and written down.

    Parameters
    ----------
    labels
        What tables and charts call it, such as ``{"policy": "SRSF(1)"}``: column to value. Not part of its
        identity: two runs that differ in nothing else are simulated once.
    workload
        A workload's file, or a generator as ``"module:function"`` or ``"path/to/file.py:function"``, which is
        called with ``seed`` and ``workload_options``.
    seed
        Of the generator and of the policies.
    options
        Further arguments of :func:`ddlsched.simulate`: names of policies, or instances.
    measures
        Functions, named like a generator, that return further metrics of a result as a mapping of numbers.
    """

    labels: Mapping[str, str]
    workload: str
    seed: int
    workload_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ()

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that the outcome depends on, but for sources."""
        return {
            "workload": self.workload,
            "workload_options": dict(self.workload_options),
            "seed": self.seed,
            "options": dict(self.options),
            "measures": list(self.measures),
        }


@dataclass(frozen=True)
class Failure:
    """A run that raised."""

    run: Run
    message: str

    def __str__(self) -> str:
        return f"{', '.join(self.run.labels.values())}, seed {self.run.seed}: {self.message}"


class Watcher(Protocol):
    """Is told how a sweep gets on."""

    def __call__(self, done: int, total: int, failure: Failure | None) -> None:
        """Take note of ``done`` of ``total`` different runs, and of the one that just failed, if it did."""
        ...


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
        import pandas as pd

        rows = [{**run.labels, "seed": run.seed, **_read_metadata(path)["summary"]} for run, path in self.finished]
        return pd.DataFrame(rows)

    def jobs(self, **labels: str) -> pd.DataFrame:
        """Return the jobs of all runs with the given labels: a row a job, with the run's labels and seed."""
        import pandas as pd

        chosen = [(run, path) for run, path in self.finished if labels.items() <= dict(run.labels).items()]
        frames = [pd.read_parquet(path).assign(**run.labels, seed=run.seed) for run, path in chosen]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def sweep(runs: Sequence[Run], store: Path, *, processes: int = -1, watch: Watcher | None = None) -> Sweep:
    """Simulate what ``store`` does not hold yet, and return what it then holds.

    Parameters
    ----------
    runs
        In any order; a run that raises is reported and does not stop the others.
    store
        A folder, made if need be; several sweeps may share it.
    processes
        How many at once; -1 for one a core.
    watch
        Called at the start and after each run.

    Raises
    ------
    InputError
        A run's inputs cannot be told apart from others, or name a file that is not there.
    """
    from joblib import Parallel, delayed

    store.mkdir(parents=True, exist_ok=True)
    digest = sources_digest()
    paths = [store / f"{fingerprint(run.inputs, digest)}.parquet" for run in runs]
    distinct = dict(zip(paths, runs, strict=True))
    missing = [(run, path) for path, run in distinct.items() if not path.exists()]
    done, failed = len(distinct) - len(missing), dict[Path, str]()
    watch = watch or _ignore
    watch(done, len(distinct), None)
    if missing:
        warm_up()
    work = Parallel(n_jobs=processes, return_as="generator_unordered")
    for path, message in work(delayed(_run_to_file)(run, path, os.getpid()) for run, path in missing):
        done += 1
        if message is not None:
            failed[path] = message
        watch(done, len(distinct), None if message is None else Failure(distinct[path], message))
    both = list(zip(runs, paths, strict=True))
    return Sweep(
        finished=tuple((run, path) for run, path in both if path not in failed),
        failures=tuple(Failure(run, failed[path]) for run, path in both if path in failed),
    )


def _ignore(done: int, total: int, failure: Failure | None) -> None:
    """Watch nothing."""


def _run_to_file(run: Run, path: Path, parent: int) -> tuple[Path, str | None]:
    """Simulate and write; return the path and, if the run raised, what."""
    if os.getpid() != parent and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent is to answer it
    try:
        _write(run, path)
    except DdlschedError as error:
        return path, str(error)
    except Exception as error:
        return path, f"{type(error).__name__}: {error}"
    return path, None


def _write(run: Run, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import ddlsched

    result = ddlsched.simulate(_workload(run), seed=run.seed, **run.options)
    summary = result.summary()
    for measure in run.measures:
        summary |= _function(measure)(result)
    table = pa.Table.from_pandas(result.jobs, preserve_index=False)
    described = {"inputs": describe(run.inputs, set()), "summary": summary}
    metadata = {**(table.schema.metadata or {}), _METADATA: json.dumps(described)}
    beside = path.with_name(f"{path.stem}.{os.getpid()}.part")
    pq.write_table(table.replace_schema_metadata(metadata), beside)
    beside.replace(path)  # atomic: a file of this name is whole


def _read_metadata(path: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    metadata: dict[str, Any] = json.loads(pq.read_schema(path).metadata[_METADATA])
    return metadata


def _workload(run: Run) -> Workload:
    if ":" not in run.workload:
        return Workload.read(run.workload)
    workload: Workload = _function(run.workload)(seed=run.seed, **run.workload_options)
    return workload


def _function(name: str) -> Callable[..., Any]:
    """Return what ``module:function`` or ``path/to/file.py:function`` names."""
    home, _, attribute = name.rpartition(":")
    found: Callable[..., Any] = (
        class_in_file(Path(home), attribute) if home.endswith(".py") else pkgutil.resolve_name(name)
    )
    return found
