"""Measure the engine and print tables: ``python benchmarks/engine.py [--only a|b|c|d] [--json FILE]``.

(a) full size, (b) flow scenario, (c) start, (d) policies in Python; ``README.md`` says what each figure means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import flow_speed
import full_size
import start_time
import users_policies
from benchmark_tables import Table

PARTS: dict[str, Callable[[], Iterator[Table]]] = {
    "a": full_size.tables,
    "b": flow_speed.tables,
    "c": start_time.tables,
    "d": users_policies.tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to a file")
    arguments = parser.parse_args()
    measured = []
    for part in [arguments.only] if arguments.only else PARTS:
        for table in PARTS[part]():
            print(f"{table}\n", flush=True)
            measured.append(asdict(table))
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
