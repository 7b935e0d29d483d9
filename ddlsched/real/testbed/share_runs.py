"""Measures small transfers beside large ones and messages in chunks, for the fit of size-shares."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.files import replacing
from ddlsched.real.gate.gate import GateSettings
from ddlsched.real.gate.transfer_gate import CHUNK_BYTES
from ddlsched.real.testbed.calibration_runs import reducing_job, sent_freely
from ddlsched.real.testbed.crews import WorkerCrew

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Beside", "measure_shares", "share_settings"]

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
    import pandas as pd

    if path.exists():
        return
    wanted = share_settings(settings.cluster.num_servers)
    table = pd.DataFrame([asdict(each) | {"transfer_s": _mean_s(each, settings, crew)} for each in wanted])
    with replacing(path, "shares") as file:
        table.to_csv(file, index=False, float_format="%.10g")


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
