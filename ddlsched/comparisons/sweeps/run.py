"""One run of a sweep, described by data alone, and how it is carried out."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.engine.run_progress import RunProgress, RunWatcher
from ddlsched.errors import DdlschedError, InputError
from ddlsched.plugins.user_files import class_in_file, digest_of, files_named, installed_packages, with_neighbours
from ddlsched.workload.workload_files import workload_of

_AFTERWARDS = ("paired_comparison", "explanation")
_ASKING = ("compare", "comparison", "comparison_tables", "fields", "folder", "settings")
_PRESENTATION = (
    "cli",
    "comparisons/charts",
    "comparisons/report",
    *(f"comparisons/{name}.py" for name in _ASKING),
    *(f"results/{name}.py" for name in _AFTERWARDS),
)
"""What no simulation imports."""


def fingerprint(inputs: Mapping[str, Any], sources: str) -> str:
    """Return the hash of a run's inputs, of the user's files among them, and of ``sources``.

    Raises
    ------
    InputError
        A value that cannot be told apart from others of its kind, such as a lambda.
    """
    files: set[Path] = set()
    described = describe(inputs, files)
    try:
        digests = sorted({digest_of(part) for path in files for part in with_neighbours(path)})
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); expected a readable file") from None
    return _digest(json.dumps([described, digests, sources], sort_keys=True).encode())


def sources_digest() -> str:
    """Return the hash of the installed sources: this package's and those of all registered plug-ins.

    What only draws and talks is left out; numpy's version counts, because its random streams may change with it.
    """
    digests = [_digest(path.read_bytes()) for name in sorted(installed_packages()) for path in _sources_of(name)]
    return _digest(json.dumps([digests, np.__version__]).encode())


def describe(value: object, files: set[Path]) -> Any:
    """Return ``value`` as JSON can hold it, and add to ``files`` those whose bytes count.

    Raises
    ------
    InputError
        A function, or an object that hides what it holds.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        files.update(files_named(str(value)))
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): describe(part, files) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [describe(part, files) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), _digest(value.tobytes())]
    return _describe_object(value, files)


def _describe_object(value: object, files: set[Path]) -> dict[str, Any]:
    kind = type(value)
    if inspect.isroutine(value) or inspect.isclass(value) or not (is_dataclass(value) or hasattr(value, "__dict__")):
        raise InputError(f"{value!r} cannot be hashed for a sweep; expected a name, a number, or a class's instance")
    try:
        files.add(Path(inspect.getfile(kind)))
    except (TypeError, OSError):
        raise InputError(f"class {kind.__qualname__} is in no file; a sweep has to notice when it changes") from None
    held = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else vars(value)
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "holds": describe(held, files)}


