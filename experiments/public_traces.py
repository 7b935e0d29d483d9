"""Public traces as experiments take them: where each lies in a folder of data, and how much shorter it is made."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

MOST_ITERATIONS = 200
"""A longer job is cut: one of weeks would be most of the load of a window."""


class PublicTrace(NamedTuple):
    """A trace.

    Parameters
    ----------
    kind
        Its format, a name of :func:`~ddlsched.workload.traces.trace_import.import_trace`.
    file
        In the folder of data.
    from_day
        From which on it is taken.
    scale
        By which durations, and arrivals where they are kept, are multiplied, so that a job has tens of iterations.
    """

    kind: str
    file: Path
    from_day: float
    scale: float


PUBLIC_TRACES = {
    "Philly": PublicTrace("philly-csv", Path("traces/pollux-osdi21/philly.csv.gz"), 25.0, 0.0005),
    "ITP": PublicTrace("microsoft-itp", Path("traces/microsoft-elasticflow-traces/raw-traces.tar.gz"), 10.0, 0.0005),
    "Gavel": PublicTrace("gavel", Path("traces/gavel-osdi20/msr-seed0/103959.trace.gz"), 0.0, 0.0005),
    "Alibaba": PublicTrace("alibaba-openb", Path("traces/alibaba-clusterdata/openb_pod_list_default.csv"), 0.0, 0.02),
}
