"""CPU time of this checkout's engine beside another's, in turn in one run: ``against_version.py OTHER_CHECKOUT``.

Both run the same workloads, whose finish times must be the same, each in a process of its own that has loaded the
compiled loop before. On a busy machine the least of many runs in turn is what to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCENARIOS: dict[str, dict[str, Any]] = {
    "64 GPUs, ada-srsf": {"scheduler": "ada-srsf"},
    "64 GPUs, srsf-2, random": {"scheduler": "srsf-2", "placement": "random"},
    "64 GPUs, preemptive": {"communication": "preemptive:by=time"},
    "leaf-spine, max-min": {
        "scheduler": "srsf-3",
        "placement": "random",
        "contention": "max-min",
        "topology": "leaf-spine:oversubscription=4",
    },
}


def work(scale: float) -> None:
    """Answer each name of a scenario on stdin with a line: CPU seconds, and a hash of the finish times."""
    import ddlsched

    workload = ddlsched.microsoft_160(seed=1, scale=scale)
    for line in sys.stdin:
        given = dict(SCENARIOS[line.strip()])
        cluster = ddlsched.Cluster(topology=given.pop("topology", "star"))
        begin_s = time.process_time()
        result = ddlsched.simulate(workload, cluster, **given)
        cpu_s = time.process_time() - begin_s
        print(json.dumps([cpu_s, result.finished.state.jobs.finish_ns.tolist()]), flush=True)


def started(checkout: Path, scale: float) -> subprocess.Popen[str]:
    """Start a process that works with a checkout's ddlsched."""
    command = [sys.executable, __file__, "--work", "--scale", str(scale)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(process: subprocess.Popen[str], scenario: str) -> tuple[float, list[int]]:
    """Return CPU seconds and finish times of a run."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(scenario, file=process.stdin, flush=True)
    cpu_s, finish_ns = json.loads(process.stdout.readline())
    return cpu_s, finish_ns


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="another checkout")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--scale", type=float, default=0.3, help="of the jobs' iterations")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.scale)
        return
    from benchmark_tables import Table, say

    this, other = (started(checkout, given.scale) for checkout in (Path(__file__).parents[1], given.other.resolve()))
    rows = []
    for scenario in SCENARIOS:
        say(scenario)
        same = ask(this, scenario)[1] == ask(other, scenario)[1]
        pairs = [(ask(this, scenario)[0], ask(other, scenario)[0]) for _ in range(given.runs)]
        this_s, other_s = (min(seconds) for seconds in zip(*pairs, strict=True))
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        rows.append([scenario, this_s, other_s, this_s / other_s, ratios[len(ratios) // 2], "yes" if same else "NO"])
    columns = ("CPU, s", "this", "other", "ratio of the least", "median ratio", "same finish times")
    print(Table(title=f"This checkout beside {given.other}: {given.runs} runs in turn", columns=columns, rows=rows))
    for process in (this, other):
        process.communicate()


if __name__ == "__main__":
    main()
