"""Seconds and peak memory of importing a generated trace of a million rows, one process a format and output.

``trace_import.py [--rows N]`` prints a table. The memory is the peak resident set (``ru_maxrss``) of a child process
that runs ``ddlsched workload import`` and nothing else; reading the file back is not counted.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from benchmark_tables import DDLSCHED, Table, command_costs, say

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


def main(rows: int) -> None:
    measured = []
    with tempfile.TemporaryDirectory() as name:
        for format_name in GENERATORS:
            trace = Path(name) / "trace"
            generate(trace, format_name, rows)
            for suffix in ("csv", "parquet"):
                out = Path(name) / f"jobs.{suffix}"
                options = ["workload", "import", format_name, str(trace), "--out", str(out)]
                seconds, cpu_s, peak_mb = command_costs([*DDLSCHED, *options])
                size_mb = trace.stat().st_size / 1e6
                say(f"{format_name} to {suffix}: {seconds:.1f} s")
                figures = (f"{seconds:.1f}", f"{cpu_s:.1f}", f"{peak_mb:,.0f}", f"{size_mb:,.0f}")
                measured.append((format_name, suffix, *figures))
    title = f"Importing a generated trace of {rows:,} rows, a process each"
    columns = ["format", "to", "wall, s", "processor, s", "peak MB", "trace, MB"]
    print(Table(title=title, columns=columns, rows=measured))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    main(parser.parse_args().rows)
