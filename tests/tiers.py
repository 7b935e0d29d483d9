"""Which cases of a long sweep every run of the tests tries, and which only ``python -m pytest -m slow``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FUZZ = int(os.environ.get("FUZZ") or 0)
"""How many random cases a test tries, if that is set."""

MUST_PASS = "not slow and not browser and not torch and not testbed and not slurm"
"""Which tests a check runs, by their markers: the default ones and the long ones."""

thorough = False
"""Whether this is a slow run; told before tests are looked for."""


def examples(number: int, by_default: int | None = None) -> int:
    """Return how many random cases a test tries: ``FUZZ``, else so many, or fewer ``by_default`` but in a slow run."""
    return FUZZ or (number if thorough or by_default is None else by_default)


def is_drawn(item: pytest.Function) -> bool:
    """Return whether a test tries as many cases as :func:`examples` says: of hypothesis's, or marked ``drawn``."""
    return getattr(item.function, "is_hypothesis_test", False) or bool(item.get_closest_marker("drawn"))


@cache
def marks_long(path: Path) -> bool:
    """Return whether a file of tests says of some that they are long."""
    return "mark.long" in path.read_text("utf-8")


def tried(cases: Iterable[Any], by_default: Callable[[int], bool]) -> list[Any]:
    """Return the cases as parameters; those whose place ``by_default`` refuses are slow."""
    return [
        case if by_default(place) else pytest.param(*_values(case), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
