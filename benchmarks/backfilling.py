"""What placements that know the queue cost as it grows: CPU seconds of overloaded streams.

    python benchmarks/backfilling.py [--jobs 500 1000 2000 3000] [--load 1.5]

A stream of more work than 64 exclusive GPUs can do leaves a queue of about a third of its jobs behind. Each run is made
once before, short, so that nothing is compiled in the time that is printed.
"""

from __future__ import annotations

import argparse
import time

from ddlsched import simulate
from experiments.arena.steady_stream import CLUSTER, CONTENTION, steady_stream

PLACEMENTS = ("first-fit", "in-order", "easy-backfill", "conservative-backfill")


def cpu_s(placement: str, num_jobs: int, load: float) -> float:
    """Return the CPU seconds of a run, the engine's and its policies'."""
    workload = steady_stream(seed=1, num_jobs=num_jobs, load=load)
    begin = time.process_time()
    simulate(
        workload,
        CLUSTER,
        order="fifo",
        placement=placement,
        communication="bounded-overlap:limit=2",
        contention=CONTENTION,
    )
    return time.process_time() - begin


def main() -> None:
    """Print a table: a row a placement, a column a number of jobs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[500, 1000, 2000, 3000])
    parser.add_argument("--load", type=float, default=1.5)
    given = parser.parse_args()
    print(f"CPU seconds at load {given.load:g}, by number of jobs")
    print(f"{'placement':24}" + "".join(f"{count:>10,}" for count in given.jobs))
    for placement in PLACEMENTS:
        cpu_s(placement, 20, given.load)
        times = [cpu_s(placement, count, given.load) for count in given.jobs]
        print(f"{placement:24}" + "".join(f"{seconds:10.2f}" for seconds in times), flush=True)


if __name__ == "__main__":
    main()
