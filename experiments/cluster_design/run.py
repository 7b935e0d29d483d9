"""Which cluster to buy and which parallelism to run: Transformer-1T and DLRM, by COMET's rules and beyond them.

    python experiments/cluster_design/run.py [--out DIR]

Prints the tables and writes them to DIR/tables.
"""

from __future__ import annotations

import dataclasses
import sys

import author_run
import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.collectives import collective_s
from ddlsched.training.estimate.design_sweep import DesignSweep, design
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate
from experiments.commands import new_parser, write_tables

GPUS = 1024
BATCH = 1024
"""Sequences of a step: the slice's 128 of 1024 tokens on each of its 8 replicas."""
CLUSTERS = ("v100", "a6000", "a100-80", "h100")
COMET = DesignSweep(axes={"pipeline": (1,), "zero": (2,), "overlap": (1,)}, recompute=("full",))
"""What COMET chooses from: model x data parallelism, ZeRO 2, every layer recomputed, gradients reduced behind backward,
no pipeline."""
FREE = DesignSweep(axes={"zero": (0, 1), "sequence_parallel": (0, 1), "overlap": (1,)})
EXPANSION_GB = 10_000.0
BANDWIDTHS = (50, 100, 200, 500, 1000, 2000)
MODEL = MODELS["transformer-1t"]
DLRM = MODELS["dlrm-1.2t"]


def author_table() -> pd.DataFrame:
    """Return the author's run beside ours."""
    own_s, given_s = author_run.run_s(), author_run.run_s(author_run.MEASURED)
    group, times = author_run.MODEL_GROUP, author_run.Collectives()
    gemm_us = 1e6 * author_run.gemm_s(author_run.V100, 131_072, 24_576, 192)
    small_us = 1e6 * float(collective_s("all-reduce", 201_326_592, group))
    passes = author_run.PASSES
    rows = [
        ("V100 roofline, GEMM Q (us)", 9895.605, gemm_us),
        ("all-reduce 6 GiB on 16 x 8 (us)", 75_018.3, 1e6 * times.activations_s),
        ("all-reduce 201,326,592 B, same group (us)", 2345.4, small_us),
        ("all-gather 48 MiB per GPU (us)", 37_911.0, 1e6 * times.shards_s),
        ("weight-gradient all-reduce 9,437,184 B (us)", 1231.55, 1e6 * times.small_weights_s),
        ("10 passes, the two measured collectives given (ms)", 12_369.74458, 1e3 * passes * given_s),
        ("10 passes, all collectives our own (ms)", 12_369.74458, 1e3 * passes * own_s),
    ]
    table = pd.DataFrame(rows, columns=["quantity", "author's run", "ours"])
    return table.assign(difference=table["ours"] / table["author's run"] - 1)


def best(
    name: str, sweep: DesignSweep, *, expansion_gb_per_s: float | None = None, gpus: int = GPUS
) -> pd.Series | None:
    """Return the fastest configuration that fits, None if none does."""
    plan = parse_cluster(name, efficiency="ideal")
    if expansion_gb_per_s is not None:
        plan = dataclasses.replace(plan, expansion_gb=EXPANSION_GB, expansion_gb_per_s=expansion_gb_per_s)
    table = design(MODEL, plan, num_gpus=gpus, global_batch=BATCH, sweep=sweep)
    return table.iloc[0] if table["fits"].any() else None


def _row(name: str, found: pd.Series | None, **more: object) -> dict[str, object]:
    if found is None:
        return {"cluster": name, **more, "step_s": np.nan}
    return {"cluster": name, **more} | found[["tensor", "pipeline", "data", "step_s", "memory_gb", "mfu"]].to_dict()


def cluster_table() -> pd.DataFrame:
    """Return the best step of each cluster: with its own memory, with expansion, and if memory were no limit."""
    rows = []
    for name in CLUSTERS:
        own = best(name, COMET)
        rows.append(_row(name, own, memory="own"))
        rows += [
            _row(name, best(name, COMET, expansion_gb_per_s=bandwidth), memory=f"+ {bandwidth} GB/s")
            for bandwidth in BANDWIDTHS
        ]
        unlimited = parse_cluster(f"{name}:memory_gb=1e9", efficiency="ideal")
        table = design(MODEL, unlimited, num_gpus=GPUS, global_batch=BATCH, sweep=COMET)
        rows.append(_row(name, table.iloc[0], memory="unlimited"))
    return pd.DataFrame(rows)


def headline_table(clusters: pd.DataFrame) -> pd.DataFrame:
    """Return the abstract's two factors beside those of the model, by how they are read."""
    step = clusters.set_index(["cluster", "memory"])["step_s"]
    rows = [
        ("7.7", "V100 against H100, memory no limit", step["v100", "unlimited"] / step["h100", "unlimited"]),
        ("7.7", "V100 against H100, both + 500 GB/s", step["v100", "+ 500 GB/s"] / step["h100", "+ 500 GB/s"]),
        ("7.7", "V100 against H100, both + 1000 GB/s", step["v100", "+ 1000 GB/s"] / step["h100", "+ 1000 GB/s"]),
        ("1.4", "A100 own memory against + 100 GB/s", step["a100-80", "own"] / step["a100-80", "+ 100 GB/s"]),
        ("1.4", "A100 own memory against + 200 GB/s", step["a100-80", "own"] / step["a100-80", "+ 200 GB/s"]),
        ("1.4", "A100 own memory against + 500 GB/s", step["a100-80", "own"] / step["a100-80", "+ 500 GB/s"]),
        ("1.4", "H100 own memory against + 200 GB/s", step["h100", "own"] / step["h100", "+ 200 GB/s"]),
    ]
    crossings = [
        ("1.4", f"{name} own memory: bandwidth of expansion at which it is 1.4 (GB/s)", crossing_gb_per_s(name, 1.4))
        for name in ("a100-80", "h100")
    ]
    return pd.DataFrame(rows + crossings, columns=["abstract", "reading", "factor"])