def _sources_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    if origin.name != "__init__.py":
        return [origin]
    silent = {origin.parent / name for name in _PRESENTATION} if package == "ddlsched" else set()
    return sorted(path for path in origin.parent.rglob("*.py") if silent.isdisjoint([path, *path.parents]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def progress_file(label: str, path: Path | None) -> Iterator[RunWatcher | None]:
    """Give what writes how far a run is to a file, which is there as long as the run; nothing without a file."""
    if path is None:
        yield None
        return

    def write(progress: RunProgress) -> None:
        with suppress(OSError):  # a disk that is full stops no run
            path.write_text(json.dumps([label, *progress]), encoding="utf-8")

    try:
        yield write
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def under_way(folder: Path) -> list[str]:
    """Return a line a run that has told how far it is; one that is being written is left out this time."""
    lines = []
    for path in sorted(folder.iterdir()):
        with suppress(OSError, ValueError, RecursionError):
            label, *numbers = json.loads(path.read_text(encoding="utf-8"))
            lines.append(f"{label}: {RunProgress(*numbers).text()}")
    return lines


@dataclass(frozen=True, kw_only=True)
class Run:
    """One simulation of a sweep, described by data alone, so that it can be hashed, sent and written down.

    Parameters
    ----------
    labels
        What tables and charts call it, such as ``{"policy": "SRSF(1)"}``: column to value. Not part of its
        identity: two runs that differ in nothing else are simulated once.
    workload
        A workload's file, or a generator such as ``"microsoft-160:scale=0.01"``; see
        :mod:`ddlsched.workload.workload_files`.
    seed
        Of the generator and of the policies.
    seeded
        Whether the outcome depends on the seed; if not, the runs of all seeds are one.
    options
        Further arguments of :func:`ddlsched.simulate`: names of policies, or instances.
    measures
        Functions, as ``"path/to/file.py:function"``, that return further metrics of a result as a mapping of
        numbers.
    placements
        Keep also where each job was.
    window
        Keep also a timeline of this part of the run, (from, to) in seconds.
    """

    labels: Mapping[str, str]
    workload: str
    seed: int
    seeded: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    placements: bool = False
    window: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """What people are told that it is."""
        return f"{', '.join(self.labels.values())}, seed {self.seed}"

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that the outcome depends on, but for sources."""
        return {
            "workload": self.workload,
            "seed": self.seed if self.seeded else None,
            "options": dict(self.options),
            "measures": list(self.measures),
        }

    def files(self, store: Path, key: str) -> dict[str, Path]:
        """Return the files that are kept of it, by kind; ``key`` is its fingerprint."""
        files = {"run": store / f"{key}.parquet"}
        if self.placements:
            files["placements"] = store / f"{key}.placements"
        if self.window is not None:
            files["timeline"] = store / f"{key}.timeline-{self.window[0]:g}-{self.window[1]:g}"
        return files

    def with_texts(self, change: Callable[[str], str]) -> Run:
        """Return the same run with every text in it that may name a file changed."""
        options, measures = _changed(dict(self.options), change), tuple(map(change, self.measures))
        return replace(self, workload=change(self.workload), options=options, measures=measures)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _changed(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_changed(part, change) for part in value])
    if is_dataclass(value) and not isinstance(value, type):
        texts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: change(text) for name, text in texts.items() if isinstance(text, str) and change(text) != text}
        return replace(value, **new) if new else value
    return value


class RunOutcome(NamedTuple):
    """What came of a run: the files that are kept of it, by kind, or what it raised."""

    files: dict[str, bytes]
    failure: str | None = None


def execute(run: Run, wanted: Collection[str], progress: Path | None = None) -> RunOutcome:
    """Simulate, and return the files of the wanted kinds; what the run raises is its outcome.

    ``progress`` is the file that is to say how far the run is, as long as it goes on.
    """
    try:
        with progress_file(run.name, progress) as watch:
            return RunOutcome(_simulated(run, wanted, watch))
    except DdlschedError as error:
        return RunOutcome({}, str(error))
    except Exception as error:
        return RunOutcome({}, f"{type(error).__name__}: {error}")


def _simulated(run: Run, wanted: Collection[str], watch: RunWatcher | None) -> dict[str, bytes]:
    from ddlsched.comparisons.sweeps import stored_runs
    from ddlsched.simulation import simulate

    recorded = {"timeline": run.window} if "timeline" in wanted else {}
    result = simulate(workload_of(run.workload, run.seed), seed=run.seed, watch=watch, **{**run.options, **recorded})
    further: dict[str, float] = {}
    for measure in run.measures:
        further |= _function(measure)(result)
    inputs = describe(run.inputs, set())
    made = {
        "run": lambda: stored_runs.run_bytes(result, inputs, further),
        "placements": lambda: stored_runs.placements_bytes(result, inputs),
        "timeline": lambda: stored_runs.timeline_bytes(result),
    }
    return {kind: made[kind]() for kind in wanted}


def _function(name: str) -> Callable[..., Any]:
    file, _, attribute = name.rpartition(":")
    return class_in_file(Path(file), attribute)
