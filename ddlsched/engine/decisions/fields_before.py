"""Notices that a policy without ``begin`` keeps in its fields what the next run would begin with."""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["FieldsBefore"]

_MOST_VALUES = 10_000
_DEEPEST = 5


class FieldsBefore:
    """What the fields of policies are before a run; of those with ``begin`` nothing is noted."""

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self._policies = {
            kind: policy for kind, policy in policies.items() if policy is not None and not hasattr(policy, "begin")
        }
        self._before = {kind: _fields(policy) for kind, policy in self._policies.items()}

    def changed(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the kind, the policy, and the name of a field that is not what it was."""
        for kind, policy in self._policies.items():
            before, after = self._before[kind], _fields(policy)
            if name := next((name for name in before | after if before.get(name) != after.get(name)), None):
                yield kind, policy, name

    def say_what_changed(self) -> None:
        """Say it on stderr, once in a process of each field."""
        for kind, policy, name in self.changed():
            _say_once(
                f"{kind} {type(policy).__name__}: its field {name!r} changed during the run, and the next run "
                "begins with what is in it; let begin(cluster, rng) return an object that holds what a run remembers"
            )


def _fields(policy: Any) -> dict[str, list[Any]]:
    """Return the plain values in each field of a policy."""
    return {name: [*islice(_values(value, _DEEPEST), _MOST_VALUES)] for name, value in _own(policy).items()}


def _own(value: Any) -> dict[str, Any]:
    """Return an object's fields; what a ``cached_property`` holds is none."""
    return {
        name: held
        for name, held in getattr(value, "__dict__", {}).items()
        if not isinstance(getattr(type(value), name, None), functools.cached_property)
    }


def _values(value: Any, depth: int) -> Iterator[Any]:
    """Yield the plain values in a value; what cannot be looked into is one itself."""
    if isinstance(value, bool | int | float | complex | str | bytes | None | np.generic):
        yield repr(value)
    elif isinstance(value, np.ndarray):
        yield value.shape, value.tobytes() if value.size <= _MOST_VALUES else id(value)
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield value.getstate()
    elif depth and isinstance(value, list | tuple | deque | set | frozenset | Mapping):
        yield len(value)
        for part in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
            yield from _values(part, depth - 1)
    elif depth and not isinstance(value, type | FunctionType | MethodType | ModuleType) and _own(value):
        yield from _values(_own(value), depth - 1)
    else:
        yield id(value)


@functools.cache
def _say_once(text: str) -> None:
    with suppress(OSError):
        print(f"ddlsched: {text}", file=sys.stderr, flush=True)
