"""One run of the 160-job workload, in a process of its own: ``one_run.py ddlsched|reference SCHEDULER SCALE``.

Prints JSON: seconds of the event loop, events, the peak resident memory of the whole process (interpreter,
libraries and compiled code included), and the finish time of each job.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from full_size import SEED

import ddlsched
from ddlsched.network.contention import ten_gigabit_ethernet
from ddlsched.plugins.names import resolve_bundle
from topologies.star import Star

sys.path.append(str(Path(__file__).parents[1] / "tests"))


def main(simulator: str, scheduler: str, scale: str) -> None:
    workload = ddlsched.microsoft_160(seed=SEED, scale=float(scale))
    run = {"ddlsched": ours, "reference": reference}[simulator](workload, scheduler)
    print(json.dumps({**run, "peak_mb": peak_mb()}))


def ours(workload: ddlsched.Workload, scheduler: str) -> dict[str, Any]:
    result = ddlsched.simulate(workload, scheduler=scheduler)
    summary = result.summary()
    finish_ns = result.finished.state.jobs.finish_ns.tolist()
    return {"seconds": summary["engine_s"], "events": summary["events"], "finish_ns": finish_ns}


def reference(workload: ddlsched.Workload, scheduler: str) -> dict[str, Any]:
    from reference_simulator import reference_simulate

    bundle = resolve_bundle(scheduler)
    begin = time.perf_counter()
    run = reference_simulate(
        workload,
        ddlsched.Cluster(),
        placement=bundle["placement"],
        order=bundle["order"],
        communication=bundle["communication"],
        contention=ten_gigabit_ethernet(),
        topology=Star(),
    )
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "events": run.events, "finish_ns": [run.jobs[job.job_id].finish_ns for job in workload]}


def peak_mb() -> float:
    """Return the peak resident memory of this process, MB, without what it had of its parent's when it began."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status.open() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main(*sys.argv[1:])
