"""Fits what a ring waits for its own servers to all-reduces of jobs alone that compute in between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, cell_whole, csv_rows, readable
from ddlsched.network.connection_shares import ConnectionShares
from ddlsched.real.calibration.fit import Constant
from ddlsched.real.calibration.measurements import MAX_CONCURRENT
from ddlsched.units import MAX_MESSAGE_BYTES

__all__ = ["COLUMNS", "AloneRows", "fit_wait", "read_alone", "wait_text"]

COLUMNS = ("servers", "message_bytes", "transfer_s")
_LEAST_ROWS = 3
_RESAMPLES = 2000
_MAX_S = 1e6


@dataclass(frozen=True, eq=False)
class AloneRows:
    """Mean times of the all-reduces of jobs alone, a row a job.

    Parameters
    ----------
    servers
        Of the ring.
    message_bytes
        What it reduces.
    seconds
        Mean time.
    """

    servers: np.ndarray
    message_bytes: np.ndarray
    seconds: np.ndarray


def read_alone(path: Path) -> AloneRows:
    """Read a CSV file with the columns :data:`COLUMNS`; it may have ``compute_s``, too, which is not used.

    Raises
    ------
    InputError
        The file cannot be read, a cell cannot be used, or there are fewer than three rows.
    """
    return readable(path, "all-reduces of jobs alone (.csv)", _read)


def _read(path: Path) -> AloneRows:
    parsed = []
    for where, cells in csv_rows(path, COLUMNS, ("compute_s",)):
        servers = cell_whole(where, "servers", cells["servers"], MAX_CONCURRENT, 2)
        message_bytes, seconds = (cell_number(where, name, cells[name]) for name in COLUMNS[1:])
        if not 0 < message_bytes <= MAX_MESSAGE_BYTES or not 0 < seconds <= _MAX_S:
            what = f"message_bytes is {message_bytes:g} and transfer_s {seconds:g}"
            raise InputError(f"{where}: {what}; expected both > 0")
        parsed.append((servers, message_bytes, seconds))
    if len(parsed) < _LEAST_ROWS:
        raise InputError(f"{path}: holds {len(parsed)} rows; expected at least {_LEAST_ROWS}")
    return AloneRows(*np.array(parsed, np.float64).T)


def fit_wait(rows: AloneRows, model: ConnectionShares, *, seed: int = 0) -> Constant:
    """Return ``wait``: what each further server adds to the time that the model's links take, from 0 to 1.

    More than 1 no model takes: then something else held the jobs up. It has the least squares of the relative errors;
    its interval is that of resampled jobs.
    """
    rings = zip(rows.message_bytes.tolist(), rows.servers.astype(int).tolist(), strict=True)
    links_s = np.array([model.latency_s + model.wire_bytes(*ring) * model.alone_per_byte_s for ring in rings])
    more = links_s * (rows.servers - 1) / rows.seconds
    missing = 1 - links_s / rows.seconds
    picked = np.random.default_rng(seed).integers(len(more), size=(_RESAMPLES, len(more)))
    resampled = (more * missing)[picked].sum(axis=1) / (more**2)[picked].sum(axis=1)
    ends = np.quantile(resampled, [0.025, 0.975])
    return Constant(*np.clip([(more * missing).sum() / (more**2).sum(), *ends], 0.0, 1.0).tolist())


def wait_text(rows: AloneRows, wait: Constant) -> str:
    """Return what is told of it: the constant, and the times of a byte that a ring moves, by its servers."""
    per_byte_ns = 1e9 * rows.seconds * rows.servers / (rows.message_bytes * 2 * (rows.servers - 1))
    counts = np.unique(rows.servers).astype(int)
    each = ", ".join(f"{per_byte_ns[rows.servers == servers].mean():.1f} on {servers}" for servers in counts)
    return (
        f"{len(rows.servers)} jobs alone: each further server of a ring adds {100 * wait.value:.1f} "
        f"[{100 * wait.low:.1f}, {100 * wait.high:.1f}] % to what its links take; ns a byte moved: {each} servers"
    )
