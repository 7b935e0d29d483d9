"""Fits of few physical constants to measured times: of a link, and of GPUs and networks to training times.

Nothing here reads rows that are left for testing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.hardware import Efficiency, Machine
from ddlsched.training.estimate.rows import a100_nodes, estimate_rows

if TYPE_CHECKING:
    import pandas as pd


class Link(NamedTuple):
    """Constants of a link, from all-reduces: of one step, and of one direction."""

    latency_s: float
    bytes_per_s: float


def fit_link(message_bytes: np.ndarray, seconds: np.ndarray, *, gpus: int) -> Link:
    """Return the latency and bandwidth with which a ring over ``gpus`` fits measured all-reduces best.

    Least squares of the relative error.
    """
    steps = 2 * (gpus - 1)
    design = np.column_stack([np.full(len(message_bytes), steps), steps / gpus * message_bytes]) / seconds[:, None]
    (latency_s, per_byte_s), *_ = np.linalg.lstsq(design, np.ones(len(seconds)), rcond=None)
    return Link(float(latency_s), float(1 / per_byte_s))


class Prior(NamedTuple):
    """What a constant is expected to be before any row is read: a value, and how far, as a log-ratio, it may be off."""

    value: float
    spread: float


PRIORS: Mapping[str, Prior] = {
    "matrix": Prior(0.8, 0.15),
    "memory": Prior(0.8, 0.15),
    "gap_s": Prior(10e-6, 1.0),
    "launch_s": Prior(60e-6, 1.0),
    "collective_s": Prior(100e-6, 1.0),
    "crowded": Prior(1.2, 0.3),
    "odd": Prior(3.0, 0.4),
    "network_bytes_per_s": Prior(5e9, 0.5),
}
"""Large matrix products and copies reach about 0.8 of the data sheet; small kernels lose microseconds, and take tens of
them to be launched from Python; products that tensor cores cannot load whole words of are a few times as slow; of 12.5
GB/s a GPU about 0.8 arrive, and gradients are often reduced in single precision, twice the bytes counted here."""

_TOLERANCE = 0.03
"""Log-ratio from which on a measured row counts linearly: about the error of most."""


class Fitted(NamedTuple):
    """The constants that were fitted."""

    efficiency: Efficiency
    network_bytes_per_s: float

    def machine(self, gpus: Amount) -> Machine:
        """Return nodes of eight A100s with these constants."""
        nodes = a100_nodes(gpus).with_efficiency(self.efficiency)
        inside, outside = nodes.tiers
        outside = outside._replace(bytes_per_s=self.network_bytes_per_s)
        return dataclasses.replace(nodes, tiers=(inside, outside))


def fit_rows(frames: Sequence[pd.DataFrame], weights: Sequence[np.ndarray] | None = None) -> Fitted:
    """Return the constants that explain the ``iteration_ms`` of all frames' rows best.

    Parameters
    ----------
    frames
        Of rows.
    weights
        How much each of their rows counts; by default 1.

    Raises
    ------
    InputError
        A frame without measured times.
    """
    for frame in frames:
        if "iteration_ms" not in frame:
            raise InputError("the rows have no column 'iteration_ms'; expected measured times to fit")

    counted = np.sqrt(np.concatenate(weights)) if weights is not None else 1.0

    def counted_ratios(values: Mapping[str, float]) -> np.ndarray:
        fitted = _fitted(values)
        ratios: np.ndarray = counted * np.concatenate([log_ratios(frame, fitted) for frame in frames])
        return ratios

    return _fitted(fit_constants(counted_ratios, PRIORS, tolerance=_TOLERANCE))


def fit_constants(
    log_ratios: Callable[[Mapping[str, float]], np.ndarray], priors: Mapping[str, Prior], *, tolerance: float = 0.1
) -> dict[str, float]:
    """Return the constants with the least sum of squares of logs of predicted over measured, and of the priors'.

    Squares grow linearly from ``tolerance`` on (soft L1), so that single rows far off do not decide. A log-ratio of
    that size counts as much as a constant that is as far from its prior as its spread.
    """
    from scipy.optimize import least_squares

    names = list(priors)
    centre = np.log([priors[name].value for name in names])
    spread = np.array([priors[name].spread for name in names])

    def residuals(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return np.concatenate([log_ratios(values) / tolerance, (logs - centre) / spread])

    found = least_squares(residuals, centre, loss="soft_l1")
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _fitted(values: Mapping[str, float]) -> Fitted:
    constants: dict[str, Any] = dict(values)
    network = constants.pop("network_bytes_per_s")
    return Fitted(Efficiency(**constants), network)


def log_ratios(frame: pd.DataFrame, fitted: Fitted) -> np.ndarray:
    """Return the logs of predicted over measured times."""
    step_ms = 1e3 * estimate_rows(frame, fitted.machine(frame["gpus"].to_numpy())).step_s
    ratio: np.ndarray = np.log(step_ms / frame["iteration_ms"].to_numpy())
    return ratio


def mean_error(frame: pd.DataFrame, fitted: Fitted) -> float:
    """Return the mean absolute error of the predicted times, relative to the measured ones."""
    return float(np.abs(np.expm1(log_ratios(frame, fitted))).mean())
