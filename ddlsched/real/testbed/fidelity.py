"""Mixes of jobs run for real: the plan of runs, what is kept of each, and going on after a stop."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, label
from ddlsched.io.files import replacing
from ddlsched.io.tables import read_text, readable
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.real_run import RealRun, run_for_real
from ddlsched.real.testbed.settings import gate_settings
from ddlsched.workload.job import Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Mix", "Planned", "Runs", "note_settings", "plan", "run_planned"]


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Jobs that contend, and where.

    Parameters
    ----------
    name
        Unique within a comparison.
    workload, cluster
        The jobs, and the (scaled) cluster that they run on.
    policies
        By name, the arguments of a gate's settings: scheduler, placement, order, communication, chunk_bytes. The first
        one is the baseline of gains.
    """

    name: str
    workload: Workload
    cluster: Cluster
    policies: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Planned:
    """One run of a mix."""

    mix: Mix
    policy: str
    repeat: int

    @property
    def key(self) -> str:
        """What its file is called: everything that decides it."""
        jobs = [(job, job.dag) for job in self.mix.workload]
        given = {name: label(value) for name, value in sorted(self.mix.policies[self.policy].items())}
        topology = label(self.mix.cluster.topology)
        text = repr((self.mix.name, jobs, self.mix.cluster.num_servers, topology, given, self.repeat))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def plan(mixes: Sequence[Mix], repeats: int, *, seed: int = 0) -> list[Planned]:
    """Return all runs, one repeat of all policies after another, so that a machine that slowly changes favours none.

    Policies are shuffled within each. Mixes stay together, since each needs its own network.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; expected at least 1")
    rng = np.random.default_rng(seed)
    runs = []
    for mix in mixes:
        policies = list(mix.policies)
        for repeat in range(repeats):
            runs += [Planned(mix, policies[number], repeat) for number in rng.permutation(len(policies))]
    return runs


@dataclass(frozen=True)
class Runs:
    """A folder in which every finished run is kept, whole or not at all."""

    folder: Path

    def measured(self, planned: Sequence[Planned]) -> pd.DataFrame:
        """Return a row a job of each run that is there: mix, policy, repeat, job_id, jct_s, iteration_s, finish_s, ...

        The last ones say whether the machine kept up: late_share, cpu_busy_share, machine_limited.
        """
        import pandas as pd

        tables = [self.read(run) for run in planned if self._path(run).exists()]
        if not tables:
            raise InputError(f"{self.folder}: holds none of the runs; expected some that were measured")
        return pd.concat(tables, ignore_index=True)

    def read(self, run: Planned) -> pd.DataFrame:
        """Return the rows of one run that is there."""
        import pandas as pd

        table = pd.read_parquet(self._path(run))
        return table.assign(mix=run.mix.name, policy=run.policy, repeat=run.repeat)

    def missing(self, planned: Sequence[Planned]) -> list[Planned]:
        """Return the runs that are still to be made."""
        return [run for run in planned if not self._path(run).exists()]

    def keep(self, planned: Planned, run: RealRun) -> None:
        """Write a finished run, and beside it the times of its all-reduces."""
        jobs = run.jobs
        table = jobs[["job_id", "jct_s", "finish_s", "setup_s", "servers"]].copy()
        table["iteration_s"] = (jobs.finish_s - jobs.began_s) / jobs.iterations
        for name in ("late_share", "cpu_busy_share", "machine_limited"):
            table[name] = run.machine[name]
        path = self._path(planned)
        for target, rows in ((self.folder / "transfers" / path.name, run.transfers), (path, table)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target, "run") as file:
                rows.to_parquet(file, index=False)

    def _path(self, planned: Planned) -> Path:
        return self.folder / "runs" / f"{planned.key}.parquet"


def run_planned(planned: Planned, crew: WorkerCrew, model: str, *, realtime: bool = True) -> RealRun:
    """Make one run for real; ``model`` is the contention model by which policies count."""
    mix = planned.mix
    settings = gate_settings(mix.cluster, contention=model, **mix.policies[planned.policy])
    return run_for_real(mix.workload, settings, crew, realtime=realtime)


def note_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down what a folder's runs are of; refuse another's.

    Raises
    ------
    InputError
        The folder holds another comparison, or cannot be used.
    """
    path = folder / "comparison.json"
    text = json.dumps(settings, indent=2, sort_keys=True, default=str) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be used ({error.strerror}); expected a folder for runs") from None
    if os.path.lexists(path) and readable(path, "a comparison's settings", read_text) != text:
        raise InputError(f"{folder}: holds another comparison ({path.name} differs); expected another folder")
    with replacing(path, "comparison") as file:
        file.write_text(text, encoding="utf-8")
