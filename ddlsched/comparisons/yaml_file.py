"""A comparison's YAML file: parsed, never executed, and every value's line known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ddlsched.comparisons.settings import Location, Where
from ddlsched.errors import FaultyInputError, InputError
from ddlsched.io.reading import read_bytes

__all__ = ["read_yaml"]

_MOST_BYTES = 1 << 20
"""Of YAML, which is parsed in Python, at less than a MB a second."""


def read_yaml(path: Path) -> tuple[dict[str, Any], Where]:
    """Return what a file holds, by field, and what tells where a value stands: file, line and field.

    Raises
    ------
    InputError
        It cannot be read, is no YAML, holds no fields, or one of them twice.
    """
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(_no_yaml(path, error)) from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}: holds no fields; expected workloads: and policies: at least")
    faults = [f"{path}, line {line}, field {name}: is there twice; expected once" for name, line in _twice(node, set())]
    if faults:
        raise FaultyInputError(faults)
    return values, lambda location: _place(path, node, location)


def _no_yaml(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else f"{path}"
    why = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{where}: is no YAML ({why}); expected fields such as 'seeds: 20'"


def _twice(node: yaml.Node, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the fields that an object has twice, of which YAML takes the last without a word."""
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _twice(part, seen)
    elif isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        for number, (key, value) in enumerate(node.value):
            if key.value in names[:number]:
                yield str(key.value), key.start_mark.line + 1
            yield from _twice(value, seen)


def _place(path: Path, node: yaml.Node, location: Location) -> str:
    """Return the file, line and field of a value, as near as the file has it."""
    line, field = node.start_mark.line + 1, ""
    for part in location:
        if isinstance(part, str):
            field += f".{part}" if field else part
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            found = [(key, value) for key, value in pairs if key.value == part]
            node = found[-1][1] if found else yaml.ScalarNode("", "")
            line = found[-1][0].start_mark.line + 1 if found else line
        elif isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node, field = node.value[part], f"{field}[{part}]"
            line = node.start_mark.line + 1
    return f"{path}, line {line}" + (f", field {field}" if field else "")
