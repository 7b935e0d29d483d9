"""What is left out of a call or of a description means what it meant."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from enum import EnumType
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import msgspec
from kept_numbers import assert_kept, digest

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
            if isinstance(plain, type):
                methods = ((own, each) for own, each in callables(plain, module) if own != "__init__")
                yield from ((f"{name}.{own}", each) for own, each in methods)


def defaults(made: Any) -> list[str]:
    if isinstance(made, EnumType):
        return []
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):  # a type of the standard library's
        return []
    told = [(each.name, each.default) for each in parameters if each.default is not each.empty]
    if isinstance(made, type) and issubclass(made, msgspec.Struct):
        config, by_name = made.__struct_config__, all(each.kind is each.KEYWORD_ONLY for each in parameters)
        told += [("frozen", config.frozen), ("known only", config.forbid_unknown_fields), ("by name", by_name)]
    return [f"{name}={value}" for name, value in told if isinstance(value, bool | int | float | str | tuple | None)]


def test_defaults_of_training_are_what_they_were() -> None:
    """Not of what needs PyTorch, whose recordings are kept."""
    kept = {}
    for module in modules():
        for name, made in callables(module, module.__name__):
            if found := defaults(made):
                kept[f"{module.__name__.removeprefix('ddlsched.training.')} {name}"] = " ".join(found)
    assert_kept("training-defaults", kept)


def written(value: Any) -> str:
    """Return a constant with as many digits as any machine gives it; of what is no number or text, its parts."""
    if isinstance(value, float):
        return f"{value:.13g}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{key}: {written(each)}' for key, each in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return written(sorted(value))
    if isinstance(value, tuple | list):
        return f"({', '.join(map(written, value))})"
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__ if isinstance(value, msgspec.Struct) else value.__dataclass_fields__
        return written({name: getattr(value, name) for name in fields})
    return str(value) if isinstance(value, bool | int | str | None) else ""


def test_constants_of_training_are_what_they_were() -> None:
    """Numbers that were measured, fitted or assumed, tables of names, presets: other ones give other estimates."""
    kept = {}
    for module in modules():
        for name, value in vars(module).items():
            given = re.search(rf"(?m)^(\w+, )*{name}(, \w+)*(: [^=]+)? = ", inspect.getsource(module))
            if name.strip("_").isupper() and given and (text := written(value)):
                place = f"{module.__name__.removeprefix('ddlsched.training.')} {name}"
                kept[place] = text if len(text) < 90 else f"{text[:40]}... {digest([text])}"
    assert_kept("training-constants", kept)
