"""Measures small transfers beside large ones and messages in chunks, and fits size-shares to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import InputError
from ddlsched.gate.gate import GateSettings
from ddlsched.gate.transfer_gate import CHUNK_BYTES
from ddlsched.io.files import replacing
from ddlsched.network.size_shares import LARGEST_EXPONENT
from ddlsched.plugins.names import resolve
from ddlsched.testbed.crews import WorkerCrew
from ddlsched.testbed.pinned import Pinned
from ddlsched.testbed.real_run import run_for_real
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Beside", "SizeModels", "fitted_size_shares", "measured_shares", "share_settings"]

_LARGE_ITERATIONS = 10
_PAUSE_NS = 2_000_000
_MOST_SHARE = 0.98
COLUMNS = ("message_bytes", "other_bytes", "servers", "chunk_bytes", "transfer_s")


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


@dataclass(frozen=True)
class SizeModels:
    """The fitted model, as ``simulate --contention`` takes it: for whole messages, and for messages in chunks."""

    whole: str
    in_chunks: str


def share_settings(num_servers: int) -> list[Beside]:
    """Return pairs of unequal messages, and messages in chunks alone, on two servers and on all."""
    pairs = [(200_000, 800_000), (200_000, 1_600_000), (400_000, 1_600_000), (800_000, 1_600_000)]
    counts = sorted({2, num_servers})
    settings = [Beside(small, large, servers) for servers in counts for small, large in pairs]
    chunked = [Beside(size, 0, servers, CHUNK_BYTES) for servers in counts for size in (800_000, 1_600_000)]
    return settings + chunked


def measured_shares(path: Path, settings: GateSettings, crew: WorkerCrew | None) -> pd.DataFrame:
    """Return a row a setting, of :data:`COLUMNS`; a crew measures them if the file is not there, and keeps them."""
    import pandas as pd

    if not path.exists() and crew is not None:
        wanted = share_settings(settings.cluster.num_servers)
        table = pd.DataFrame([asdict(each) | {"transfer_s": _mean_s(each, settings, crew)} for each in wanted])
        with replacing(path, "shares") as file:
            table.to_csv(file, index=False, float_format="%.10g")
    if not path.exists():
        raise InputError(f"{path}: is not there; expected shares that were measured")
    table = pd.read_csv(path)
    if tuple(table.columns) != COLUMNS or table.isna().any(axis=None):
        raise InputError(
            f"{path}: columns are {', '.join(table.columns)}; expected {', '.join(COLUMNS)}, no cell empty"
        )
    return table


def _mean_s(beside: Beside, settings: GateSettings, crew: WorkerCrew) -> float:
    """Return the mean time of the measured all-reduces that began and ended while one of the other job was sent.

    Slow ones more often reach beyond the other's end and do not count, so that the mean is rather too short.
    """
    times = max(beside.other_bytes // beside.message_bytes, 1)
    jobs = [_job("measured", beside.message_bytes, beside.servers, _LARGE_ITERATIONS * times)]
    if beside.other_bytes:
        jobs.append(_job("other", beside.other_bytes, beside.servers, _LARGE_ITERATIONS))
    pinned = Pinned(servers={job.job_id: range(beside.servers) for job in jobs})
    free = resolve("communication", "bounded-overlap:limit=1000")
    chunk_bytes = beside.chunk_bytes or None
    alone = replace(settings, placement=pinned, communication=free, chunk_bytes=chunk_bytes, slots=False)
    transfers = run_for_real(Workload.of(jobs), alone, crew).transfers
    counted = transfers[(transfers.job_id == "measured") & (transfers.iteration > 0)]
    if beside.other_bytes:
        counted = within(counted, transfers[(transfers.job_id == "other") & (transfers.iteration > 0)])
    if counted.empty:
        raise InputError(f"{beside}: no all-reduce was sent beside the other job's; expected a quieter machine")
    return float((counted.ended_s - counted.granted_s).mean())


def _job(name: str, message_bytes: int, servers: int, iterations: int) -> Job:
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


def within(measured: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the transfers that lie within one of the others: columns granted_s and ended_s."""
    begins, ends = others.granted_s.to_numpy(), others.ended_s.to_numpy()
    inside = (measured.granted_s.to_numpy()[:, None] >= begins) & (measured.ended_s.to_numpy()[:, None] <= ends)
    return measured.iloc[np.flatnonzero(inside.any(axis=1))]


def fitted_size_shares(rows: pd.DataFrame, constants: Mapping[str, float]) -> SizeModels:
    """Fit exponent and price of a chunk, given ``latency_s`` and ``per_byte_s`` of max-min.

    Of two transfers on the same links the ratio of the shares is that of the sizes to the power of the exponent: a
    line through the origin in logarithms. A chunk's price is the mean of what messages in chunks took longer.
    """
    latency_s, per_byte_s = constants["latency_s"], constants["per_byte_s"]
    sending_s = rows.transfer_s - latency_s
    alone_s = per_byte_s * rows.message_bytes * 2 * (rows.servers - 1) / rows.servers
    pairs, chunked = rows[rows.other_bytes > 0], rows[rows.chunk_bytes > 0]
    share = np.clip((alone_s / sending_s.clip(lower=1e-9))[pairs.index].to_numpy(), 1 - _MOST_SHARE, _MOST_SHARE)
    sizes, shares = np.log((pairs.other_bytes / pairs.message_bytes).to_numpy()), np.log((1 - share) / share)
    exponent = float(np.clip((sizes * shares).sum() / (sizes**2).sum(), 0.0, LARGEST_EXPONENT))
    more_chunks = np.ceil(chunked.message_bytes / chunked.chunk_bytes) - 1
    chunk_s = max(float(((sending_s - alone_s)[chunked.index] / more_chunks).mean()), 0.0)
    whole = f"size-shares:latency_s={latency_s:.6g},per_byte_s={per_byte_s:.6g},exponent={exponent:.4g}"
    return SizeModels(whole, f"{whole},chunk_bytes={chunked.chunk_bytes.max():.0f},chunk_s={chunk_s:.6g}")
