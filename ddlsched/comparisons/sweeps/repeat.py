"""A finished run done again, from its file alone, to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.cluster.throughputs import Throughputs
from ddlsched.comparisons.sweeps.stored_runs import kept_workload, read_jobs, read_metadata
from ddlsched.errors import InputError
from ddlsched.io.tables import located
from ddlsched.network.contention import EqualShare, Linear, MaxMin
from ddlsched.simulation import simulate
from ddlsched.workload.workload_specs import workload_of

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.engine.outcome import Window
    from ddlsched.engine.run_progress import RunWatcher
    from ddlsched.results.result import Result

__all__ = ["repeat"]

_REBUILT = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (Cluster, Server, Throughputs, Disturbances, FailureCause, Outage, Linear, EqualShare, MaxMin)
}
"""The classes whose instances a run's file may describe; nothing else is made from what a file says."""


def repeat(path: Path, *, timeline: bool | tuple[float, float] | Window, watch: RunWatcher | None = None) -> Result:
    """Simulate a run's file again, with a timeline; ``watch`` is told how far it is.

    A workload that the file holds is taken from there. Relative names are relative to the current folder, as they were
    when the run was made.

    Raises
    ------
    InputError
        It is no run's file; a policy was given as an instance, which a file cannot hold; or the outcome is
        another, because the workload's file or a source has changed.
    """
    inputs = read_metadata(path).get("inputs")
    if not isinstance(inputs, Mapping) or not {"workload", "seed", "options"} <= inputs.keys():
        raise InputError(f"{path}: does not say what was simulated; expected a run of 'ddlsched compare' or --run-out")
    options = {name: _rebuilt(path, name, value) for name, value in inputs["options"].items()}
    seed = inputs["seed"] or 0  # of a run in which nothing is random, none is kept
    where = f"{path}, whose relative names are those of the folder in which it was made"
    with TemporaryDirectory() as folder:
        kept = kept_workload(path, Path(folder))
        named = inputs["workload"] if kept is None else str(kept)
        workload = located(where, lambda: workload_of(named, seed))
    result = located(where, lambda: simulate(workload, seed=seed, watch=watch, **options | {"timeline": timeline}))
    _refuse_another_outcome(path, result.jobs, read_jobs(path))
    return result


def _rebuilt(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rebuilt(path, name, part) for part in value)
    if not isinstance(value, Mapping):
        return value
    kind = _REBUILT.get(str(value.get("class")))
    if kind is None or not isinstance(value.get("holds"), Mapping):
        what = value.get("class", "something else")
        raise InputError(f"{path}: {name} was an instance of {what}; expected one given by name, which can be repeated")
    made = {field.name for field in dataclasses.fields(kind) if field.init}
    return kind(**{field: _rebuilt(path, name, part) for field, part in value["holds"].items() if field in made})


def _refuse_another_outcome(path: Path, now: pd.DataFrame, then: pd.DataFrame) -> None:
    same = len(now) == len(then) and now["job_id"].tolist() == then["job_id"].tolist()
    if not same or not np.array_equal(now["finish_s"], then["finish_s"], equal_nan=True):
        raise InputError(
            f"{path}: the same inputs now have another outcome; expected the workload's file, the policies' files "
            "and ddlsched to be as they were"
        )
