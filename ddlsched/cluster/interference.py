"""Interference between jobs on one GPU: how much longer compute tasks take because other jobs are placed there.

By default nothing does, as in the Ada-SRSF paper: a GPU runs one task at a time, and another job costs only the wait
for it. A model adds what caches, memory bandwidth and changes between jobs take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, cell_text, csv_rows, readable
from ddlsched.ranges import Checked, check_fields, ranged

MAX_PENALTY_SHARE = 1000.0


@runtime_checkable
class InterferenceModel(Protocol):
    """What a model of interference offers; see :class:`UniformInterference` for the shortest one.

    A compute task takes 1 + the sum of the penalties of all other jobs that are placed on its GPU when it begins times
    as long as it would alone; with an attribute ``once`` that is true, 1 + the largest of them. Counted to the
    millionth.
    """

    def penalty_share(self, model: str | None, other: str | None) -> float:
        """Return what one job of the model ``other`` costs a job of ``model``, as a share of its time, 0 to 1000."""


@dataclass(frozen=True, kw_only=True)
class UniformInterference(Checked, who="interference uniform"):
    """The same penalty for every pair of jobs.

    Parameters
    ----------
    share
        A share of a task's time alone for each other job; SJF-BSBF's ξ is 1 more.
    once
        However many others there are: what taking turns costs on a GPU that is filled (``experiments/gpu_sharing``).
    """

    share: float = ranged(0.3, 0.0, MAX_PENALTY_SHARE)
    once: bool = False

    def penalty_share(self, model: str | None, other: str | None) -> float:
        """Return the penalty, whoever shares."""
        return self.share


@dataclass(frozen=True, kw_only=True)
class PairwiseInterference:
    """Penalties by the two jobs' models, from a CSV table with the columns model, other, penalty_share.

    Parameters
    ----------
    file
        The table; a row says what a job of ``other`` costs one of ``model``, so that a pair has two rows.
    otherwise_share
        The penalty of pairs without a row, of jobs without a model, too; by default such a pair is an error.
    once
        Of several others only the one with the largest penalty counts.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """

    file: str
    otherwise_share: float | None = ranged(None, 0.0, MAX_PENALTY_SHARE)
    once: bool = False
    _penalties: Mapping[tuple[str, str], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self, "interference pairs")
        object.__setattr__(self, "_penalties", readable(Path(self.file), "a table of penalties (CSV)", _read))

    def penalty_share(self, model: str | None, other: str | None) -> float:
        """Return the pair's penalty."""
        share = self._penalties.get((model or "", other or ""), self.otherwise_share)
        if share is None:
            raise InputError(
                f"{self.file}: no row has model {model!r} and other {other!r}; expected one, or otherwise_share=SHARE"
            )
        return share


def _read(path: Path) -> dict[tuple[str, str], float]:
    penalties: dict[tuple[str, str], float] = {}
    for where, row in csv_rows(path, ("model", "other", "penalty_share"), ()):
        pair = _model(where, "model", row), _model(where, "other", row)
        if pair in penalties:
            raise InputError(f"{where}: model {pair[0]!r} and other {pair[1]!r} have a row before; expected one")
        expected = f"expected a share of the time alone, from 0 to {MAX_PENALTY_SHARE:g}"
        cell = where, "penalty_share", row["penalty_share"]
        penalties[pair] = cell_number(*cell, expected, at_most=MAX_PENALTY_SHARE)
    return penalties


def _model(where: str, column: str, row: Mapping[str, Any]) -> str:
    model = cell_text(where, column, row[column])
    if model is None:
        raise InputError(f"{where}, column {column}: is empty; expected a model's name")
    return model
