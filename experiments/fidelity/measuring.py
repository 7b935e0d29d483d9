"""Which runs there are, in which order, and making them: what is there at any moment can be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import monotonic

import alone
import mixes
import pandas as pd

from ddlsched.cli.reporting import notice
from ddlsched.errors import InputError, TestbedError
from ddlsched.io.files import replacing
from ddlsched.real.calibration.measurements import read_measurements
from ddlsched.real.testbed.crews import WorkerCrew, namespace_crew
from ddlsched.real.testbed.fidelity import Planned, Runs, plan, run_planned
from ddlsched.real.testbed.measuring import fitted_models, measure_alone, measure_shares, measured_rows
from ddlsched.real.testbed.real_run import RealRun, gate_settings

CALIBRATION = "calibration.csv"
SHARES = "shares.csv"
ALONE = "alone.csv"
MEASURED = "measured.csv"
QUICK = "quick"
"""A file that is there if the mixes are the short ones."""
_SEED = 0
_MOST_FAILURES = 3
"""Runs that fail one after the other, before it is given up."""


def compared_seeds(seeds: Sequence[int], compared: int) -> set[int]:
    """Return the held-out mixes that run under all policies: spread over the whole plan, and over all clusters."""
    held_out = [seed for seed in seeds if mixes.held_out(seed)]
    chosen: list[int] = []
    taken = dict.fromkeys(map(mixes.cluster_name, held_out), 0)
    for place, seed in enumerate(held_out, 1):
        cluster = mixes.cluster_name(seed)
        if len(chosen) < place * compared / len(held_out) and taken[cluster] == min(taken.values()):
            chosen.append(seed)
            taken[cluster] += 1
    left = [seed for seed in held_out if seed not in chosen]
    return {*chosen, *left[: max(compared - len(chosen), 0)]}


def planned_runs(seeds: Sequence[int], compared: int, repeats: int, draw: mixes.Draw) -> list[Planned]:
    """Return the runs: a training mix, a held-out one, and so on, over all clusters in turn."""
    several = compared_seeds(seeds, compared)
    runs = []
    for seed in seeds:
        policies = tuple(mixes.POLICIES) if seed in several else (mixes.BASELINE,)
        runs += plan([mixes.mix_of(seed, policies, draw)], repeats if seed in several else 1, seed=_SEED + seed)
    return runs


def prepare_folder(folder: Path, *, resume: bool, quick: bool) -> None:
    """Make the folder, or refuse one that is not to be gone on with.

    Raises
    ------
    InputError
        It is not empty and resume was not asked for, or its mixes are of the other kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        if quick:
            (folder / QUICK).touch()
    elif not resume:
        raise InputError(f"{folder}: is not empty; expected --resume, or a new folder")
    elif (folder / QUICK).exists() != quick:
        raise InputError(f"{folder}: holds {'full' if quick else 'quick'} mixes; expected the same with --resume")


@dataclass
class Measuring:
    """The runs of a folder while they are made.

    Parameters
    ----------
    folder, planned
        Where they are kept, and all that there are to be.
    stop_s
        After how many seconds no further run is begun, if it would take until later.
    """

    folder: Path
    planned: Sequence[Planned]
    stop_s: float = float("inf")
    begin_s: float = field(default_factory=lambda: monotonic())
    tables: list[pd.DataFrame] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    failures_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.runs = Runs(self.folder)
        missing = self.runs.missing(self.planned)
        left = {run.key for run in missing}
        self.tables += [self.runs.read(run) for run in self.planned if run.key not in left]
        self.missing = missing
        self._note()

    def measure(self) -> None:
        """Make the runs that are missing, each kept at once, until all are there or the time is over.

        Raises
        ------
        InputError
            No root, no tools, no PyTorch, or a testbed in use.
        TestbedError
            Several runs one after the other failed.
        """
        if not self.missing:
            return
        kept = self.folder / CALIBRATION
        with namespace_crew(realtime=True) as crew_on:
            if any(not (self.folder / name).exists() for name in (CALIBRATION, SHARES, ALONE)):
                notice("measuring jobs alone and pairs")
                cluster = mixes.cluster_of(mixes.CALIBRATED)
                with crew_on(cluster) as crew:
                    measured_rows(kept, gate_settings(cluster), crew)
                    measure_shares(self.folder / SHARES, gate_settings(cluster), crew)
                    count = alone.QUICK_JOBS if (self.folder / QUICK).exists() else alone.JOBS
                    jobs = [alone.drawn(number) for number in range(count)]
                    measure_alone(self.folder / ALONE, jobs, gate_settings(cluster), crew)
            model = fitted_models(read_measurements(kept))["max-min"]
            for _, group in groupby(self.missing, key=lambda run: mixes.cluster_name(mixes.seed_of(run.mix.name))):
                together = [run for run in group if not self.is_over]
                if together:
                    with crew_on(together[0].mix.cluster) as crew:
                        self._make(together, crew, model)

    @property
    def is_over(self) -> bool:
        """Whether a run as long as those before would end too late."""
        return monotonic() - self.begin_s + self._mean_s > self.stop_s

    @property
    def _mean_s(self) -> float:
        return sum(self.durations_s) / len(self.durations_s) if self.durations_s else 0.0

    def _make(self, together: Sequence[Planned], crew: WorkerCrew, model: str) -> None:
        for run in together:
            if self.is_over:
                return
            begin_s = monotonic()
            try:
                made = self._made(run, crew, model)
            except TestbedError as error:
                self._fail(run, error)
                crew.dismiss()
                continue
            self.failures_in_a_row = 0
            self.durations_s.append(monotonic() - begin_s)
            self.runs.keep(run, made)
            self.tables.append(self.runs.read(run))
            self._note()
            self._tell(run, made)

    def _made(self, run: Planned, crew: WorkerCrew, model: str) -> RealRun:
        """Make a run, and once more if the machine was the limit."""
        made = run_planned(run, crew, model)
        if made.machine["machine_limited"]:
            made = run_planned(run, crew, model)
        return made

    def _fail(self, run: Planned, error: TestbedError) -> None:
        notice(f"{_name(run)} failed and stays missing: {error}")
        self.failures_in_a_row += 1
        if self.failures_in_a_row == _MOST_FAILURES:
            raise error

    def _note(self) -> None:
        """Write the table of all runs that are there, from which a report is made."""
        if self.tables:
            with replacing(self.folder / MEASURED, "--out") as file:
                pd.concat(self.tables, ignore_index=True).to_csv(file, index=False, float_format="%.6g")

    def _tell(self, run: Planned, made: RealRun) -> None:
        left = len(self.planned) - len(self.tables)
        limited = ", limited by the machine" if made.machine["machine_limited"] else ""
        until = ""
        if self.stop_s < float("inf"):
            until = f", stops in {max(self.stop_s - monotonic() + self.begin_s, 0) / 60:.1f} min"
        notice(
            f"{len(self.tables)} of {len(self.planned)} runs ({_name(run)}, {self.durations_s[-1]:.0f} s{limited}); "
            f"the rest takes {left * self._mean_s / 60:.1f} min{until}"
        )


def _name(run: Planned) -> str:
    return f"{run.mix.name} on {mixes.cluster_name(mixes.seed_of(run.mix.name))}, {run.policy}, repeat {run.repeat}"
