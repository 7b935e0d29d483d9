"""Numbers that modules begin with: those that have a name, those of members, and those that calls may leave out."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import EnumType
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from kept_numbers import digest

_SHOWN = 60
"""Characters of what is kept as it is; of what is longer a digest is."""


def modules_of(package: str) -> Iterator[ModuleType]:
    """Yield the modules of a package, in the order of their names."""
    there = import_module(package)
    names = [each.name for each in walk_packages(there.__path__, f"{package}.")]
    yield from map(import_module, sorted([package, *names]))


def beginnings(module: ModuleType) -> str:
    """Return the names of a module that stand for numbers, and functions and classes with what calls may leave out."""
    found = {name: vars(module)[name] for name in _given(module) if name in vars(module)}
    for name, made in vars(module).items():
        if getattr(made, "__module__", "") == module.__name__:
            found |= _of_class(name, made) if isinstance(made, type) else {name: _left_out(made)}
    told = {name: text for name, value in found.items() if re.search(r"\d|True|False", text := written(value))}
    return ", ".join(f"{name} {text if len(text) < _SHOWN else digest([text])}" for name, text in told.items())


def written(value: Any) -> str:
    """Return a value with as many digits as any machine gives it; nothing for what reads different in a process."""
    if isinstance(value, float):
        return f"{value:.13g}"
    if isinstance(value, str) and value.startswith(os.sep):
        return ""  # where this checkout or Python lies
    if value is None or isinstance(value, bool | int | np.integer | str | bytes | datetime):
        return ascii(value) if isinstance(value, str) else str(value)
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, Mapping):
        return written(list(value.items()))
    if isinstance(value, tuple | list):
        return f"({' '.join(filter(None, map(written, value)))})"
    if isinstance(value, set | frozenset):
        return written(sorted(map(written, value)))
    return f"{value.pattern!a} {value.flags}" if isinstance(value, re.Pattern) else ""


def _given(module: ModuleType) -> list[str]:
    """Return the names that statements of a module give; others it has from elsewhere."""
    body = ast.parse(Path(module.__file__ or "").read_bytes()).body
    given = [each for each in body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value]
    targets = [part for each in given for part in getattr(each, "targets", [getattr(each, "target", None)])]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _of_class(name: str, made: type) -> dict[str, Any]:
    if isinstance(made, EnumType):
        return {name: {each.name: each.value for each in made}}  # type: ignore[var-annotated]
    found = {}
    for own, value in vars(made).items():
        if isinstance(plain := getattr(value, "__func__", value), FunctionType):
            found[f"{name}.{own}"] = _left_out(plain) if own != "__init__" or not _is_record(made) else None
        elif not own.startswith(("_field", "_is_", "__")):
            found[f"{name}.{own}"] = value
    for field in dataclasses.fields(made) if _is_record(made) else ():
        found[f"{name}.{field.name}"] = {"": field.default, **field.metadata}
    return found


def _is_record(made: type) -> bool:
    return dataclasses.is_dataclass(made)


def _left_out(made: Any) -> dict[str, Any]:
    """Return a function's parameters that have a default."""
    plain = getattr(made, "__wrapped__", getattr(made, "py_func", made))
    if not isinstance(plain, FunctionType):
        return {}
    code, by_place = plain.__code__, plain.__defaults__ or ()
    places = code.co_varnames[code.co_argcount - len(by_place) : code.co_argcount]
    return dict(zip(places, by_place, strict=True)) | (plain.__kwdefaults__ or {})
