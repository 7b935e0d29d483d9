"""What is left out of a call or of a description means what it meant."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from enum import EnumType
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

from kept_numbers import assert_kept

from ddlsched import training

NEED_TORCH = ("recording.collective_calls", "recording.recorder")


def modules() -> Iterator[ModuleType]:
    for found in walk_packages(training.__path__, f"{training.__name__}."):
        if not found.name.endswith(NEED_TORCH):
            yield import_module(found.name)


def callables(owner: Any, module: str) -> Iterator[tuple[str, Any]]:
    """Yield functions, classes and their methods that are written in a module."""
    for name, value in vars(owner).items():
        plain = getattr(value, "__wrapped__", value)
        if getattr(plain, "__module__", "") == module and (inspect.isfunction(plain) or isinstance(plain, type)):
            yield name, plain
            if isinstance(plain, type) and not dataclasses.is_dataclass(plain):
                yield from ((f"{name}.{own}", each) for own, each in callables(plain, module))


def defaults(made: Any) -> list[str]:
    if isinstance(made, EnumType):
        return []
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):  # a type of the standard library's
        return []
    told = [(each.name, each.default) for each in parameters if each.default is not each.empty]
    return [f"{name}={value}" for name, value in told if isinstance(value, bool | int | float | str | tuple | None)]


def test_defaults_of_training_are_what_they_were() -> None:
    """Not of what needs PyTorch, whose recordings are kept."""
    kept = {}
    for module in modules():
        for name, made in callables(module, module.__name__):
            if found := defaults(made):
                kept[f"{module.__name__.removeprefix('ddlsched.training.')} {name}"] = " ".join(found)
    assert_kept("training-defaults", kept)
