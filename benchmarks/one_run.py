"""One run of the 160-job workload, in a process of its own: ``one_run.py SCHEDULER``.

Prints JSON: seconds of the event loop, events, the peak resident memory of the whole process (interpreter,
libraries and compiled code included), and the finish time of each job.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from full_size import SEED

import ddlsched


def main(scheduler: str) -> None:
    result = ddlsched.simulate(ddlsched.microsoft_160(seed=SEED), scheduler=scheduler)
    summary, finish_ns = result.summary(), result.finished.state.jobs.finish_ns.tolist()
    found = {"seconds": summary["engine_s"], "events": summary["events"], "finish_ns": finish_ns}
    print(json.dumps(found | {"peak_mb": peak_mb()}))


def peak_mb() -> float:
    """Return the peak resident memory of this process, MB, without what it had of its parent's when it began."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status.open() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main(*sys.argv[1:])
