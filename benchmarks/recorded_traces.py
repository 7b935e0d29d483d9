"""Seconds and peak memory of importing a generated Chakra trace of a million nodes.

``recorded_traces.py [--nodes N]`` prints a table. The memory is the peak resident set (``ru_maxrss``) of a child
process that runs ``ddlsched import-training`` and nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark_tables import Table, say
from chakra_files import large_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as name:
        path = large_trace(Path(name) / "large.0.et", nodes)
        say(f"{path.stat().st_size / 1e6:,.0f} MB of {nodes:,} nodes")
        out = Path(name) / "job.json"
        program = "from ddlsched.cli import main; main()"
        command = [
            sys.executable,
            "-c",
            program,
            "import-training",
            str(path),
            "--gpus",
            "8",
            "--out",
            str(out),
        ]
        begin_s = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin_s
        if status:
            sys.exit(f"the import ended with status {status}")
        cpu_s = usage.ru_utime + usage.ru_stime
        print(
            Table(
                title="Import of a Chakra trace",
                columns=["file", "nodes", "wall s", "CPU s", "peak GB"],
                rows=[["generated", nodes, wall_s, cpu_s, usage.ru_maxrss / 1e6]],
            )
        )


if __name__ == "__main__":
    main()
