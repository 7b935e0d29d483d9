"""Fits size-shares to all-reduces beside larger ones and in chunks, and the wait of rings to jobs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import Row, csv_rows, readable
from ddlsched.network.weighted_shares import LARGEST_EXPONENT, ConnectionShares
from ddlsched.real.calibration.fit import (
    Constant,
    ModelForm,
    fit_constants,
    intervals,
    share_outside,
    tells,
    with_constants,
)
from ddlsched.real.calibration.measurements import Measurements, cell

COLUMNS = ("message_bytes", "other_bytes", "servers", "chunk_bytes", "transfer_s")
_STEPS = ModelForm("size-shares", "size-shares", ("latency_s", "per_byte_s", "step_s"), ring_bytes=True)
_NO_STEPS = ModelForm("size-shares", "size-shares", ("latency_s", "per_byte_s"), ring_bytes=True)
_MOST_SHARE = 0.98
_WINDOWS = 61
_RESAMPLES = 500
_LEAST_PAIRS = 3


@dataclass(frozen=True, eq=False)
class ShareRows:
    """Mean times of all-reduces, a row a setting.

    Parameters
    ----------
    message_bytes
        What each reduces.
    other_bytes
        What another job on the same servers reduces all the while, larger; 0 for none.
    servers
        Of both rings.
    chunk_bytes
        Reduced at a time; 0 for whole messages.
    seconds
        Mean time.
    """

    message_bytes: np.ndarray
    other_bytes: np.ndarray
    servers: np.ndarray
    chunk_bytes: np.ndarray
    seconds: np.ndarray

    def rows(self, chosen: np.ndarray) -> ShareRows:
        """Return some of the rows, by a mask or by numbers."""
        return ShareRows(*(column[chosen] for column in vars(self).values()))


@dataclass(frozen=True)
class SizeShareFit:
    """The constants of ``size-shares`` that fit, each with a 95 % interval, by the names of its parameters.

    ``chunk_s`` and ``chunk_bytes`` are those of messages in chunks; NaN where none was measured.
    """

    constants: Mapping[str, Constant]
    chunk_bytes: float

    @property
    def whole(self) -> str:
        """What ``simulate --contention`` takes for whole messages."""
        values = {name: constant.value for name, constant in self.constants.items() if name != "chunk_s"}
        return with_constants("size-shares", values)

    @property
    def of_connections(self) -> str:
        """The constants that ``connection-shares`` has from all-reduces alone and in pairs; the rows tell no others."""
        names = [name for name in ("latency_s", "per_byte_s", "step_s") if name in self.constants]
        return with_constants("connection-shares", {name: self.constants[name].value for name in names})

    @property
    def in_chunks(self) -> str:
        """The same for messages in chunks."""
        if np.isnan(self.chunk_bytes):
            return self.whole
        return f"{self.whole},chunk_bytes={self.chunk_bytes:.0f},chunk_s={self.constants['chunk_s'].value:.6g}"


def read_shares(path: Path) -> ShareRows:
    """Read a CSV file with the columns :data:`COLUMNS`.

    Raises
    ------
    InputError
        The file cannot be read, a cell cannot be used, or there are too few rows of unequal messages.
    """
    return readable(path, "shares that were measured (.csv)", _read)


def _read(path: Path) -> ShareRows:
    parsed = [_parsed(row) for row in csv_rows(path, COLUMNS, ())]
    rows = ShareRows(*np.array(parsed, np.float64).reshape(-1, len(COLUMNS)).T)
    pairs = int(((rows.other_bytes > 0) & (rows.chunk_bytes == 0)).sum())
    if pairs < _LEAST_PAIRS:
        raise InputError(
            f"{path}: holds {pairs} rows of whole messages beside other_bytes; expected at least {_LEAST_PAIRS}"
        )
    return rows


def _parsed(row: Row) -> list[float]:
    message_bytes, other_bytes, *_ = values = [cell(row, name) for name in COLUMNS]
    if 0 < other_bytes <= message_bytes:
        raise InputError(
            f"{row[0]}, column other_bytes: {other_bytes:g} is out of range; expected 0, or more than message_bytes"
        )
    return values


def fit_size_shares(rows: ShareRows, alone: Measurements, *, seed: int = 0) -> SizeShareFit:
    """Fit latency, bytes and steps to all-reduces alone and in pairs, then exponent, window and price of a chunk.

    Of two transfers on the same links the ratio of the shares is that of what they have in flight, to the power of the
    exponent: for each window that is a line through the origin in logarithms, and the one with the least squares is
    taken. A chunk's price is the mean of what messages in chunks took longer. Intervals are percentiles over resampled
    settings; those of exponent, window and price hold for the other constants as they are.
    """
    form = _STEPS if tells(_STEPS, alone) else _NO_STEPS
    known = fit_constants(form, alone)
    if known["per_byte_s"] <= 0:
        raise InputError("no time of a byte above 0 fits; expected times that grow with the message")
    constants = dict(intervals(form, alone, seed=seed))
    pairs = rows.rows((rows.other_bytes > 0) & (rows.chunk_bytes == 0))
    chunked = rows.rows((rows.other_bytes == 0) & (rows.chunk_bytes > 0))
    rng = np.random.default_rng(seed)
    exponents, windows = _resampled(lambda own: _exponent_and_window(own, known), pairs, rng)
    constants |= {"exponent": exponents, "window_bytes": windows}
    if not len(chunked.seconds):
        return SizeShareFit(constants, float("nan"))
    (constants["chunk_s"],) = _resampled(lambda own: (_chunk_s(own, known),), chunked, rng)
    return SizeShareFit(constants, float(chunked.chunk_bytes.max()))


def _resampled(
    fit: Callable[[ShareRows], tuple[float, ...]], rows: ShareRows, rng: np.random.Generator
) -> list[Constant]:
    """Return the fitted constants with intervals, widened for few settings as those of the other constants are."""
    count, constants = len(rows.seconds), fit(rows)
    found = [fit(rows.rows(rng.integers(count, size=count))) for _ in range(_RESAMPLES)]
    outside = share_outside(count, len(constants)) if count > len(constants) else 0.0
    low, high = np.quantile(found, [outside, 1 - outside], axis=0, method="nearest")
    return [Constant(*values) for values in zip(constants, low.tolist(), high.tolist(), strict=True)]


def _alone_s(rows: ShareRows, known: Mapping[str, float]) -> np.ndarray:
    """Return what the all-reduces of each row keep their links busy."""
    steps = 2 * (rows.servers - 1)
    busy_s: np.ndarray = known["per_byte_s"] * rows.message_bytes * steps / rows.servers
    return busy_s + steps * known.get("step_s", 0.0)


def _exponent_and_window(pairs: ShareRows, known: Mapping[str, float]) -> tuple[float, float]:
    """Return the exponent and the window (inf for none) with the least squares of the logarithms of shares' ratios."""
    sending_s = np.maximum(pairs.seconds - known["latency_s"], 1e-9)
    share = np.clip(_alone_s(pairs, known) / sending_s, 1 - _MOST_SHARE, _MOST_SHARE)
    ratios = np.log((1 - share) / share)
    small, large = pairs.message_bytes / pairs.servers, pairs.other_bytes / pairs.servers
    windows = np.append(np.geomspace(small.min(), large.max(), _WINDOWS), np.inf)[1:, None]
    sizes = np.log(np.minimum(large, windows) / np.minimum(small, windows))
    exponents = np.clip((sizes * ratios).sum(axis=1) / (sizes**2).sum(axis=1), 0.0, LARGEST_EXPONENT)
    off = ((exponents[:, None] * sizes - ratios) ** 2).sum(axis=1)
    best = len(off) - 1 - int(np.argmin(off[::-1]))  # of equals the largest
    return float(exponents[best]), float(windows[best, 0])


