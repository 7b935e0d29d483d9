"""What it costs that the engine calls a policy or a model in Python instead of compiled."""

from __future__ import annotations

from collections.abc import Iterator

from benchmark_tables import Table, say

import ddlsched
from ddlsched.plugins.names import resolve
from ddlsched.testing import python_form

__all__ = ["tables"]

SCALE = 0.1
CALLED = {
    "order srsf": {"order": "srsf"},
    "communication adadual": {"communication": "adadual"},
    "communication preemptive": {"communication": "preemptive"},
    "contention linear": {"contention": "linear"},
}


def tables() -> Iterator[Table]:
    """Measure and yield the table."""
    rows = [row(name, plugin) for name, plugin in CALLED.items()]
    title = f"(d) policies called in Python: microsoft_160(seed=1, scale={SCALE}) under ada-srsf, one run each"
    yield Table(title=title, columns=("", "compiled, s", "called in Python, s", "Python / compiled"), rows=rows)


def row(name: str, plugin: dict[str, str]) -> list[str | float]:
    say(f"{name} called in Python")
    ((kind, given),) = plugin.items()
    compiled_s = engine_s({kind: resolve(kind, given)})
    python_s = engine_s({kind: python_form(resolve(kind, given))})
    return [name, compiled_s, python_s, python_s / compiled_s]


def engine_s(plugins: dict[str, object]) -> float:
    return ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=SCALE), **plugins).finished.engine_s
