"""How far the lower bound of the average JCT is below policies on the 64-GPU mix, and what it takes: ``jct_bound.py``.

160 jobs at full size, 16 servers of 4 GPUs, 10 Gbit/s; bound and policies on the same job sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import typer
from benchmark_tables import Table, say, timed

import ddlsched
from algorithms.bound import jct_bound
from ddlsched.network.contention import ten_gigabit_ethernet

ALONE = {"communication": "bounded-overlap:limit=1"}
WHOLE = ALONE | {"placement": "whole-servers"}
POLICIES: dict[bool, dict[str, dict[str, Any]]] = {
    True: {
        "FIFO, LWF-1": ALONE | {"placement": "lwf", "order": "fifo"},
        "Block-SRTF": {"scheduler": "block-srtf"},
        "FIFO, HiveD": ALONE | {"placement": "hived", "order": "fifo"},
        "FIFO, whole servers": WHOLE | {"order": "fifo"},
        "SRTF, whole servers": WHOLE | {"order": "srtf"},
        "SRSF, whole servers": WHOLE | {"order": "srsf"},
    },
    False: {"SRSF(1), LWF-1": {"scheduler": "srsf-1"}, "Block-SRTF": {"scheduler": "block-srtf"}},
}
"""By whether GPUs are exclusive. SRTF and SRSF know how long jobs take."""


def ratios(exclusive: bool, seed: int, scale: float = 1.0, intervals: int = 200) -> tuple[dict[str, float], float]:
    """Return each policy's average JCT, and the time alone, over the bound, and the bound's CPU seconds."""
    workload, cluster = ddlsched.microsoft_160(seed=seed, scale=scale), ddlsched.Cluster(exclusive=exclusive)
    bound, _, cpu_s = timed(lambda: jct_bound(workload, cluster, ten_gigabit_ethernet(), intervals=intervals))
    found = {"each job alone": bound.alone_s.mean() / bound.average_jct_s}
    for name, options in POLICIES[exclusive].items():
        run = ddlsched.simulate(workload, cluster, contention=ten_gigabit_ethernet(), **options)
        found[name] = float(run.jobs["jct_s"].mean()) / bound.average_jct_s
    return found, cpu_s


def main(seeds: int = 10) -> None:
    """Print the table."""
    rows = []
    for exclusive in (True, False):
        say("exclusive GPUs" if exclusive else "shared GPUs")
        found = [ratios(exclusive, seed) for seed in range(1, seeds + 1)]
        cpu_s = float(np.median([seconds for _, seconds in found]))
        for name, of_name in pd.DataFrame([values for values, _ in found]).items():
            figures = of_name.mean(), of_name.min(), of_name.max()
            rows.append([name, "exclusive" if exclusive else "shared", *figures, cpu_s])
    columns = ("policy", "GPUs", "JCT / bound, mean", "least", "most", "bound, CPU s (median)")
    print(Table(title=f"Average JCT over the lower bound, {seeds} job sets of 160", columns=columns, rows=rows))


if __name__ == "__main__":
    typer.run(main)
