"""Simulates recorded jobs and compares with what was measured: ``run.py [--recordings DIR] [--out DIR]``.

Prints tables: iterations of jobs recorded alone, the bucket size of the GPT swept, jobs that shared the testbed's
network if they were recorded (``record.py --together``), and Chakra traces beside ASTRA-sim. With ``--out`` the tables
are written as CSV.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import astra_sim
import pandas as pd
import together
from measured import (
    ALONE_ON_TESTBED,
    ON_GPU,
    RECORDINGS,
    TOGETHER,
    UNRECORDED,
    Line,
    collective_s,
    fitted,
    iteration_s,
    line_s,
    longest_s,
    part,
    replayed_s,
    traces,
    walls_s,
)
from rebucketed import rebucketed
from shared_processors import played_s, undisturbed

import ddlsched
from ddlsched.network.contention import MaxMin
from ddlsched.training.recorded.alone import variation
from ddlsched.training.recorded.merging import RecordedIteration, merged
from ddlsched.training.recorded.rank_steps import MarkKind
from ddlsched.workload.dag import IterationDag
from experiments.commands import PUBLIC_DATA, write_tables

JOBS = ("cnn", "gpt", "recommender")
GPU_JOBS = (*JOBS, "resnet")
SWEPT_MB = (0.5, 1, 4, 25)
ITERATIONS = 20
SAMPLES = PUBLIC_DATA / "training_traces" / "chakra_synthetic"
MIB = 1 << 20


def simulated_s(dag: IterationDag, network: Line) -> float:
    """Return the time of an iteration of two ranks alone, seconds."""
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=2, iterations=ITERATIONS, iteration=dag, gpu_memory_mb=1)
    contention = MaxMin(latency_s=network.latency_s, per_byte_s=max(network.per_byte_s, 1e-15))
    # The memory of a machine, over which its ranks talk, is faster than the default's card.
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=1, topology="star:nic_gbps=1000")
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement="first-fit", contention=contention)
    return float(result.summary()["makespan_s"]) / ITERATIONS


def alone(folder: Path, names: Sequence[str] = JOBS) -> list[dict[str, object]]:
    """Return a row a job.

    Simulated from all of its steps; from every second one, against the others; and replayed step by step, computation
    as long as it took in that step: with collectives as the fitted network has them, and as long as they took, which
    leaves the rules of the job as the only difference. What is replayed begins at the rank that begins first, so it is
    compared with the longest rank of each step.
    """
    rows: list[dict[str, object]] = []
    for name in names:
        ranks = traces(name, folder)
        recorded, network, measured_s = merged(ranks), fitted([ranks]), iteration_s(ranks)
        here_s = simulated_s(recorded.dag, network)
        odd, even = part(ranks, odd=True), part(ranks, odd=False)
        apart = simulated_s(merged(odd).dag, fitted([odd])) / iteration_s(even) - 1
        replayed, longest = replayed_s(ranks, collective_s(ranks)).mean(), longest_s(ranks).mean()
        rows.append(
            {
                "job": name,
                "steps": recorded.steps,
                "tasks": len(recorded.dag.tasks),
                "measured_ms": 1e3 * measured_s,
                "standard_deviation_ms": 1e3 * walls_s(ranks).std(),
                "computing_ms": recorded.dag.compute_ns / 1e6,
                "simulated_ms": 1e3 * here_s,
                "off_percent": 100 * (here_s / measured_s - 1),
                "off_from_other_steps_percent": 100 * apart,
                "longest_rank_ms": 1e3 * longest,
                "own_computing_ms": 1e3 * replayed_s(ranks, line_s(ranks, network)).mean(),
                "replayed_ms": 1e3 * replayed,
                "replayed_off_percent": 100 * (replayed / longest - 1),
                "latency_ms": 1e3 * network.latency_s,
                "ns_per_byte": 1e9 * network.per_byte_s,
            }
        )
    return rows


def beside_unrecorded(folder: Path) -> pd.DataFrame:
    """Return a row a job, with what its steps took in turn with the recorded ones that nobody recorded."""
    took_ms = pd.read_csv(folder / UNRECORDED).groupby("job")["unrecorded_ms"].agg(["mean", "min", "max"])
    table = pd.DataFrame(alone(folder, GPU_JOBS)).join(took_ms.add_prefix("unrecorded_ms_"), on="job")
    told = [variation(merged(traces(name, folder)))["lengthening"] for name in GPU_JOBS]
    table["longer_percent"] = 100 * (table["measured_ms"] / table["unrecorded_ms_mean"] - 1)
    table["told_longer_percent"] = [100 * share for share in told]
    table["off_from_unrecorded_percent"] = 100 * (table["simulated_ms"] / table["unrecorded_ms_mean"] - 1)
    return table


def swept(folder: Path) -> list[dict[str, object]]:
    """Return a row a bucket size: measured, simulated from its own recording, and foretold from the smallest one's.

    Foretold with the processors shared between computing and sending, and as if each had its own.
    """
    finest = traces(f"gpt-{SWEPT_MB[0]:g}mb", folder)
    alone, network = undisturbed(finest)
    fine, apart, apart_network = merged(alone).dag, merged(finest).dag, fitted([finest])
    rows: list[dict[str, object]] = []
    for size_mb in SWEPT_MB:
        ranks = traces(f"gpt-{size_mb:g}mb", folder)
        recorded, measured_s = merged(ranks), iteration_s(ranks)
        here_s = simulated_s(recorded.dag, fitted([ranks]))
        foretold_s = played_s(rebucketed(fine, size_mb * MIB), network)
        rows.append(
            {
                "bucket_mb": size_mb,
                "buckets": len(recorded.last.communications),
                "measured_ms": 1e3 * measured_s,
                "standard_deviation_ms": 1e3 * walls_s(ranks).std(),
                "simulated_ms": 1e3 * here_s,
                "off_percent": 100 * (here_s / measured_s - 1),
                "backward_ms": _backward_ns(recorded) / 1e6,
                "foretold_ms": 1e3 * foretold_s,
                "foretold_off_percent": 100 * (foretold_s / measured_s - 1),
                "own_processors_ms": 1e3 * simulated_s(rebucketed(apart, size_mb * MIB), apart_network),
            }
        )
    return rows


def _backward_ns(recorded: RecordedIteration) -> float:
    """Return the mean compute time of the backward pass."""
    begins = {mark.what: place for place, mark in enumerate(recorded.last.marks) if mark.kind is MarkKind.PHASE}
    return fmean(at[begins["optimizer"]] - at[begins["backward"]] for at in recorded.moments_ns)


def on_testbed(folder: Path) -> list[dict[str, object]]:
    """Return a row a job and model: alone on the testbed, and beside the others, foretold from recordings alone."""
    own = {name: traces(name, folder / ALONE_ON_TESTBED) for name in JOBS}
    shared = together.at_once({name: traces(name, folder / TOGETHER) for name in JOBS})
    dags, network = {name: merged(ranks).dag for name, ranks in own.items()}, fitted(own.values())
    steps = {name: len(ranks[0].steps) for name, ranks in shared.items()}
    rows: list[dict[str, object]] = []
    for model, contention in together.models(network).items():
        foretold_s = together.beside_s(dags, steps, contention)
        for name in JOBS:
            alone_s, shared_s, walls = iteration_s(own[name]), iteration_s(shared[name]), longest_s(shared[name])
            here_s = together.simulated_s({name: dags[name]}, steps, contention)[name]
            rows.append(
                {
                    "job": name,
                    "model": model,
                    "alone_ms": 1e3 * alone_s,
                    "simulated_alone_ms": 1e3 * here_s,
                    "off_alone_percent": 100 * (here_s / alone_s - 1),
                    "steps": steps[name],
                    "together_ms": 1e3 * shared_s,
                    "standard_error_percent": 100 * walls.std(ddof=1) / math.sqrt(steps[name]) / shared_s,
                    "simulated_ms": 1e3 * foretold_s[name],
                    "off_percent": 100 * (foretold_s[name] / shared_s - 1),
                }
            )
    return rows


def beside_astra_sim() -> list[dict[str, object]]:
    """Return a row a trace, where its files are, and a row a kind of collective."""
    of_ring = astra_sim.ring_traces(SAMPLES) if SAMPLES.is_dir() else []
    found = [*of_ring, *astra_sim.torus_traces(), *astra_sim.collectives()]
    return [
        {
            "what": row.what,
            "simulated_ms": row.simulated_ms,
            "astra_sim_ms": row.astra_sim_ms,
            "off_percent": 100 * row.off,
        }
        for row in found
    ]


def main() -> None:
    """Print the tables and, if asked for, write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for tables")
    given = parser.parse_args()
    folder, out = given.recordings, given.out
    found = {"alone": alone(folder), "buckets": swept(folder), "astra_sim": beside_astra_sim()}
    if (folder / TOGETHER).is_dir():
        found["together"] = on_testbed(folder)
    tables = {name: pd.DataFrame(rows) for name, rows in found.items()}
    if (folder / ON_GPU).is_dir():
        tables["gpu"] = beside_unrecorded(folder / ON_GPU)
    for name, table in tables.items():
        print(f"{name}\n{table.round(3).to_string(index=False)}\n")
    if out is not None:
        write_tables(out, tables, float_format="%.3f")


if __name__ == "__main__":
    main()
