"""Measures all-reduces alone, in pairs, beside others and between computes; fits contention models to those only."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.real.calibration.fit import FORMS, fit_constants, presets
from ddlsched.real.calibration.measurements import Measured, Measurements, read_measurements, write_measurements
from ddlsched.real.gate.gate import GateSettings
from ddlsched.real.gate.transfer_gate import CHUNK_BYTES
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.real_run import run_for_real
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload

ITERATIONS = 12
_SIZES_BYTES = (200_000, 400_000, 800_000, 1_600_000)
_FIRST = 2
"""Iterations that only open the TCP windows, and are not counted."""
_PAUSE_NS = 2_000_000


Rings: TypeAlias = "tuple[int, int, int]"
"""So many jobs that reduce at a time, each a message of so many bytes, over the same so many servers."""


def calibration_settings(num_servers: int, sizes_bytes: Iterable[int] = _SIZES_BYTES) -> list[Rings]:
    """Return jobs alone and pairs, of each size, on two servers and on all."""
    return list(itertools.product((1, 2), sizes_bytes, sorted({2, num_servers})))


def measure_settings(wanted: Iterable[Rings], settings: GateSettings, crew: WorkerCrew) -> list[Measured]:
    """Return the mean time of an all-reduce in each setting, as :mod:`ddlsched.real.calibration` takes them."""
    rows = []
    for count, message_bytes, servers in wanted:
        names = [f"calibration-{number}" for number in range(count)]
        jobs = [reducing_job(name, message_bytes, servers, ITERATIONS) for name in names]
        mean_s = _mean_transfer_s(_counted(sent_freely(jobs, settings, crew), ITERATIONS))
        rows.append(Measured(count, message_bytes, mean_s, servers, 1))
    return rows


def _counted(transfers: pd.DataFrame, iterations: int) -> pd.DataFrame:
    return transfers[(transfers.iteration >= _FIRST) & (transfers.iteration < iterations - 1)]


def _mean_transfer_s(transfers: pd.DataFrame) -> float:
    return float((transfers.ended_s - transfers.granted_s).mean())


def reducing_job(name: str, message_bytes: int, servers: int, iterations: int) -> Job:
    """Return a job of a worker a server that does nothing but reduce, with short pauses."""
    tasks = (
        ComputeTask(name="pause", duration_ns=_PAUSE_NS),
        AllReduceTask(name="all-reduce", message_bytes=message_bytes, after=("pause",)),
    )
    return _job(name, servers, iterations, IterationDag(tasks))


def _job(name: str, servers: int, iterations: int, iteration: Any) -> Job:
    return Job(
        job_id=name, arrival_s=0.0, num_gpus=servers, iterations=iterations, iteration=iteration, gpu_memory_mb=0.0
    )


def sent_freely(
    jobs: Sequence[Job], settings: GateSettings, crew: WorkerCrew, chunk_bytes: float | None = None
) -> pd.DataFrame:
    """Return the transfers of jobs on the first servers each, of which none waits for another."""
    pinned = Pinned(servers={job.job_id: range(job.num_gpus) for job in jobs})
    free = resolve("communication", "bounded-overlap:limit=1000")
    alone = replace(settings, placement=pinned, communication=free, chunk_bytes=chunk_bytes, slots=False)
    return run_for_real(Workload.of(jobs), alone, crew).transfers


def measured_rows(path: Path, settings: GateSettings, crew: WorkerCrew | None) -> Measurements:
    """Return the measurements in a file; if it is not there, a crew takes them, and they are kept."""
    if not path.exists() and crew is not None:
        rows = measure_settings(calibration_settings(settings.cluster.num_servers), settings, crew)
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


_LARGE_ITERATIONS = 10


@dataclass(frozen=True)
class Beside:
    """An all-reduce whose time is measured, and what is sent over the same servers all the while.

    Parameters
    ----------
    message_bytes
        Of the measured one.
    other_bytes
        Of the other job's, which is larger; 0 for none.
    servers
        Of both rings.
    chunk_bytes
        Bytes reduced at a time; 0 for whole messages.
    """

    message_bytes: int
    other_bytes: int
    servers: int
    chunk_bytes: int = 0


def share_settings(num_servers: int) -> list[Beside]:
    """Return pairs of unequal messages, and messages in chunks alone, on two servers and on all."""
    pairs = [(200_000, 800_000), (200_000, 1_600_000), (400_000, 1_600_000), (800_000, 1_600_000)]
    counts = sorted({2, num_servers})
    settings = [Beside(small, large, servers) for servers in counts for small, large in pairs]
    chunked = [Beside(size, 0, servers, CHUNK_BYTES) for servers in counts for size in (800_000, 1_600_000)]
    return settings + chunked


def measure_shares(path: Path, settings: GateSettings, crew: WorkerCrew) -> None:
    """Have a crew measure all settings, unless the file is there, and keep a row of each.

    Its columns are those of :mod:`ddlsched.real.calibration.shares`.
    """
    wanted = share_settings(settings.cluster.num_servers)
    rows = (asdict(each) | {"transfer_s": _mean_beside_s(each, settings, crew)} for each in wanted)
    _keep(path, rows, "%.10g")


def _keep(path: Path, rows: Iterable[dict[str, float]], float_format: str) -> None:
    """Write rows, which are measured as they are drawn, unless the file is there."""
    if not path.exists():
        table = pd.DataFrame(list(rows))
        with replacing(path, "measurements") as file:
            table.to_csv(file, index=False, float_format=float_format)


def _mean_beside_s(beside: Beside, settings: GateSettings, crew: WorkerCrew) -> float:
    """Return the mean time of the measured all-reduces that began and ended while one of the other job was sent.

    Slow ones more often reach beyond the other's end and do not count, so that the mean is rather too short.
    """
    times = max(beside.other_bytes // beside.message_bytes, 1)
    jobs = [reducing_job("measured", beside.message_bytes, beside.servers, _LARGE_ITERATIONS * times)]
    if beside.other_bytes:
        jobs.append(reducing_job("other", beside.other_bytes, beside.servers, _LARGE_ITERATIONS))
    transfers = sent_freely(jobs, settings, crew, beside.chunk_bytes or None)
    counted = transfers[(transfers.job_id == "measured") & (transfers.iteration > 0)]
    if beside.other_bytes:
        counted = within(counted, transfers[(transfers.job_id == "other") & (transfers.iteration > 0)])
    if counted.empty:
        raise InputError(f"{beside}: no all-reduce was sent beside the other job's; expected a quieter machine")
    return _mean_transfer_s(counted)


def within(measured: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the transfers that lie within one of the others: columns granted_s and ended_s."""
    begins, ends = others.granted_s.to_numpy(), others.ended_s.to_numpy()
    inside = (measured.granted_s.to_numpy()[:, None] >= begins) & (measured.ended_s.to_numpy()[:, None] <= ends)
    return measured.iloc[np.flatnonzero(inside.any(axis=1))]


