"""Seconds and peak memory of importing a generated trace of a million rows, or nodes, a process each.

``trace_import.py [--rows N] [--only FORMAT]`` prints a table. The memory is the peak resident set (``ru_maxrss``) of a
child process that runs ``ddlsched workload import``, or ``import-training`` for Chakra's nodes, and nothing else;
reading the file back is not counted.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import typer
from benchmark_tables import DDLSCHED, Table, command_costs, say

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from chakra_files import large_trace

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
CHAKRA = "chakra"
Format = Literal["philly-csv", "microsoft-itp", "philly", "batsim", "chakra"]


def generate(path: Path, format_name: str, rows: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in GENERATORS[format_name](rows, random.Random(SEED)))
    return path


def main(rows: int = 1_000_000, only: Format | None = None) -> None:
    """Print the table."""
    measured = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for format_name in [only] if only else [*GENERATORS, CHAKRA]:
            if format_name == CHAKRA:
                trace = large_trace(folder / "large.0.et", rows)
                command, suffixes = ["import-training", str(trace), "--gpus", "8"], ("json",)
            else:
                trace = generate(folder / "trace", format_name, rows)
                command, suffixes = ["workload", "import", format_name, str(trace)], ("csv", "parquet")
            for suffix in suffixes:
                out = ["--out", str(folder / f"jobs.{suffix}")]
                seconds, cpu_s, peak_mb = command_costs([*DDLSCHED, *command, *out])
                say(f"{format_name} to {suffix}: {seconds:.1f} s")
                figures = (seconds, cpu_s, round(peak_mb), round(trace.stat().st_size / 1e6))
                measured.append((format_name, suffix, *figures))
    title = f"Importing a generated trace of {rows:,} rows, a process each"
    columns = ["format", "to", "wall, s", "processor, s", "peak MB", "trace, MB"]
    print(Table(title=title, columns=columns, rows=measured))


if __name__ == "__main__":
    typer.run(main)