def _chunk_s(chunked: ShareRows, known: Mapping[str, float]) -> float:
    more_chunks = np.ceil(chunked.message_bytes / chunked.chunk_bytes) - 1
    longer_s = chunked.seconds - known["latency_s"] - _alone_s(chunked, known)
    return max(float((longer_s / np.maximum(more_chunks, 1)).mean()), 0.0)


ALONE_COLUMNS = ("servers", "message_bytes", "transfer_s")
_LEAST_ROWS = 3
_RESAMPLED_JOBS = 2000


def read_alone(path: Path) -> ShareRows:
    """Read the times of jobs alone, a row a job, in a CSV file with the columns :data:`ALONE_COLUMNS`.

    It may have ``compute_s``, too, which is not used.

    Raises
    ------
    InputError
        The file cannot be read, a cell cannot be used, or there are fewer than three rows.
    """
    return readable(path, "all-reduces of jobs alone (.csv)", _read_alone)


def _read_alone(path: Path) -> ShareRows:
    parsed = [[cell(row, name) for name in ALONE_COLUMNS] for row in csv_rows(path, ALONE_COLUMNS, ("compute_s",))]
    if len(parsed) < _LEAST_ROWS:
        raise InputError(f"{path}: holds {len(parsed)} rows; expected at least {_LEAST_ROWS}")
    servers, sizes, seconds = np.array(parsed, np.float64).T
    nothing = np.zeros(len(parsed))
    return ShareRows(sizes, nothing, servers, nothing, seconds)


def fit_wait(rows: ShareRows, model: ConnectionShares, *, seed: int = 0) -> Constant:
    """Return ``wait``: what each further server adds to the time that the model's links take, from 0 to 1.

    More than 1 no model takes: then something else held the jobs up. It has the least squares of the relative errors;
    its interval is that of resampled jobs.
    """
    rings = zip(rows.message_bytes.tolist(), rows.servers.astype(int).tolist(), strict=True)
    links_s = np.array([model.latency_s + model.wire_bytes(*ring) * model.alone_per_byte_s for ring in rings])
    more = links_s * (rows.servers - 1) / rows.seconds
    missing = 1 - links_s / rows.seconds
    picked = np.random.default_rng(seed).integers(len(more), size=(_RESAMPLED_JOBS, len(more)))
    resampled = (more * missing)[picked].sum(axis=1) / (more**2)[picked].sum(axis=1)
    ends = np.quantile(resampled, [0.025, 0.975])
    return Constant(*np.clip([(more * missing).sum() / (more**2).sum(), *ends], 0.0, 1.0).tolist())


def wait_text(rows: ShareRows, wait: Constant) -> str:
    """Return what is told of it: the constant, and the times of a byte that a ring moves, by its servers."""
    per_byte_ns = 1e9 * rows.seconds * rows.servers / (rows.message_bytes * 2 * (rows.servers - 1))
    counts = np.unique(rows.servers).astype(int)
    each = ", ".join(f"{per_byte_ns[rows.servers == servers].mean():.1f} on {servers}" for servers in counts)
    return (
        f"{len(rows.servers)} jobs alone: each further server of a ring adds {100 * wait.value:.1f} "
        f"[{100 * wait.low:.1f}, {100 * wait.high:.1f}] % to what its links take; ns a byte moved: {each} servers"
    )