_MOST_SERVERS = 4


def alone_jobs(settings: GateSettings) -> list[Job]:
    """Return jobs on the first 2, 3 and 4 servers, as many as there are, that compute as long as they should send."""
    cluster = settings.cluster
    network = Network(resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards)
    counts = range(2, min(cluster.num_servers, _MOST_SERVERS) + 1)
    return [_alone(servers, size, network.nic_bytes_per_s) for servers, size in itertools.product(counts, _SIZES_BYTES)]


def _alone(servers: int, message_bytes: int, card_bytes_per_s: float) -> Job:
    send_s = message_bytes * 2 * (servers - 1) / servers / card_bytes_per_s
    iteration = DataParallelIteration(forward_s=send_s / 3, backward_s=send_s * 2 / 3, message_bytes=message_bytes)
    return _job(f"alone-{servers}-{message_bytes}", servers, ITERATIONS, iteration)


def measure_alone(path: Path, jobs: Sequence[Job], settings: GateSettings, crew: WorkerCrew) -> None:
    """Have a crew run each job alone, unless the file is there, and keep a row of each.

    Its columns are those of :mod:`ddlsched.real.calibration.shares`, and ``compute_s``.
    """
    _keep(path, (_row(job, sent_freely([job], settings, crew)) for job in jobs), "%.6g")


def _row(job: Job, transfers: pd.DataFrame) -> dict[str, float]:
    counted = _counted(transfers, job.iterations)
    compute_ns = sum(task.duration_ns for task in job.dag.tasks if isinstance(task, ComputeTask))
    return {
        "servers": job.num_gpus,
        "message_bytes": float(counted.message_bytes.iloc[0]),
        "compute_s": compute_ns / 1e9,
        "transfer_s": _mean_transfer_s(counted),
    }


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Each job on one GPU of each of its servers, the one with the fewest jobs; ties go to the lower.

    Parameters
    ----------
    servers
        By ``job_id``, as many servers as the job has GPUs.
    """

    servers: Mapping[str, Sequence[int]]

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return a GPU of each of the job's servers."""
        return [min(cluster.gpus_of(server), key=cluster.num_residents) for server in self.servers[job.job_id]]
