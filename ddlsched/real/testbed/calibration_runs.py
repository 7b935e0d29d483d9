"""Measures all-reduces of one job alone and of two that contend, and fits the contention models to those only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.plugins.names import resolve
from ddlsched.real.calibration.fit import FORMS, fit_constants, presets
from ddlsched.real.calibration.measure import Measured, write_measurements
from ddlsched.real.calibration.measurements import Measurements, read_measurements
from ddlsched.real.gate.gate import GateSettings
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.pinned import Pinned
from ddlsched.real.testbed.real_run import run_for_real
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Setting",
    "calibration_settings",
    "fitted_constants",
    "fitted_models",
    "measure_settings",
    "measured_rows",
    "reducing_job",
    "sent_freely",
]

ITERATIONS = 12
_SIZES_BYTES = (200_000, 400_000, 800_000, 1_600_000)
_FIRST = 2
"""Iterations that only open the TCP windows, and are not counted."""
_PAUSE_NS = 2_000_000


@dataclass(frozen=True)
class Setting:
    """Jobs that reduce at a time, each the same message over the same servers."""

    jobs: int
    message_bytes: int
    servers: int


def calibration_settings(num_servers: int, sizes_bytes: Iterable[int] = _SIZES_BYTES) -> list[Setting]:
    """Return jobs alone and pairs, of each size, on two servers and on all."""
    counts = sorted({2, num_servers})
    return [Setting(*setting) for setting in itertools.product((1, 2), sizes_bytes, counts)]


def measure_settings(
    wanted: Iterable[Setting], settings: GateSettings, crew: WorkerCrew, watch: Callable[[], None] = lambda: None
) -> list[Measured]:
    """Return the mean time of an all-reduce in each setting, as :mod:`ddlsched.real.calibration` takes them."""
    rows = []
    for setting in wanted:
        seconds = _mean_s(setting, settings, crew)
        rows.append(Measured(setting.jobs, setting.message_bytes, seconds, setting.servers, 1))
        watch()
    return rows


def _mean_s(setting: Setting, settings: GateSettings, crew: WorkerCrew) -> float:
    names = [f"calibration-{number}" for number in range(setting.jobs)]
    jobs = [reducing_job(name, setting.message_bytes, setting.servers, ITERATIONS) for name in names]
    transfers = sent_freely(jobs, settings, crew)
    counted = transfers[(transfers.iteration >= _FIRST) & (transfers.iteration < ITERATIONS - 1)]
    return float((counted.ended_s - counted.granted_s).mean())


def reducing_job(name: str, message_bytes: int, servers: int, iterations: int) -> Job:
    """Return a job of a worker a server that does nothing but reduce, with short pauses."""
    tasks = (
        ComputeTask(name="pause", duration_ns=_PAUSE_NS),
        AllReduceTask(name="all-reduce", message_bytes=message_bytes, after=("pause",)),
    )
    return Job(
        job_id=name,
        arrival_s=0.0,
        num_gpus=servers,
        iterations=iterations,
        iteration=IterationDag(tasks),
        gpu_memory_mb=0.0,
    )


def sent_freely(
    jobs: Sequence[Job], settings: GateSettings, crew: WorkerCrew, chunk_bytes: float | None = None
) -> pd.DataFrame:
    """Return the transfers of jobs on the first servers each, of which none waits for another."""
    pinned = Pinned(servers={job.job_id: range(job.num_gpus) for job in jobs})
    free = resolve("communication", "bounded-overlap:limit=1000")
    alone = replace(settings, placement=pinned, communication=free, chunk_bytes=chunk_bytes, slots=False)
    return run_for_real(Workload.of(jobs), alone, crew).transfers


def measured_rows(
    path: Path, settings: GateSettings, crew: WorkerCrew | None, watch: Callable[[], None] = lambda: None
) -> Measurements:
    """Return the measurements in a file; if it is not there, a crew takes them, and they are kept."""
    if not path.exists() and crew is not None:
        rows = measure_settings(calibration_settings(settings.cluster.num_servers), settings, crew, watch)
        with replacing(path, "calibration") as file:
            write_measurements(rows, file)
    return read_measurements(path)


def fitted_constants(rows: Measurements) -> dict[str, float]:
    """Return ``latency_s`` and ``per_byte_s`` of max-min and equal-share, without intervals."""
    return fit_constants(next(form for form in FORMS if form.ring_bytes), rows)


def fitted_models(rows: Measurements) -> dict[str, str]:
    """Return each contention model with the constants that fit, by name, as ``simulate --contention`` takes it.

    Raises
    ------
    InputError
        No model fits with a time of a byte above 0.
    """
    found = presets(rows)
    shares = found.get("max-min or equal-share")
    if shares is None:
        raise InputError("no contention model fits what was measured; expected times that grow with the message")
    names = {"linear, no penalty": "linear without penalty", "linear": "linear"}
    models = {"max-min": shares, "equal-share": shares.replace("max-min", "equal-share", 1)}
    return models | {short: found[name] for name, short in names.items() if name in found}