def crossing_gb_per_s(name: str, factor: float) -> float:
    """Return the bandwidth of memory expansion, GB/s, from which on it makes a cluster so many times as fast."""
    own = best(name, COMET)
    if own is None:
        raise ValueError(f"{MODEL} fits no parallelism on {name} without expansion")

    def gain(bandwidth: float) -> float:
        found = best(name, COMET, expansion_gb_per_s=bandwidth)
        return float(own["step_s"] / found["step_s"]) - factor if found is not None else -factor

    return float(brentq(gain, min(BANDWIDTHS), max(BANDWIDTHS), xtol=0.001))


def pipeline_table() -> pd.DataFrame:
    """Return what pipeline parallelism, and free choice of ZeRO, recomputation and overlap, change."""
    alone = DesignSweep(axes={"zero": (2,), "overlap": (1,)}, recompute=("full",))
    rows = []
    for name in ("a100-80", "h100"):
        for what, sweep in (
            ("COMET's choice", COMET),
            ("+ pipeline", alone),
            ("+ ZeRO 0 or 1, recompute, sequence", FREE),
        ):
            rows.append(_row(name, best(name, sweep), choice=what))
    return pd.DataFrame(rows)


def cost_table() -> pd.DataFrame:
    """Return every cluster and size with all parallelism, with time, energy and cost of a step."""
    tables = []
    for name in ("v100", "a100-80", "h100", "b200"):
        for gpus in (256, 512, 1024, 2048):
            plan = parse_cluster(name, efficiency="megatron")  # one for all, so that data sheets decide
            table = design(MODEL, plan, num_gpus=gpus, global_batch=2048, sweep=FREE)
            tables.append(table.assign(cluster=name, gpus=gpus))
    return pd.concat(tables, ignore_index=True)


def worth_table(costs: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest plan of each cluster and size, and what its GPU-hours are worth, whatever GPUs are rented for.

    ``worth`` is how often an A100's price a GPU may have for its cheapest step to cost what the A100s' cheapest costs.
    """
    fitting = costs[costs["fits"]]
    fastest = fitting.loc[fitting.groupby(["cluster", "gpus"], sort=False)["step_s"].idxmin()]
    hours = fastest["step_s"] * fastest["gpus"] / 3600
    least = hours.groupby(fastest["cluster"]).transform("min")
    worth = hours[fastest["cluster"] == "a100-80"].min() / least
    columns = ["cluster", "gpus", "tensor", "pipeline", "data", "recompute", "step_s", "energy_j", "mfu"]
    return fastest[columns].assign(gpu_hours=hours, worth=worth)


def dlrm_table() -> pd.DataFrame:
    """Return DLRM on few or many GPUs: what does not fit in their memory is in expansion memory, 500 GB/s a GPU."""
    rows = []
    for name in ("v100", "a100-80", "h100"):
        for gpus in (8, 16, 32, 64, 128, 256):
            plan = parse_cluster(f"{name}:expansion_gb={EXPANSION_GB},expansion_gb_per_s=500", efficiency="ideal")
            parallelism = Parallelism(data=gpus, micro_batch=65_536 // gpus, global_batch=65_536, overlap=True)
            machine = plan.machine(gpus)
            found = estimate(DLRM, parallelism, machine)
            beyond_gb = max(0.0, float(found.memory.total_bytes - machine.gpu.memory_bytes) / 1e9)
            rows.append(
                {
                    "cluster": name,
                    "gpus": gpus,
                    "step_ms": 1e3 * float(found.step_s),
                    "compute_ms": 1e3 * float(found.compute_s),
                    "exposed_ms": 1e3 * float(found.tensor_s + found.data_s),
                    "offload_ms": 1e3 * float(found.offload_s),
                    "beyond_own_memory_gb": beyond_gb,
                    "energy_j": float(found.energy_j),
                    "gpu_seconds": gpus * float(found.step_s),
                }
            )
    return pd.DataFrame(rows)


def main() -> int:
    """Compute, print, write."""
    out = new_parser(__doc__, "cluster_design").parse_args().out
    clusters = cluster_table()
    tables = {
        "author_run": author_table(),
        "clusters": clusters,
        "headlines": headline_table(clusters),
        "pipeline": pipeline_table(),
        "worth": worth_table(cost_table()),
        "dlrm": dlrm_table(),
    }
    write_tables(out / "tables", tables, float_format="%.6g")
    for name, table in tables.items():
        form = "{:.9g}" if name == "author_run" else "{:.4g}"
        print(f"## {name}\n\n{table.to_string(index=False, float_format=form.format, na_rep='-')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
