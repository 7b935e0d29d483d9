"""Measure the engine and print tables: ``python benchmarks/engine.py [--only a|b|c|d]``.

(a) full size, (b) flow scenario, (c) start, (d) policies in Python; ``README.md`` says what each figure means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import flows
import full_size
import start_time
import typer
import users_policies
from benchmark_tables import Table

PARTS: dict[str, Callable[[], Iterator[Table]]] = {
    "a": full_size.tables,
    "b": flows.tables,
    "c": start_time.tables,
    "d": users_policies.tables,
}


def main(only: Literal["a", "b", "c", "d"] | None = None) -> None:
    """Measure all parts, or one, and print their tables."""
    for part in [only] if only else PARTS:
        for table in PARTS[part]():
            print(f"{table}\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
