"""Muri's grouping and Sia's programme beside ours, decision by decision, on drawn cases: their own code is run.

    python tests/rivals/their_code.py --muri Muri/simulator --sia artifacts/sia-simulator

The artifacts are Rivendile/Muri @ 4e69a78 and siasosp23/artifacts @ aaf7a0d; ``sia_trace.py`` says what Sia's needs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
from sia_trace import its_modules

from algorithms.allocation.sia import Configuration, best_configurations, configurations
from algorithms.placement.muri import grouped, period_s
from algorithms.solving import Solver
from ddlsched.cli.reporting import reported
from ddlsched.errors import InputError
from experiments.commands import PUBLIC_DATA

PER_SERVER = 4
"""GPUs of a server in the cases of Sia."""
QUEUE_PRICE, POWER = 1.1, -0.5


def muris_matching(folder: Path) -> ModuleType:
    """Return the module of Muri's simulator that matches jobs, with four resources.

    Raises
    ------
    InputError
        It is not in the folder.
    """
    if not (folder / "matching.py").is_file():
        raise InputError(
            f"--muri: {folder} has no matching.py; expected the folder simulator of github.com/Rivendile/Muri"
        )
    sys.path.insert(0, str(folder.resolve()))
    given, sys.argv = sys.argv, ["matching", "--multi_resource=4"]
    try:
        found = import_module("matching")
    finally:
        sys.argv = given
    found.FLAGS = SimpleNamespace(multi_resource=4, packing_num=4, weight_lbd=0.0)  # type: ignore[attr-defined]
    return found


def muris_cases(matching: ModuleType, trace: Path, cases: int) -> dict[str, object]:
    """Return how many cases of 4 to 12 jobs on one place have the same groups, and how far apart periods are."""
    rng, same, farthest = np.random.default_rng(0), 0, 0.0
    columns = [f"resource_time_{number}" for number in range(3)]
    profiled = pd.read_csv(trace)[columns].astype(float).to_numpy()
    for case in range(cases):
        count = int(rng.integers(4, 13))
        picked = rng.integers(len(profiled), size=count)
        times = [
            tuple(rng.permutation([*profiled[row], rng.uniform(0, 50)]) if case % 2 else rng.uniform(1, 100, 4))
            for row in picked
        ]
        farthest = max(farthest, _periods_apart(matching, times, rng))
        packed = matching._Blossom_Same().run({1: [_its_muri_job(n, t) for n, t in enumerate(times)]}, 1)[1]
        theirs = sorted(tuple(sorted(job.job_idx for job in group.packing_jobs)) for group in packed)
        same += theirs == sorted(grouped(times, [1] * count, 1, 4, 4))
    return {"rival": "Muri", "cases": cases, "same": same, "farthest": farthest}


def _periods_apart(matching: ModuleType, times: list[tuple[float, ...]], rng: np.random.Generator) -> float:
    """Return by which part the periods of a drawn group of 2, 3 and 4 of the jobs differ at most."""
    apart = []
    for size in (2, 3, 4):
        picked = rng.choice(len(times), size, replace=False)
        first, *others = (matching._Packing(_its_muri_job(int(n), times[n])) for n in picked)
        for other in others:
            first.add_job(other)
        theirs = first.calc_iteration_time()
        apart.append(abs(period_s([times[n] for n in picked]) - theirs) / theirs)
    return max(apart)


def _its_muri_job(number: int, times: tuple[float, ...]) -> dict[str, object]:
    return {
        "num_gpu": 1,
        "resource_time": list(times),
        "job_idx": number,
        "iteration_time": sum(times),
        "sort_val": number,
    }


def sias_cases(sia: ModuleType, cases: int) -> dict[str, object]:
    """Return how many programmes of 2 to 14 jobs on 1 to 3 kinds have the same optimum, and how far they are apart."""
    rng, apart = np.random.default_rng(0), []
    for _ in range(cases):
        servers = [int(rng.integers(1, 5)) for _ in range(int(rng.integers(1, 4)))]
        jobs = int(rng.integers(2, 15))
        known = [
            Configuration(kind, n) for kind, count in enumerate(servers) for n in configurations(count, PER_SERVER)
        ]
        speed = np.exp(rng.uniform(0, 1.5, (jobs, len(servers))))
        goodputs = np.array(
            [[speed[j, c.kind] * c.num_gpus ** float(rng.uniform(0.5, 1)) for c in known] for j in range(jobs)]
        )
        goodputs /= goodputs.min(axis=1, keepdims=True)
        price = {c: np.round(goodputs[:, place] ** POWER, 2) for place, c in enumerate(known)}
        theirs, ours = (
            sum(QUEUE_PRICE if c is None else price[c][j] for j, c in enumerate(found))
            for found in (_its_choice(sia, goodputs, known, servers), _our_choice(goodputs, known, servers))
        )
        apart.append(abs(ours - theirs) / abs(theirs))
    return {"rival": "Sia", "cases": cases, "same": int(np.sum(np.array(apart) < 1e-6)), "farthest": max(apart)}


def _our_choice(goodputs: np.ndarray, known: list[Configuration], servers: list[int]) -> list[Configuration | None]:
    solver = Solver("their_code", 10.0)
    of_jobs = [dict(zip(known, row.tolist(), strict=True)) for row in goodputs]
    workers = [PER_SERVER * count for count in servers]
    found = best_configurations(of_jobs, workers, power=POWER, queue_price=QUEUE_PRICE, solver=solver)
    return found or [None] * len(goodputs)


def _its_choice(
    sia: ModuleType, goodputs: np.ndarray, known: list[Configuration], servers: list[int]
) -> list[Configuration | None]:
    kinds, jobs = range(len(servers)), [str(number) for number in range(len(goodputs))]
    with contextlib.redirect_stdout(io.StringIO()):
        policy = sia.SiaPolicy(p_fairness=POWER, lambda_n=QUEUE_PRICE, lambda_a=0.01)
        policy.cluster_ordering = [str(kind) for kind in kinds]
        policy.idx_to_config_map = {place: (str(c.kind), 1, c.num_gpus) for place, c in enumerate(known)}
        policy.cluster_ngpus_per_node = {str(kind): PER_SERVER for kind in kinds}
        policy.adaptive_reduce_matrix = np.array([[c.num_gpus * (c.kind == kind) for kind in kinds] for c in known])
        policy.cluster_total_gpus_ndarray = np.array([PER_SERVER * count for count in servers])
        none = np.zeros((0, len(servers)))
        given = {
            "rigid": ([], none, np.zeros((0, 1)), np.zeros(0)),
            "adaptive": (jobs, goodputs.copy(), np.ones(len(jobs))),
        }
        solve = policy._SiaPolicy__solve_mip_rescaled
        found, _ = solve(given, None, np.ones((1, len(jobs))), {"rigid": [], "adaptive": []})
    return [None if found[job] is None else Configuration(int(found[job][0]), found[job][1][1]) for job in jobs]


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muri", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sia", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", type=Path, default=PUBLIC_DATA / "traces" / "muri-sigcomm22", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("results/rivals/their_code.csv"), metavar="FILE")
    given = parser.parse_args()
    rows = [
        muris_cases(muris_matching(given.muri), given.data / "trace1.csv", 40),
        sias_cases(its_modules(given.sia)["sia"], 60),
    ]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out, index=False, float_format="%.3g", lineterminator="\n")


if __name__ == "__main__":
    with reported():
        main()
