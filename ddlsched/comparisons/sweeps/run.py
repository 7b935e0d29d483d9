"""One run of a sweep, described by data alone, and how it is carried out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ddlsched.comparisons.sweeps.fingerprint import describe
from ddlsched.comparisons.sweeps.run_watch import ProgressFile
from ddlsched.engine.run_progress import RunWatcher
from ddlsched.errors import DdlschedError
from ddlsched.plugins.user_files import class_in_file
from ddlsched.workload.workload_specs import workload_of

__all__ = ["Run", "RunOutcome", "execute"]


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
        :mod:`ddlsched.workload.workload_specs`.
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
        if progress is None:
            return RunOutcome(_simulated(run, wanted, None))
        with ProgressFile(run.name, progress) as watch:
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
