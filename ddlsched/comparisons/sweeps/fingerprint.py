"""Fingerprints: a hash of everything that a run's outcome depends on, the same in every process.

Values are taken apart down to numbers and text; of a class, the bytes of its file count too, as do those of
every file that a text such as ``path/to/mine.py:MyPolicy`` names, and of what a Python file imports from
beside it (:mod:`ddlsched.plugins.user_files`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.plugins.user_files import digest_of, files_named, installed_packages, with_neighbours

__all__ = ["describe", "fingerprint", "sources_digest"]

_AFTERWARDS = ("classes", "paired_comparison", "explanation", "statistics")
_ASKING = (
    "compare",
    "comparison",
    "comparison_tables",
    "conditions",
    "fields",
    "folder",
    "run_plan",
    "settings",
    "yaml_file",
)
_PRESENTATION = (
    "cli",
    "comparisons/charts",
    "comparisons/report",
    *(f"comparisons/{name}.py" for name in _ASKING),
    *(f"results/{name}.py" for name in _AFTERWARDS),
)
"""What no simulation imports."""


def fingerprint(inputs: Mapping[str, Any], sources: str) -> str:
    """Return the hash of a run's inputs, of the user's files among them, and of ``sources``.

    Raises
    ------
    InputError
        A value that cannot be told apart from others of its kind, such as a lambda.
    """
    files: set[Path] = set()
    described = describe(inputs, files)
    try:
        digests = sorted({digest_of(part) for path in files for part in with_neighbours(path)})
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); expected a readable file") from None
    return _digest(json.dumps([described, digests, sources], sort_keys=True).encode())


def sources_digest() -> str:
    """Return the hash of the installed sources: this package's and those of all registered plug-ins.

    What only draws and talks is left out; numpy's version counts, because its random streams may change with it.
    """
    digests = [_digest(path.read_bytes()) for name in sorted(installed_packages()) for path in _sources_of(name)]
    return _digest(json.dumps([digests, np.__version__]).encode())


def describe(value: object, files: set[Path]) -> Any:
    """Return ``value`` as JSON can hold it, and add to ``files`` those whose bytes count.

    Raises
    ------
    InputError
        A function, or an object that hides what it holds.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | Path):
        files.update(files_named(str(value)))
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): describe(part, files) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [describe(part, files) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), _digest(value.tobytes())]
    return _describe_object(value, files)


def _describe_object(value: object, files: set[Path]) -> dict[str, Any]:
    kind = type(value)
    if inspect.isroutine(value) or inspect.isclass(value) or not (is_dataclass(value) or hasattr(value, "__dict__")):
        raise InputError(f"{value!r} cannot be hashed for a sweep; expected a name, a number, or a class's instance")
    try:
        files.add(Path(inspect.getfile(kind)))
    except (TypeError, OSError):
        raise InputError(f"class {kind.__qualname__} is in no file; a sweep has to notice when it changes") from None
    held = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else vars(value)
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "holds": describe(held, files)}


def _sources_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    if origin.name != "__init__.py":
        return [origin]
    silent = {origin.parent / name for name in _PRESENTATION} if package == "ddlsched" else set()
    return sorted(path for path in origin.parent.rglob("*.py") if silent.isdisjoint([path, *path.parents]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
