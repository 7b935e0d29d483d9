"""Seconds and peak memory of importing a generated Chakra trace of a million nodes.

``recorded_traces.py [--nodes N]`` prints a table. The memory is the peak resident set (``ru_maxrss``) of a child
process that runs ``ddlsched import-training`` and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmark_tables import DDLSCHED, Table, command_costs, say

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from chakra_files import large_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as name:
        path = large_trace(Path(name) / "large.0.et", nodes)
        say(f"{path.stat().st_size / 1e6:,.0f} MB of {nodes:,} nodes")
        options = ["import-training", str(path), "--gpus", "8", "--out", str(Path(name) / "job.json")]
        costs = command_costs([*DDLSCHED, *options])
    columns = ["file", "nodes", "wall s", "CPU s", "peak MB"]
    print(Table(title="Import of a Chakra trace", columns=columns, rows=[["generated", nodes, *costs]]))


if __name__ == "__main__":
    main()
