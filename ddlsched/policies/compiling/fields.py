"""The fields of a plug-in as compiled code gets them: numbers and arrays in one record, the rest as constants."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ddlsched.policies.compiling.source import CannotCompileError

__all__ = ["Fields"]

_DTYPES = {np.dtype(np.int64): "int64", np.dtype(np.float64): "float64"}


@dataclasses.dataclass(frozen=True)
class Fields:
    """A plug-in's fields, and those of its record's numbers that may change.

    Attributes
    ----------
    numbers, arrays, others
        Values by name: numbers that travel in the record; numpy arrays, whose address and shape do; everything else.
    changeable
        Whether code may set numbers: not those of a frozen dataclass.
    """

    numbers: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    others: Mapping[str, Any]
    changeable: bool

    @classmethod
    def of(cls, plugin: Any) -> Fields:
        """Return the fields of an instance."""
        values = dict(getattr(plugin, "__dict__", {}))
        if dataclasses.is_dataclass(plugin):
            values |= {field.name: getattr(plugin, field.name) for field in dataclasses.fields(plugin)}
        numbers = {name: value for name, value in values.items() if _is_number(value)}
        arrays = {name: value for name, value in values.items() if _is_array(value)}
        others = {name: value for name, value in values.items() if name not in numbers and name not in arrays}
        parameters = getattr(type(plugin), "__dataclass_params__", None)
        return cls(numbers, arrays, others, not (parameters and parameters.frozen))

    @property
    def names(self) -> frozenset[str]:
        """Names of all."""
        return frozenset({*self.numbers, *self.arrays, *self.others})

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the record; a record without fields has one that nobody reads."""
        columns: list[tuple[str, Any]] = [(name, _dtype(value)) for name, value in sorted(self.numbers.items())]
        for name, array in sorted(self.arrays.items()):
            columns.append((f"{name}__address", np.int64))
            columns += [(f"{name}__{axis}", np.int64) for axis in range(array.ndim)]
        return np.dtype(columns or [("nothing__", np.int64)], align=True)

    def record(self) -> np.ndarray:
        """Return the record, in an array of its own."""
        record = np.zeros(1, self.dtype)
        for name, value in self.numbers.items():
            record[name] = value
        for name, array in self.arrays.items():
            record[f"{name}__address"] = array.ctypes.data
            for axis, length in enumerate(array.shape):
                record[f"{name}__{axis}"] = length
        return record

    def array_expression(self, owner: str, name: str) -> str:
        """Return the code that makes an array of its address and shape."""
        array = self.arrays[name]
        shape = "".join(f"{owner}.{name}__{axis}, " for axis in range(array.ndim))
        return f"{_DTYPES[array.dtype]}_array__({owner}.{name}__address, ({shape}))"

    def refuse_change(self, name: str, error: Callable[[str], CannotCompileError]) -> None:
        """Raise if code may not set a field."""
        if not self.changeable:
            raise error("changes a frozen dataclass")
        if name not in self.numbers:
            raise error("sets a field that was no number when the run began")


def _is_number(value: object) -> bool:
    """Return whether a value is one of Python's own numbers: numpy's, for one, round and overflow in another way."""
    if type(value) in (bool, float):
        return True
    return (type(value) is int or isinstance(value, enum.IntEnum)) and -(2**63) <= value < 2**63


def _dtype(value: object) -> Any:
    if isinstance(value, bool):
        return np.bool_
    return np.int64 if isinstance(value, int) else np.float64


def _is_array(value: object) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype in _DTYPES
        and value.flags.c_contiguous
        and value.flags.aligned
        and 1 <= value.ndim <= 3
    )
