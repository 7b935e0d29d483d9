"""Which cases of a long sweep every run of the tests tries, and which only ``python -m pytest -m slow``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["tried"]


def tried(cases: Iterable[Any], by_default: Callable[[int], bool]) -> list[Any]:
    """Return the cases as parameters; those whose place ``by_default`` refuses are slow."""
    return [
        case if by_default(place) else pytest.param(*_values(case), marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
