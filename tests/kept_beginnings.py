"""What modules begin with: values that have a name, those of members and fields, and those that calls may leave out."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum, EnumType
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import FunctionType, ModuleType
from typing import Annotated, Any, get_origin

import msgspec
import numpy as np
from kept_numbers import digest

_NEED_TORCH = ("dataset_torch", "live.training", "recording.collective_calls", "recording.recorder")
_OF_THE_SYSTEM = {"_MOST_PARTS"}
_OTHER_ELSEWHERE = (
    sys.prefix, str(Path(__file__).resolve().parents[1]), Path(os.__file__).parent.name, " at 0x",
)  # fmt: skip
"""What texts hold that are others in another checkout, Python or process."""
_SHOWN = 60
"""Characters of what is kept as it is; of what is longer a digest is."""


def modules_of(package: str) -> Iterator[ModuleType]:
    """Yield the modules of a package, in the order of their names."""
    there = import_module(package)
    names = [each.name for each in walk_packages(there.__path__, f"{package}.") if not each.name.endswith(_NEED_TORCH)]
    yield from map(import_module, sorted([package, *names]))


def beginnings(module: ModuleType) -> str:
    """Return the names of a module that stand for values, and functions and classes with what calls may leave out."""
    found = {name: vars(module)[name] for name in _given(module) if name in vars(module)}
    for name, made in vars(module).items():
        if getattr(made, "__module__", "") == module.__name__ and name not in found:
            found |= _of_class(name, made) if isinstance(made, type) else {name: _left_out(made)}
    told = {name: text for name, value in found.items() if (text := written(value)) not in ("", "()")}
    return ", ".join(f"{name} {text if len(text) < _SHOWN else digest([text])}" for name, text in told.items())


def written(value: Any) -> str:
    """Return a value with as many digits as any machine gives it; nothing for what reads different in a process."""
    if isinstance(value, float):
        return f"{value:.13g}"
    if isinstance(value, Enum):
        return value.name
    if get_origin(value) is Annotated or isinstance(value, Path | str):
        text = " ".join(str(value).split())
        return "" if any(place in text for place in _OTHER_ELSEWHERE) else ascii(text)
    if value is None or isinstance(value, bool | int | np.integer | bytes | datetime):
        return str(value)
    if isinstance(value, np.ndarray):
        return written(value.tolist())
    if isinstance(value, Mapping):
        return f"({' '.join(sorted(f'({written(key)} {written(each)})' for key, each in value.items()))})"
    if isinstance(value, tuple | list):
        return f"({' '.join(filter(None, map(written, value)))})"
    if isinstance(value, set | frozenset):
        return written(sorted(map(written, value)))
    if isinstance(value, re.Pattern):
        return f"{value.pattern!a} {value.flags}"
    return "" if isinstance(value, type) else written({name: getattr(value, name) for name in _fields(value)})


def _given(module: ModuleType) -> list[str]:
    """Return the names that statements of a module give; others it has from elsewhere."""
    body = ast.parse(Path(module.__file__ or "").read_bytes()).body
    given = [each for each in body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value]
    given = [each for each in given if not _begins_empty(each.value)]
    targets = [part for each in given for part in getattr(each, "targets", [getattr(each, "target", None)])]
    names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return [name for name in names if name not in _OF_THE_SYSTEM]


def _begins_empty(value: ast.expr | None) -> bool:
    """Return whether a table is filled as the program runs: what it holds depends on what ran before."""
    return isinstance(value, ast.Dict) and not value.keys


def _fields(made: Any) -> tuple[str, ...]:
    """Return the names of a record's fields; of anything else none."""
    return tuple(getattr(made, "__struct_fields__", getattr(made, "__dataclass_fields__", ())))


def _of_class(name: str, made: type) -> dict[str, Any]:
    if isinstance(made, EnumType):
        return {name: {each.name: each.value for each in made}}  # type: ignore[var-annotated]
    found: dict[str, Any] = {name: _kind(made)}
    for own, value in vars(made).items():
        if isinstance(plain := getattr(value, "__func__", value), FunctionType):
            found[f"{name}.{own}"] = _left_out(plain) if own != "__init__" or not _fields(made) else None
        elif not own.startswith(("_field", "_is_", "_pid", "__")):
            found[f"{name}.{own}"] = value
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        found[f"{name}.{field.name}"] = {"": field.default, **field.metadata}
    if issubclass(made, msgspec.Struct):
        given = inspect.signature(made).parameters.values()
        found |= {f"{name}.{each.name}": each.default for each in given if each.default is not each.empty}
        found |= {f"{name}.{own}:": text for own, text in made.__annotations__.items() if re.search(r"\d", str(text))}
    return found


def _kind(made: type) -> tuple[str, ...]:
    """Return what a record is besides its fields; nothing of another class."""
    if not _fields(made):
        return ()
    by_name = all(each.kind is each.KEYWORD_ONLY for each in inspect.signature(made).parameters.values())
    config = getattr(made, "__struct_config__", None) or made.__dataclass_params__  # type: ignore[attr-defined]
    known_only, slots = getattr(config, "forbid_unknown_fields", False), "__slots__" in vars(made)
    is_so = {"frozen": config.frozen, "slots": slots, "by name": by_name, "known only": known_only, "eq": config.eq}
    return tuple(name for name, told in is_so.items() if told)


def _left_out(made: Any) -> dict[str, Any]:
    """Return a function's parameters that have a default."""
    plain = getattr(made, "__wrapped__", getattr(made, "py_func", made))
    if not isinstance(plain, FunctionType):
        return {}
    code, by_place = plain.__code__, plain.__defaults__ or ()
    places = code.co_varnames[code.co_argcount - len(by_place) : code.co_argcount]
    return dict(zip(places, by_place, strict=True)) | (plain.__kwdefaults__ or {})
