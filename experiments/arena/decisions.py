"""What a rival's decisions cost: calls of its Python code in one run, and milliseconds of CPU each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddlsched.engine.decisions.checked_policies import CheckedPolicies

ASKED = ("place", "place_round", "moves", "stops", "allocate", "choose_path", "share", "admit", "select", "key")
"""Methods of the engine that ask a policy's Python code; what is compiled is not asked through them."""


@contextmanager
def clocked() -> Iterator[dict[str, list[float]]]:
    """Count the calls of each method, and their CPU seconds: {method: [calls, seconds]}."""
    spent: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    own = {name: getattr(CheckedPolicies, name) for name in ASKED}
    for name, method in own.items():
        setattr(CheckedPolicies, name, _clocked(name, method, spent))
    try:
        yield spent
    finally:
        for name, method in own.items():
            setattr(CheckedPolicies, name, method)


def _clocked(name: str, method: Any, spent: dict[str, list[float]]) -> Any:
    def asked(self: Any, *given: Any) -> Any:
        begin_s = time.process_time()
        answer = method(self, *given)
        if name in ("place_round", "moves"):
            answer = iter(list(answer)) if name == "moves" else _each(answer, spent[name])
        spent[name][0] += 1
        spent[name][1] += time.process_time() - begin_s
        return answer

    return asked


def _each(starts: Iterator[Any], spent: list[float]) -> Iterator[Any]:
    """Yield what a round yields, and count the time until each."""
    while True:
        begin_s = time.process_time()
        start = next(starts, None)
        spent[1] += time.process_time() - begin_s
        if start is None:
            return
        yield start
