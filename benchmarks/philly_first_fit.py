"""First-fit on the whole Philly trace, where nearly all jobs of several GPUs contend: how far it gets, what it counts.

``philly_first_fit.py [--until-s S ...] [--whole] [--servers N] [--philly FILE]``: 82,247 jobs, GPUs used exclusively,
SRSF, one transfer a link at a time. One row for each simulated time up to which the trace is run, each in a process of
its own; ``--whole`` adds the run to its end, which takes long. What contends and is neither jumped over nor skipped is
computed iteration by iteration: for those there is no exact shortcut.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark_tables import Table, say
from scale import PHILLY, import_philly
from scale_run import GPUS_PER_SERVER, MEMORY_MB, exclusive

import ddlsched

UNTIL_S = (1_800_000.0, 2_000_000.0, 2_300_000.0)
COLUMNS = (
    "simulated s",
    "loop, s",
    "CPU, s",
    "jobs done",
    "skipped, 1e6",
    "contended, 1e6",
    "jumped, 1e6",
    "one by one, 1e6",
    "1e6 of these a second",
)


def simulated(trace: str, servers: int, until_s: float | None) -> dict[str, float]:
    """Run the trace up to a simulated time, or to its end, and return what was counted."""
    workload = ddlsched.Workload.of([exclusive(job) for job in ddlsched.read_workload(trace).jobs])
    cluster = ddlsched.Cluster(num_servers=servers, gpus_per_server=GPUS_PER_SERVER, gpu_memory_mb=MEMORY_MB)
    policies = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=1"}
    ddlsched.simulate(ddlsched.Workload.of(workload.jobs[:1]), cluster, **policies)  # loads the compiled code
    begin_s = time.process_time()
    result = ddlsched.simulate(workload, cluster, until_s=until_s, **policies)
    run = result.finished.state.run[0]
    return {
        "simulated_s": result.finished.end_ns / 1e9,
        "loop_s": result.summary()["engine_s"],
        "cpu_s": time.process_time() - begin_s,
        "done": result.summary()["jobs"] - result.summary()["unfinished_jobs"],
        "skipped": int(run.skipped_iterations),
        "contended": int(run.contended_iterations),
        "jumped": int(run.jumped_iterations),
        "several": sum(job.iterations for job in workload if job.num_gpus > 1),
        "last_arrival_s": max(job.arrival_s for job in workload),
    }


def row(found: dict[str, float]) -> list[str | float | int | None]:
    one_by_one = found["contended"] - found["jumped"]
    millions = [round(found[name] / 1e6, 1) for name in ("skipped", "contended", "jumped")]
    rate = one_by_one / 1e6 / found["loop_s"]
    times = [found["loop_s"], found["cpu_s"]]
    return [f"{found['simulated_s']:,.0f}", *times, int(found["done"]), *millions, one_by_one / 1e6, rate]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until-s", type=float, nargs="*", default=UNTIL_S)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--servers", type=int, default=300)
    parser.add_argument("--philly", type=Path, default=PHILLY, metavar="FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a run, in a process of its own
    given = parser.parse_args()
    if given.one:
        print(json.dumps(simulated(**json.loads(given.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "philly.parquet"
        say("importing the trace")
        import_philly(given.philly, trace)
        rows = []
        for until_s in [*given.until_s, *([None] if given.whole else [])]:
            say("the whole trace" if until_s is None else f"up to {until_s:,.0f} s")
            spec = json.dumps({"trace": str(trace), "servers": given.servers, "until_s": until_s})
            done = subprocess.run([sys.executable, __file__, "--one", spec], check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
            rows.append(row(found))
    title = f"Philly, first-fit, {given.servers} servers of {GPUS_PER_SERVER} GPUs used exclusively, SRSF(1)"
    note = (
        f"Jobs of several GPUs have {found['several'] / 1e6:,.0f} million iterations: no more can contend. "
        f"The last job arrives at {found['last_arrival_s']:,.0f} s."
    )
    print(Table(title=title, columns=COLUMNS, rows=rows, notes=[note]))


if __name__ == "__main__":
    main()
