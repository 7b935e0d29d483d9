"""Numbers and names that modules begin with, and what each function takes that it is not told: as they were."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from fsspec.spec import AbstractBufferedFile
from kept_numbers import assert_kept, digest

import ddlsched.checkpoints as room

FILES = sorted(path for path in Path(room.__path__[0]).glob("*.py") if path.stem not in ("__init__", "dataset_torch"))
"""All but the one that needs PyTorch."""
OF_THE_SYSTEM = {"_MOST_PARTS"}


def is_plain(value: Any) -> bool:
    """Return whether a value is told by its text, which is the same in every process."""
    if isinstance(value, tuple | list | dict):
        return all(map(is_plain, [*value, *value.values()] if isinstance(value, dict) else value))
    return isinstance(value, bool | int | float | str | bytes | re.Pattern)


def values_of(file: Path) -> Iterator[str]:
    """Yield what is given a name in a module, and the defaults of what is made in it."""
    module = vars(import_module(f"ddlsched.checkpoints.{file.stem}"))
    for statement in ast.parse(file.read_text()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names = {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}
        for name in sorted(names - OF_THE_SYSTEM):
            value = sorted(module[name]) if isinstance(module.get(name), frozenset) else module.get(name)
            if is_plain(value):
                yield f"{name}={value if len(str(value)) < 40 else digest([value])}"
        made = module.get(getattr(statement, "name", ""))
        if made is not None and not (
            inspect.isclass(made) and issubclass(made, Enum | Exception | AbstractBufferedFile)
        ):
            yield from defaults_of(made)


def defaults_of(made: Any) -> Iterator[str]:
    own = vars(made).values() if inspect.isclass(made) else ()
    for each in [made, *(method for method in own if inspect.isfunction(method) and method.__name__ != "__init__")]:
        for parameter in inspect.signature(each).parameters.values():
            if is_plain(parameter.default):
                yield f"{each.__qualname__}({parameter.name}={parameter.default})"
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        if field.metadata:
            yield f"{field.name} {digest([dict(field.metadata)])}"


def test_what_modules_begin_with_is_what_it_was() -> None:
    assert_kept("checkpoint-values", {file.stem: ", ".join(values_of(file)) for file in FILES})
