"""Steps of jobs alone in the network, by placement: the simulator's against the measured ones.

Each model has one constant an application, the time of its all-reduce between two servers; it is fitted to half of the
placements and tested on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from measured import halves
from simulated import Training, run

from ddlsched.network.contention import ContentionModel, EqualShare, Linear, ring_bytes

PER_BYTE_S = 1e-9
BUCKETS = 8
TIMES = np.concatenate([[0.0], np.geomspace(0.01, 30.0, 60)])
"""Communication tried, as multiples of the application's shortest compute time."""
FINE = np.geomspace(0.02, 14.0, 200)


@dataclass(frozen=True)
class Model:
    """What moves over a link, and whether it overlaps with backward."""

    name: str
    contention: ContentionModel
    buckets: int = 1
    by_gpus: bool = False

    def relative(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the bytes moved over a link, relative to those between two servers."""
        between_two = ring_bytes(self.contention, 1.0, 2)
        return np.array([ring_bytes(self.contention, 1.0, n) / between_two for n in rows["servers"]])


LINEAR, RING = Linear(per_byte_s=PER_BYTE_S), EqualShare(per_byte_s=PER_BYTE_S)
MODELS = (
    Model("linear (whole message)", LINEAR),
    Model("max-min, equal share (ring)", RING),
    Model("linear, overlapped with backward", LINEAR, BUCKETS),
    Model("ring, overlapped with backward", RING, BUCKETS),
    Model("linear, overlapped, a time by most GPUs of a server", LINEAR, BUCKETS, by_gpus=True),
)


@cache
def step_table(compute_s: tuple[float, ...], buckets: int) -> np.ndarray:
    """Return the simulated step for each compute time and each of ``TIMES``, seconds, shape (computes, times)."""
    unit_s = min(compute_s)
    groups = [[Training(c, float(t * unit_s), buckets)] for c in compute_s for t in TIMES]
    _, finish_s = run(groups, LINEAR, per_byte_s=PER_BYTE_S, iterations=1)
    return finish_s.reshape(len(compute_s), len(TIMES))


def predictions(rows: pd.DataFrame, model: Model) -> np.ndarray:
    """Return the step of each row of one application for each candidate of ``FINE``, shape (rows, candidates)."""
    computes = np.unique(rows["compute_s"])
    steps = step_table(tuple(computes.tolist()), model.buckets)
    of_row = np.searchsorted(computes, rows["compute_s"])
    relative = model.relative(rows)
    return np.stack([np.interp(FINE * relative[i], TIMES, steps[of_row[i]]) for i in range(len(rows))])


def errors(measured: pd.DataFrame, number: int) -> pd.DataFrame:
    """Return the mean relative error of the step by application, model and half.

    Placements on one server are left out: there the simulator communicates in no time, whatever the model.
    """
    found = []
    for app, all_rows in measured[measured["servers"] > 1].groupby("app", sort=False):
        rows = all_rows.reset_index(drop=True)
        step_s, places = rows["step_s"].to_numpy(), rows["placement"].astype("category").cat.codes.to_numpy()
        splits = halves(places.max() + 1, number)[:, places]
        predicted = {model: predictions(rows, model) for model in MODELS}
        compute_error = np.abs(rows["compute_s"].to_numpy() / step_s - 1)
        for half, fitted in enumerate(splits):
            entry = {"app": app, "half": half, "no communication": compute_error[~fitted].mean()}
            mean_s = rows[fitted].groupby("batch")["step_s"].mean()
            entry["mean by batch"] = np.abs(rows["batch"].map(mean_s).to_numpy() / step_s - 1)[~fitted].mean()
            for model, steps in predicted.items():
                own = _steps(model, rows, steps, fitted)
                entry[model.name] = np.abs(own / step_s - 1)[~fitted].mean()
            found.append(entry)
    return pd.DataFrame(found)


def _steps(model: Model, rows: pd.DataFrame, predicted: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Return each row's step with the candidate that is best on the fitted rows (of the like number of GPUs)."""
    step_s = rows["step_s"].to_numpy()
    squares = (predicted / step_s[:, None] - 1) ** 2
    groups = rows["most_gpus"].to_numpy() if model.by_gpus else np.zeros(len(rows))
    result = np.empty(len(rows))
    for group in np.unique(groups):
        own = groups == group
        chosen = squares[own & fitted if (own & fitted).any() else fitted].sum(axis=0).argmin()
        result[own] = predicted[own, chosen]
    return result
