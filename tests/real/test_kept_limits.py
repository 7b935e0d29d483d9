"""Limits, pauses and defaults of real runs: what each is when nobody says otherwise, as it was."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_origin

from kept_numbers import assert_kept

import ddlsched.real
from ddlsched.ranges import range_of

ROOM = "ddlsched.real."
MODULES = [each.name for each in pkgutil.walk_packages(ddlsched.real.__path__, ROOM)]
MODULES.remove(f"{ROOM}live.training")  # which imports PyTorch


def is_plain(value: object) -> bool:
    """Whether a value reads the same in every run."""
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if isinstance(value, tuple | list | dict | frozenset):
        return all(map(is_plain, parts))  # type: ignore[arg-type]
    return isinstance(value, int | float | str | bytes | Path | None)


def constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield what a module gives a name to by itself: numbers, texts and bounds of what messages hold."""
    for statement in ast.parse(inspect.getsource(module)).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            value = getattr(module, target.id) if isinstance(target, ast.Name) else None
            told = " ".join(str(sorted(value) if isinstance(value, frozenset) else value).split())
            if value is not None and (is_plain(value) or get_origin(value) is Annotated) and sys.prefix not in told:
                yield target.id, told  # type: ignore[union-attr]


def defaults(of: Any) -> str:
    """Return what a function's parameters are when they are left out, or a class's fields with what they may be."""
    ranges = {each.name: range_of(each) for each in dataclasses.fields(of)} if dataclasses.is_dataclass(of) else {}
    given = [each for each in inspect.signature(of).parameters.values() if each.default is not each.empty]
    said = {each.name: f"{each.name}={each.default!r}" for each in given if is_plain(each.default)}
    return ", ".join(f"{told} {tuple(ranges[name])}" if ranges.get(name) else told for name, told in said.items())


def called(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions, classes and methods of a module, by their names in it."""
    for name, of in inspect.getmembers(module, lambda each: getattr(each, "__module__", "") == module.__name__):
        if inspect.isfunction(of) or (inspect.isclass(of) and not issubclass(of, Enum | Exception)):
            yield name, of
        if inspect.isclass(of):
            own = inspect.getmembers(of, inspect.isfunction)
            yield from ((f"{name}.{each}", method) for each, method in own if each in vars(of) and each != "__init__")


def test_limits_and_defaults_are_what_they_were() -> None:
    """Another limit ends a run, or refuses a message, that users know otherwise: who changes one sees it here."""
    found = {}
    for name in MODULES:
        module = import_module(name)
        by_default = {each: said for each, of in called(module) if (said := defaults(of))}
        found |= {f"{name.removeprefix(ROOM)}.{each}": told for each, told in [*constants(module), *by_default.items()]}
    assert_kept("limits-of-real-runs", found)
