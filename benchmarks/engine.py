"""Measure the engine and print tables: ``python benchmarks/engine.py [--only a|b|c|d]``.

(a) full size, (b) flow scenario, (c) start, (d) policies in Python; ``README.md`` says what each figure means.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import flows
import full_size
import start_time
import users_policies
from benchmark_tables import Table

PARTS: dict[str, Callable[[], Iterator[Table]]] = {
    "a": full_size.tables,
    "b": flows.tables,
    "c": start_time.tables,
    "d": users_policies.tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    only = parser.parse_args().only
    for part in [only] if only else PARTS:
        for table in PARTS[part]():
            print(f"{table}\n", flush=True)


if __name__ == "__main__":
    main()
