"""Pairs of jobs that share a network: throughput ratios of the simulator against the measured matrix.

A job is described by what was not published with the matrix: the share of communication in its iteration alone, and
for one model how many connections it opens. Both are fitted; the simulator gives the ratio of every two descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
from measured import halves
from simulated import Training, run

from ddlsched.network.contention import ONE_GBE, TEN_GBE, ContentionModel, EqualShare, Linear

SHARES = np.linspace(0.0, 0.96, 9)
FINE = np.linspace(0.0, 0.96, 97)
PENALTIES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)
"""Penalty of the fitted linear model, as a multiple of the time of a byte."""
CONNECTIONS = (1, 2, 4, 8)
BUCKETS = 8
LENGTHS_S = (0.1, 1.0)
DRAWS = 8
UNTIL_S = 60.0
PER_BYTE_S = 1e-9
ROUNDS = 20


@dataclass(frozen=True)
class State:
    """What a job is like: share of communication in compute and communication, connections, buckets."""

    share: float
    connections: int = 1
    buckets: int = 1

    def training(self, length_s: float) -> Training:
        """Return a job whose compute and communication take ``length_s`` together."""
        return Training(length_s * (1 - self.share), length_s * self.share, self.buckets, self.connections)


@dataclass(frozen=True)
class Model:
    """A contention model, or several of which the fitted half chooses, and how jobs use the network."""

    name: str
    choices: tuple[ContentionModel, ...]
    connections: tuple[int, ...] = (1,)
    buckets: int = 1

    def states(self, shares: np.ndarray) -> list[State]:
        """Return the descriptions of jobs, connections outermost."""
        return [State(float(share), count, self.buckets) for count in self.connections for share in shares]


def linear(ratio: float) -> Linear:
    """Return the linear model whose penalty is a multiple of the time of a byte."""
    return Linear(per_byte_s=PER_BYTE_S, penalty_per_byte_s=ratio * PER_BYTE_S)


SHARING = EqualShare(per_byte_s=PER_BYTE_S)
MODELS = (
    Model("equal share = max-min", (SHARING,)),
    Model("linear, 1 GbE's penalty", (linear(ONE_GBE["penalty_per_byte_s"] / ONE_GBE["per_byte_s"]),)),
    Model("linear, 10 GbE's penalty", (linear(TEN_GBE["penalty_per_byte_s"] / TEN_GBE["per_byte_s"]),)),
    Model("linear, penalty fitted", tuple(linear(ratio) for ratio in PENALTIES)),
    Model("equal share, overlapped with backward", (SHARING,), buckets=BUCKETS),
    Model("equal share of each connection", (SHARING,), connections=CONNECTIONS),
)


def ratios(pairs: Sequence[tuple[State, State]], contention: ContentionModel, *, seed: int) -> np.ndarray:
    """Return simulated throughput beside the other / alone, of both jobs of each pair, shape (pairs, 2).

    The iterations' lengths, which are not known, are drawn from the seed, alike on a logarithmic scale.
    """
    rng = np.random.default_rng(seed)
    lengths_s = np.exp(rng.uniform(*np.log(LENGTHS_S), size=(len(pairs), 2)))
    together = [
        [state.training(float(s)) for state, s in zip(pair, own, strict=True)]
        for pair, own in zip(pairs, lengths_s, strict=True)
    ]
    done_s, _ = run(together, contention, per_byte_s=PER_BYTE_S, until_s=UNTIL_S)
    # Alone every iteration is like the first.
    own_s, finish_s = run([[job] for pair in together for job in pair], contention, per_byte_s=PER_BYTE_S, iterations=1)
    result: np.ndarray = (done_s / UNTIL_S / (own_s / finish_s)).reshape(-1, 2)
    return result


def table(model: Model, contention: ContentionModel) -> np.ndarray:
    """Return the mean ratio of every state beside every other, simulated on a grid of shares and interpolated."""
    states = model.states(SHARES)
    found = np.empty((len(states), len(states)))
    numbers = list(combinations_with_replacement(range(len(states)), 2))
    pairs = [(states[i], states[j]) for i, j in numbers]
    mean = np.mean([ratios(pairs, contention, seed=seed) for seed in range(DRAWS)], axis=0)
    for (i, j), (first, second) in zip(numbers, mean, strict=True):
        found[i, j], found[j, i] = (first, second) if i != j else ((first + second) / 2,) * 2
    return _interpolated(found, len(model.connections))


def _interpolated(coarse: np.ndarray, blocks: int) -> np.ndarray:
    def rows(values: np.ndarray) -> np.ndarray:
        parts = values.reshape(blocks, len(SHARES), -1)
        fine = [np.stack([np.interp(FINE, SHARES, column) for column in part.T], axis=1) for part in parts]
        return np.concatenate(fine)

    return rows(rows(coarse).T).T


def fit(tables: Sequence[np.ndarray], measured: np.ndarray, fitted: np.ndarray) -> tuple[int, np.ndarray]:
    """Return which table, and which state of each job, have the least squares of error on the fitted entries.

    One job after the other takes its best state until none changes.

    Parameters
    ----------
    tables
        Ratio by state of the row's job and of the column's, one a contention model.
    measured
        Ratios, job by job.
    fitted
        Mask of the entries that may be looked at.
    """
    results = [_fit(found, measured, fitted) for found in tables]
    best = int(np.argmin([error for error, _ in results]))
    return best, results[best][1]


def _fit(found: np.ndarray, measured: np.ndarray, fitted: np.ndarray) -> tuple[float, np.ndarray]:
    jobs = len(measured)
    states = np.full(jobs, len(FINE) // 2)
    others = ~np.eye(jobs, dtype=bool)
    for _ in range(ROUNDS):
        before = states.copy()
        for job in range(jobs):
            as_row = ((found[:, states] - measured[job]) ** 2)[:, fitted[job] & others[job]].sum(axis=1)
            as_column = ((found[states, :].T - measured[:, job]) ** 2)[:, fitted[:, job] & others[job]].sum(axis=1)
            beside_itself = (np.diag(found) - measured[job, job]) ** 2 if fitted[job, job] else 0.0
            states[job] = np.argmin(as_row + as_column + beside_itself)
        if (states == before).all():
            break
    error = ((found[np.ix_(states, states)] - measured) ** 2)[fitted].sum()
    return float(error), states


def masks(jobs: int, number: int) -> np.ndarray:
    """Return random halves of the pairs, as masks of the matrix; both ratios of a pair are in one half."""
    upper = np.triu_indices(jobs)
    result = np.zeros((number, jobs, jobs), dtype=bool)
    for mask, half in zip(result, halves(len(upper[0]), number), strict=True):
        mask[upper] = half
        mask |= mask.T
    return result


def plain(measured: np.ndarray, fitted: np.ndarray) -> dict[str, np.ndarray]:
    """Return predictions that simulate nothing: no contention, one mean, and a mean by row plus one by column."""
    mean = measured[fitted].mean()
    known = np.where(fitted, measured, np.nan)
    rows, columns = np.zeros(len(measured)), np.zeros(len(measured))
    for _ in range(ROUNDS):
        rows = np.nanmean(known - mean - columns[None, :], axis=1)
        columns = np.nanmean(known - mean - rows[:, None], axis=0)
    return {
        "no contention": np.ones_like(measured),
        "one mean": np.full_like(measured, mean),
        "by row and column": mean + rows[:, None] + columns[None, :],
    }


def errors(measured: pd.DataFrame, number: int) -> pd.DataFrame:
    """Return the mean absolute error on the tested half, a row a half and a column a model."""
    values = measured.to_numpy(np.float64)
    drawn = masks(len(values), number)
    rows: list[dict[str, float]] = [
        {name: float(np.abs(predicted - values)[~mask].mean()) for name, predicted in plain(values, mask).items()}
        for mask in drawn
    ]
    for model in MODELS:
        tables = [table(model, contention) for contention in model.choices]
        for row, mask in zip(rows, drawn, strict=True):
            chosen, states = fit(tables, values, mask)
            predicted = tables[chosen][np.ix_(states, states)]
            row[model.name] = float(np.abs(predicted - values)[~mask].mean())
    return pd.DataFrame(rows)
