"""Two checkouts side by side: CPU seconds of runs without groups, paths and the inside of servers.

    python benchmarks/two_versions.py OTHER [--rounds N]

``OTHER`` is another checkout, for example ``git worktree add /tmp/before COMMIT``. Each run is a process of its own,
the checkouts take turns, and the least of the rounds, of four runs each, counts: what else the machine does then
matters less. Results of both have to be the same to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
SCENARIOS = {
    "64 GPUs, ada-srsf": {"scale": 1.0, "topology": "star", "contention": "linear", "options": {}},
    "64 GPUs, SRSF(2), all GPUs visited": {
        "scale": 0.05,
        "topology": "star",
        "contention": "linear",
        "options": {"communication": "bounded-overlap:limit=2", "timeline": [1e8, 2e8]},
    },
    "fat-tree, max-min": {
        "scale": 0.2,
        "topology": "fat-tree",
        "contention": "max-min",
        "options": {"communication": "bounded-overlap:limit=9"},
    },
    "leaf-spine of 128 links, max-min": {
        "scale": 0.2,
        "topology": "leaf-spine:servers_per_leaf=2,spines=4",
        "contention": "max-min",
        "options": {"communication": "bounded-overlap:limit=9", "placement": "random"},
    },
}
RUN = """
import json, sys, time
import ddlsched
given = json.loads(sys.argv[1])
options = given["options"]
if "timeline" in options:
    options["timeline"] = tuple(options["timeline"])
workload = ddlsched.Workload.of(ddlsched.microsoft_160(seed=1, scale=given["scale"]).jobs)
cluster = ddlsched.Cluster(num_servers=16, gpus_per_server=4, topology=given["topology"])
cpu_s = 1e9
for _ in range(4):  # the first loads compiled code
    begin = time.process_time()
    result = ddlsched.simulate(workload, cluster, contention=given["contention"], **options)
    cpu_s = min(cpu_s, time.process_time() - begin)
print(json.dumps({"cpu_s": cpu_s, "engine_s": result.summary()["engine_s"], "jct_s": result.jobs["jct_s"].tolist()}))
"""


def run(checkout: Path, scenario: dict[str, object]) -> dict[str, object]:
    """Return what a run in a checkout says."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", RUN, json.dumps(scenario)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print a row a scenario."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{'scenario':36s} {'other s':>9s} {'here s':>9s} {'ratio':>6s}  results", flush=True)
    for name, scenario in SCENARIOS.items():
        found = {checkout: [run(checkout, scenario) for _ in range(1)] for checkout in (given.other, HERE)}
        for _ in range(given.rounds - 1):
            for checkout, runs in found.items():
                runs.append(run(checkout, scenario))
        other_s, here_s = (min(float(str(one["cpu_s"])) for one in found[checkout]) for checkout in (given.other, HERE))
        same = found[given.other][0]["jct_s"] == found[HERE][0]["jct_s"]
        print(
            f"{name:36s} {other_s:9.3f} {here_s:9.3f} {here_s / other_s:6.3f}  {'same' if same else 'DIFFERENT'}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
