"""Measures small transfers beside large ones and messages in chunks, and fits size-shares to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import InputError
from ddlsched.gate.gate import GateSettings
from ddlsched.gate.transfer_gate import CHUNK_BYTES
from ddlsched.io.files import replacing
from ddlsched.network.size_shares import LARGEST_EXPONENT
from ddlsched.testbed.calibration_runs import reducing_job, sent_freely
from ddlsched.testbed.crews import WorkerCrew

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Beside", "SizeModel", "fitted_size_shares", "measure_shares", "read_shares", "share_settings"]

_LARGE_ITERATIONS = 10
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
class SizeModel:
    """The constants of ``size-shares`` that fit: seconds, seconds a byte, and bytes."""

    latency_s: float
    per_byte_s: float
    exponent: float
    chunk_bytes: float
    chunk_s: float

    @property
    def whole(self) -> str:
        """What ``simulate --contention`` takes for whole messages."""
        constants = f"latency_s={self.latency_s:.6g},per_byte_s={self.per_byte_s:.6g},exponent={self.exponent:.4g}"
        return f"size-shares:{constants}"

    @property
    def in_chunks(self) -> str:
        """The same for messages in chunks."""
        return f"{self.whole},chunk_bytes={self.chunk_bytes:.0f},chunk_s={self.chunk_s:.6g}"


def share_settings(num_servers: int) -> list[Beside]:
    """Return pairs of unequal messages, and messages in chunks alone, on two servers and on all."""
    pairs = [(200_000, 800_000), (200_000, 1_600_000), (400_000, 1_600_000), (800_000, 1_600_000)]
    counts = sorted({2, num_servers})
    settings = [Beside(small, large, servers) for servers in counts for small, large in pairs]
    chunked = [Beside(size, 0, servers, CHUNK_BYTES) for servers in counts for size in (800_000, 1_600_000)]
    return settings + chunked


def measure_shares(path: Path, settings: GateSettings, crew: WorkerCrew) -> None:
    """Have a crew measure all settings, unless the file is there, and keep a row of :data:`COLUMNS` of each."""
    import pandas as pd

    if path.exists():
        return
    wanted = share_settings(settings.cluster.num_servers)
    table = pd.DataFrame([asdict(each) | {"transfer_s": _mean_s(each, settings, crew)} for each in wanted])
    with replacing(path, "shares") as file:
        table.to_csv(file, index=False, float_format="%.10g")


def read_shares(path: Path) -> pd.DataFrame:
    """Return the rows that were kept."""
    import pandas as pd

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
    jobs = [reducing_job("measured", beside.message_bytes, beside.servers, _LARGE_ITERATIONS * times)]
    if beside.other_bytes:
        jobs.append(reducing_job("other", beside.other_bytes, beside.servers, _LARGE_ITERATIONS))
    transfers = sent_freely(jobs, settings, crew, beside.chunk_bytes or None)
    counted = transfers[(transfers.job_id == "measured") & (transfers.iteration > 0)]
    if beside.other_bytes:
        counted = within(counted, transfers[(transfers.job_id == "other") & (transfers.iteration > 0)])
    if counted.empty:
        raise InputError(f"{beside}: no all-reduce was sent beside the other job's; expected a quieter machine")
    return float((counted.ended_s - counted.granted_s).mean())


def within(measured: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the transfers that lie within one of the others: columns granted_s and ended_s."""
    begins, ends = others.granted_s.to_numpy(), others.ended_s.to_numpy()
    inside = (measured.granted_s.to_numpy()[:, None] >= begins) & (measured.ended_s.to_numpy()[:, None] <= ends)
    return measured.iloc[np.flatnonzero(inside.any(axis=1))]


def fitted_size_shares(rows: pd.DataFrame, constants: Mapping[str, float]) -> SizeModel:
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
    return SizeModel(latency_s, per_byte_s, exponent, float(chunked.chunk_bytes.max()), chunk_s)
