"""What the rivals' decisions cost on a large Clos, and how that grows with jobs, GPUs and paths.

    python experiments/arena/scale.py                    2,048 GPUs, 5,000 jobs, 400 Gbit/s a GPU
    python experiments/arena/scale.py --growth           half and twice as many jobs, GPUs and core switches, too

A job is fifty long iterations, so that simulating the network is next to nothing: the seconds are those of decisions.
Printed, and written to OUT, are a rival's CPU seconds in all, its decisions in Python and the milliseconds of each,
with ``--growth`` also by which power they grow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from decisions import clocked
from grounds import Ground, fixed_size_job
from rivals import RIVALS, Rival

import ddlsched
from ddlsched.workload.generators.streams import LARGE_CLUSTER_GPUS, LARGE_CLUSTER_SHARES

ITERATIONS = 50
LOAD = 0.9


@dataclass(frozen=True, kw_only=True)
class Size:
    """Jobs, GPUs in servers of eight, and how many core switches each aggregation switch is on."""

    jobs: int = 5000
    gpus: int = 2048
    cores: int = 4

    @property
    def ground(self) -> Ground:
        """Return the Clos: racks of 8 servers, pods of 4 racks, 2:1 at each tier."""
        clos = (
            f"clos:servers_per_rack=8,racks_per_pod=4,rack_oversubscription=2,pod_oversubscription=2,cores={self.cores}"
        )
        return Ground(
            name="Clos",
            jobs="clos",
            servers=self.gpus // 8,
            gpus_per_server=8,
            topology=clos,
            per_rack=8,
            spines=16,
            restart_s=30.0,
            round_s=360.0,
            block_gpus=8,
        )


def jobs_of(size: Size, *, fixed_size: bool, seed: int = 1) -> ddlsched.Workload:
    """Return jobs of minutes to hours that arrive as fast as the GPUs can serve, times ``LOAD``."""
    rng = np.random.default_rng(seed)
    gpus = np.minimum(rng.choice(LARGE_CLUSTER_GPUS, size.jobs, p=LARGE_CLUSTER_SHARES), size.gpus // 4)
    run_s = np.exp(rng.uniform(np.log(120), np.log(14_400), size.jobs))
    arrivals_s = np.cumsum(rng.exponential(float((gpus * run_s).mean()) / (size.gpus * LOAD), size.jobs))
    message_bytes = rng.choice([1e9, 4e9, 13e9, 26e9], size.jobs)
    made = [
        ddlsched.Job(
            job_id=str(n),
            arrival_s=float(arrivals_s[n]),
            num_gpus=int(gpus[n]),
            iterations=ITERATIONS,
            iteration=ddlsched.DataParallelIteration(
                forward_s=float(run_s[n]) / ITERATIONS / 3,
                backward_s=float(run_s[n]) / ITERATIONS * 2 / 3,
                message_bytes=float(message_bytes[n]),
            ),
            gpu_memory_mb=1.0,
        )
        for n in range(size.jobs)
    ]
    return ddlsched.Workload.of([fixed_size_job(job) for job in made] if fixed_size else made)


def cost(rival: Rival, size: Size) -> dict[str, object]:
    """Simulate once; return CPU seconds in all, calls of the rival's Python, and milliseconds of CPU each."""
    workload = jobs_of(size, fixed_size=rival.allocates)
    begin_s = time.process_time()
    with clocked() as spent:
        result = ddlsched.simulate(workload, seed=1, **rival.options(size.ground))
    cpu_s = time.process_time() - begin_s
    calls, seconds = (sum(each[place] for each in spent.values()) for place in (0, 1))
    ended = int((result.jobs["state"] == "finished").sum())
    row = {"rival": rival.name, "jobs": size.jobs, "GPUs": size.gpus, "cores": size.cores, "ended": ended}
    return row | {"CPU s": cpu_s, "decisions": int(calls), "decisions s": seconds, "ms each": 1e3 * seconds / calls}


def sizes(size: Size, growth: bool) -> list[Size]:
    """Return the size, and with ``growth`` half and twice of each of what it has."""
    others = [
        replace(size, **{name: max(int(getattr(size, name) * factor), 1)})
        for name in ("jobs", "gpus", "cores")
        for factor in (0.5, 2)
    ]
    return [size, *(others if growth else [])]


def powers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the power of jobs, of GPUs and of core switches by which the seconds of decisions grow, a row a rival.

    From half to twice of one, the others as in the first row.
    """
    names = ["jobs", "GPUs", "cores"]
    first = rows.iloc[0]
    found = {}
    for name in names:
        others = [other for other in names if other != name]
        varied = rows[(rows[others] == first[others]).all(axis=1) & (rows[name] != first[name])]
        least, most = (varied[varied[name] == size].set_index("rival") for size in sorted(varied[name].unique()))
        ratio = most["decisions s"] / least["decisions s"]
        found[name] = np.log(ratio) / np.log(most[name] / least[name])
    return pd.DataFrame(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row as each run ends, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--gpus", type=int, default=2048)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[rival.name for rival in RIVALS], metavar="RIVAL")
    parser.add_argument("--out", type=Path, default=Path("results/arena/tables/scale.csv"), metavar="FILE")
    given = parser.parse_args(arguments)
    chosen = [rival for rival in RIVALS if given.only is None or rival.name in given.only]
    cost(chosen[0], Size(jobs=20, gpus=64))  # loads the compiled code
    rows = []
    for size in sizes(Size(jobs=given.jobs, gpus=given.gpus), given.growth):
        for rival in chosen:
            rows.append(cost(rival, size))
            print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()))
            sys.stdout.flush()
    if given.growth:
        print(powers(pd.DataFrame(rows)).to_string(float_format="{:.2f}".format))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(given.out, index=False, float_format="%.4g", lineterminator="\n")


if __name__ == "__main__":
    main()
