"""Imports public traces and prints beside each file what pandas counts in it: ``python tests/import_table.py FOLDER``.

FOLDER is laid out as ``docs/traces.md`` says where to get each. Ends with status 1 if a count differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from ddlsched.errors import InputError
from ddlsched.workload.traces.trace_import import import_trace

FILES = {
    "alibaba-dlrm": ("alibaba-clusterdata/disaggregated_DLRM_trace.csv",),
    "alibaba-openb": ("alibaba-clusterdata/openb_pod_list_*.csv",),
    "elasticflow": ("elasticflow/philly_*.csv",),
    "gavel": ("gavel-osdi20/msr-seed0/*.trace.gz", "gavel-osdi20/physical_cluster/*.trace"),
    "muri": ("muri-sigcomm22/trace*.csv",),
    "philly-csv": ("pollux-osdi21/philly.csv.gz",),
    "pollux": ("pollux-osdi21/workloads/*.csv",),
    "sia": ("sia-sosp23/*/workload-*.csv",),
    "swf": ("swf/*.swf*",),
    "tiresias": ("tiresias-nsdi19/*_job.csv",),
}
"""Of each format those that pandas reads without knowing it."""
_READ = {
    "gavel": {"sep": "\t", "header": None},
    "swf": {"sep": r"\s+", "header": None, "comment": ";"},
}


def counted(format_name: str, path: Path) -> tuple[int, int, int, int]:
    """Return the rows that pandas counts in a file, those that were read, the jobs made, and the rows refused."""
    report = import_trace(format_name, [path]).report
    rows = len(pd.read_csv(path, **_READ.get(format_name, {})))  # type: ignore[call-overload]
    refused = sum(report["refused"].values())
    return rows, report["rows"], report["rows"] - refused, refused


def main(folder: Path) -> int:
    """Print the table; return 1 if a count differs, or there is no file."""
    files = [(kind, path) for kind, globs in FILES.items() for glob in globs for path in sorted(folder.glob(glob))]
    print("| format | file | rows by pandas | rows read | jobs | refused |\n|---|---|---|---|---|---|")
    wrong = no_trace = 0
    for kind, path in files:
        name = path.relative_to(folder)
        try:
            rows, read, jobs, refused = counted(kind, path)
        except InputError as error:
            no_trace += 1
            print(f"| {kind} | {name} | refused: {str(error).removeprefix(f'{path}: ')} | | | |")
            continue
        wrong += rows != read
        print(f"| {kind} | {name} | {rows:,} | {read:,} | {jobs:,} | {refused:,} |", flush=True)
    print(f"{len(files)} files, {no_trace} refused, {wrong} with another count")
    return int(bool(wrong) or not files)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
