"""The source of a plug-in's method: the syntax tree of exactly the code that Python would run."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np


class CannotCompileError(Exception):
    """A plug-in cannot be compiled.

    Parameters
    ----------
    where
        File and line.
    construct
        What stands there.
    why
        Why that is not compiled.
    """

    def __init__(self, where: str, construct: str, why: str) -> None:
        super().__init__(f"{where}: {construct}: {why}")


def short_path(path: str) -> str:
    """Return a path relative to the working directory if it lies below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


@functools.lru_cache(maxsize=64)
def _parsed(path: str, mtime_ns: int, size: int) -> tuple[ast.Module, CodeType]:
    del mtime_ns, size  # another file has others
    text = Path(path).read_bytes()
    return ast.parse(text, path), compile(text, path, "exec", dont_inherit=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _same(one: CodeType, other: CodeType) -> bool:
    """Return whether two codes do the same; what is nested is compared too."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if not _same(a, b):
                return False
        elif type(a) is not type(b) or repr(a) != repr(b):
            return False
    return True


def function_node(function: Any) -> ast.FunctionDef:
    """Return the syntax tree of a function as it is loaded, with the line numbers of its file.

    Raises
    ------
    CannotCompileError
        It is no plain function, is in no file, or the file has changed since it was loaded.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise CannotCompileError(name, type(function).__name__, "is no plain function")
    code = function.__code__
    where = f"{short_path(code.co_filename)}, line {code.co_firstlineno}"
    try:
        stat = Path(code.co_filename).stat()
        is_there, node = _found(code, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError):
        raise CannotCompileError(where, name, "its source is in no file that can be read") from None
    if not is_there:
        raise CannotCompileError(where, name, "its file has changed since it was loaded")
    if node is None:
        raise CannotCompileError(where, name, "its source was not found")
    if any(not _is_property(decorator) for decorator in node.decorator_list):
        raise CannotCompileError(where, f"@{ast.unparse(node.decorator_list[0])}", "is a decorator")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise CannotCompileError(where, name, "yields or awaits")
    return node


@functools.lru_cache(maxsize=256)
def _found(code: CodeType, mtime_ns: int, size: int) -> tuple[bool, ast.FunctionDef | None]:
    """Return whether a file still holds a code that was loaded from it, and the definition that it comes from."""
    tree, module = _parsed(code.co_filename, mtime_ns, size)
    is_there = any(c.co_firstlineno == code.co_firstlineno and _same(c, code) for c in _codes(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return is_there, node
    return is_there, None


def is_set_when_running(function: Any, name: str) -> bool:
    """Return whether a function of the same file declares a variable as global or nonlocal, to set it."""
    try:
        stat = Path(function.__code__.co_filename).stat()
        return name in _set_names(function.__code__.co_filename, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError):
        return True


@functools.lru_cache(maxsize=64)
def _set_names(path: str, mtime_ns: int, size: int) -> frozenset[str]:
    tree, _ = _parsed(path, mtime_ns, size)
    return frozenset(n for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for n in node.names)


def _is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "property"


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
        columns: list[tuple[str, Any]] = [
            (name, np.asarray(value).dtype) for name, value in sorted(self.numbers.items())
        ]
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


def _is_array(value: object) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype in _DTYPES
        and value.flags.c_contiguous
        and value.flags.aligned
        and 1 <= value.ndim <= 3
    )
