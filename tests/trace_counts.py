"""Rows read and refused for each real trace: ``trace_counts.py [FOLDER]``, by default ``../shared/data/traces``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ddlsched.workload.traces.trace_import import import_trace

HERE = Path(__file__).resolve().parents[1]
FILES = {
    "philly-csv": ["pollux-osdi21/philly.csv.gz"],
    "microsoft-itp": ["microsoft-elasticflow-traces/raw-traces.tar.gz"],
    "elasticflow": ["microsoft-elasticflow-traces/elasticflow-traces.tar.gz", "elasticflow/philly_103959.csv"],
    "tiresias": ["tiresias-nsdi19/60_job.csv"],
    "muri": ["muri-sigcomm22/trace*.csv"],
    "pollux": ["pollux-osdi21/workloads/*.csv"],
    "sia": ["sia-sosp23/saturn/*.csv", "sia-sosp23/newtrace/*.csv"],
    "gavel": ["gavel-osdi20/msr-seed0/*.gz", "gavel-osdi20/physical_cluster/*.trace"],
    "alibaba-dlrm": ["alibaba-clusterdata/disaggregated_DLRM_trace.csv"],
    "alibaba-openb": ["alibaba-clusterdata/openb_pod_list_default.csv"],
    "batsim": ["batsim/*.json"],
    "swf": ["swf/*.swf"],
}
"""Patterns of the real files by format; the files of a pattern are imported together."""


def counts(folder: Path) -> list[dict[str, Any]]:
    """Return what was read of each pattern whose files are there."""
    rows = []
    for format_name, patterns in FILES.items():
        for pattern in patterns:
            paths = sorted(folder.glob(pattern))
            if paths:
                report = import_trace(format_name, paths).report
                rows.append({"pattern": pattern, **report})
    return rows


def main(folder: Path) -> None:
    print("| format | files | rows | jobs | refused | jobs with a note |\n|---|---|---|---|---|---|")
    for row in counts(folder):
        refused, notes = (
            "; ".join(f"{reason}: {count:,}" for reason, count in row[name].items()) or "-"
            for name in ("refused", "notes")
        )
        files = f"`{row['pattern']}` ({len(row['files'])})"
        print(f"| {row['format']} | {files} | {row['rows']:,} | {row['jobs']:,} | {refused} | {notes} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "shared" / "data" / "traces")
