"""How fast each model trains on each kind of GPU: a matrix, as Gavel's.

:func:`read_throughputs` reads one from a CSV file with a row a model (column ``model``) and a column a kind, or from a
JSON file with an object a model, in it a number a kind.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, check_columns, read_text, readable

__all__ = ["Throughputs", "read_throughputs"]

_MOST = 1e9


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    """The throughput of each model on each kind of GPU, as iterations or samples a second, or relative.

    Parameters
    ----------
    values
        Model, kind and throughput, finite and > 0.
    reference_kind
        The kind on which jobs take the times that the workload says; by default a throughput of 1 means those times.
    source
        The file, for messages.

    Raises
    ------
    InputError
        A throughput that is none, a pair twice, or a model without one on the reference kind.
    """

    values: tuple[tuple[str, str, float], ...]
    reference_kind: str | None = None
    source: str = "throughputs"

    def __post_init__(self) -> None:
        for model, kind, throughput in self.values:
            if not 1 / _MOST <= throughput <= _MOST:
                raise InputError(
                    f"{self.source}: the throughput of model {model!r} on {kind!r} is {throughput}; expected a number "
                    f"from {1 / _MOST:g} to {_MOST:g}"
                )
        if len(self._by_pair) < len(self.values):
            raise InputError(f"{self.source}: has a model and kind twice; expected each once")
        if self.reference_kind is not None:
            for model, _, _ in self.values:
                self._of(model, self.reference_kind, f"{self.source}")

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], float]:
        return {(model, kind): throughput for model, kind, throughput in self.values}

    @property
    def models(self) -> list[str]:
        """The models, in the order of the values."""
        return list(dict.fromkeys(model for model, _, _ in self.values))

    @property
    def kinds(self) -> list[str]:
        """The kinds, in the order of the values."""
        return list(dict.fromkeys(kind for _, kind, _ in self.values))

    def speed(self, model: str | None, kind: str, where: str) -> float:
        """Return how many times as fast a job of a model computes on a kind as its times say.

        Raises
        ------
        InputError
            There is no throughput of the pair; ``where`` is the job's place in the workload, for the message.
        """
        if model is None:
            raise InputError(f"{where}, column model: is empty; expected one of the models of {self.source}")
        reference = 1.0 if self.reference_kind is None else self._of(model, self.reference_kind, where)
        return self._of(model, kind, where) / reference

    def _of(self, model: str, kind: str, where: str) -> float:
        if (model, kind) not in self._by_pair:
            row = f"row of model {model!r}, column {kind!r}"
            raise InputError(
                f"{where}: {self.source} has no throughput in the {row}; expected a number > 0 for each model of the "
                "workload and each kind of GPU"
            )
        return self._by_pair[model, kind]


def read_throughputs(path: str | Path, reference_kind: str | None = None) -> Throughputs:
    """Read a matrix of throughputs; an empty cell is a pair that is missing.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    read = _read_json if Path(path).suffix.lower() == ".json" else _read_csv
    values = readable(Path(path), "a table of throughputs (CSV or JSON)", read)
    return Throughputs(values=tuple(values), reference_kind=reference_kind, source=str(path))


def _read_csv(path: Path) -> list[tuple[str, str, float]]:
    rows = [row for row in csv.reader(io.StringIO(read_text(path), newline="")) if row]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise InputError(f"{path}: has no throughputs; expected a header with model and kinds, and a row a model")
    header = [name.strip() for name in rows[0]]
    check_columns(path, header, ("model",), [name for name in header if name != "model"])
    values = []
    for number, cells in enumerate(rows[1:], 1):
        where = f"{path}, row {number}"
        if len(cells) != len(header):
            raise InputError(f"{where}: has {len(cells)} values; expected {len(header)}, one for each column")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        model = row.pop("model")
        values += [(model, kind, _throughput(where, kind, cell)) for kind, cell in row.items() if cell]
    return values


def _throughput(where: str, kind: str, cell: str) -> float:
    value = cell_number(where, kind, cell)
    if not 0 < value < inf:
        raise InputError(f"{where}, column {kind}: is {cell}; expected a throughput > 0")
    return value


def _read_json(path: Path) -> list[tuple[str, str, float]]:
    try:
        table = json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path}: is no JSON ({error}); expected an object a model") from None
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise InputError(f"{path}: expected an object with an object a model, in it a number a kind")
    values = []
    for model, row in table.items():
        for kind, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise InputError(f"{path}, model {model!r}, kind {kind!r}: is {value!r}; expected a throughput > 0")
            values.append((model, kind, float(value)))
    return values
