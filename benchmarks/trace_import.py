"""Seconds and peak memory of importing a generated trace of a million rows, one process a format and output.

``trace_import.py [--rows N]`` prints a table. The memory is the peak resident set (``ru_maxrss``) of a child process
that runs ``ddlsched workload import`` and nothing else; reading the file back is not counted.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from benchmark_tables import Table, say

from ddlsched.workload.traces.trace_import import import_trace

PHILLY = Path(__file__).resolve().parents[2] / "shared/data/traces/pollux-osdi21/philly.csv.gz"
SEED = 1
BEGIN = datetime(2017, 10, 1)
SIZES = (1, 1, 1, 1, 2, 4, 8, 16)


def philly_csv(rows: int, rng: random.Random) -> Iterator[str]:
    yield "timestamp,duration,num_gpus,gpu_time,cluster"
    for _ in range(rows):
        duration, gpus = rng.randint(1, 10**6), rng.choice(SIZES)
        moment = BEGIN + timedelta(seconds=rng.randint(0, 10**7))
        yield f"{moment},{duration}.0,{gpus},{duration * gpus}.0,vc{rng.randint(0, 14)}"


def microsoft_itp(rows: int, rng: random.Random) -> Iterator[str]:
    yield "job_id,submission_time,duration,num_gpu"
    for _ in range(rows):
        job = f"{rng.getrandbits(128):032x}"
        yield f"{job},{rng.randint(0, 10**7)},{rng.randint(1, 10**6)},{rng.choice(SIZES)}"


def philly(rows: int, rng: random.Random) -> Iterator[str]:
    for number in range(rows):
        moment = BEGIN + timedelta(seconds=rng.randint(0, 10**7))
        end = moment + timedelta(seconds=rng.randint(1, 10**6))
        gpus = ", ".join(f'"gpu{gpu}"' for gpu in range(min(8, rng.choice(SIZES))))
        yield (
            f'{"," if number else "["}{{"status": "Pass", "vc": "ee", "jobid": "application_{number}", '
            f'"attempts": [{{"start_time": "{moment}", "end_time": "{end}", "detail": '
            f'[{{"ip": "m1", "gpus": [{gpus}]}}]}}], "submitted_time": "{moment}", "user": "u{rng.randint(0, 999)}"}}'
        )
    yield "]"


def batsim(rows: int, rng: random.Random) -> Iterator[str]:
    yield '{"nb_res": 128, "profiles": {"d": {"type": "delay", "delay": 100.5}}, "jobs": ['
    for number in range(rows):
        comma = "," if number < rows - 1 else "]}"
        fields = f'"id": {number}, "profile": "d", "res": {rng.choice(SIZES)}, "subtime": {rng.uniform(0, 1e7)}'
        yield f'{{{fields}, "walltime": 200}}{comma}'


GENERATORS = {"philly-csv": philly_csv, "microsoft-itp": microsoft_itp, "philly": philly, "batsim": batsim}


def generate(path: Path, format_name: str, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in GENERATORS[format_name](rows, random.Random(SEED)))


def measure(command: list[str]) -> tuple[float, float, float]:
    """Return the wall time and processor time of a command, seconds, and its peak resident memory, MB."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    seconds = time.perf_counter() - begin
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main(rows: int) -> None:
    measured = []
    with tempfile.TemporaryDirectory() as name:
        for format_name in GENERATORS:
            trace = Path(name) / "trace"
            generate(trace, format_name, rows)
            for suffix in ("csv", "parquet"):
                out = Path(name) / f"jobs.{suffix}"
                options = ["workload", "import", format_name, str(trace), "--out", str(out)]
                seconds, cpu_s, peak_mb = measure(
                    [sys.executable, "-c", "import ddlsched.cli; ddlsched.cli.main()", *options]
                )
                size_mb = trace.stat().st_size / 1e6
                say(f"{format_name} to {suffix}: {seconds:.1f} s")
                figures = (f"{seconds:.1f}", f"{cpu_s:.1f}", f"{peak_mb:,.0f}", f"{size_mb:,.0f}")
                measured.append((format_name, suffix, *figures))
    title = f"Importing a generated trace of {rows:,} rows, a process each"
    columns = ["format", "to", "wall, s", "processor, s", "peak MB", "trace, MB"]
    print(Table(title=title, columns=columns, rows=measured))
    if PHILLY.is_file():
        print(jobs_of_philly(PHILLY))


def jobs_of_philly(path: Path) -> str:
    begin = time.process_time()
    trace = import_trace("philly-csv", [path])
    imported = time.process_time()
    jobs = len(trace.workload)
    built_s = time.process_time() - imported
    return (
        f"{path.name}: {jobs:,} jobs read in {imported - begin:.1f} s, "
        f"Job objects built in {built_s:.1f} s of a processor"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    main(parser.parse_args().rows)
