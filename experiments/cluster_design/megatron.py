"""Megatron-LM's published times against the model: the eight that its efficiency is fitted to, and ten others.

    python experiments/cluster_design/megatron.py [--out FILE]

Prints the rows and errors; ``--out`` writes the errors' means and largest as CSV (``expected/megatron.csv``).

Published: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, on A100s:
full recomputation without, and selective recomputation with sequence parallelism. The ten others: Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, Table 1, typed in and
compared with three copies of the table, which agree.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from fitting import Prior, fit_constants

from ddlsched.training.estimate.hardware import Efficiency, Machine
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import A100_NODE_TIERS, EFFICIENCIES, GPUS, MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

CALCULON = {"mean": 3.65, "max": 8.87}
"""Error of Calculon (Isaev et al., SC 2023) on the same eight, %."""

BETWEEN_NODES = A100_NODE_TIERS[1]._replace(bytes_per_s=20e9)
"""Selene: a 200 Gbit/s card a GPU, of which 0.8 are assumed to arrive."""

PRIORS = {"matrix": Prior(0.8, 1.0), "memory": Prior(0.8, 1.0)}
"""So wide that the eight times decide."""


class Published(NamedTuple):
    """A row of the paper's table: the plan, and seconds by recomputation."""

    model: str
    gpus: int
    pipeline: int
    interleave: int
    micro_batch: int
    global_batch: int
    seconds: Mapping[str, float]


PUBLISHED = (
    Published("megatron-22b", 8, 1, 1, 4, 4, {"full": 1.42, "selective": 1.10}),
    Published("megatron-175b", 64, 8, 3, 1, 64, {"full": 18.13, "selective": 13.75}),
    Published("megatron-530b", 280, 35, 3, 1, 280, {"full": 49.05, "selective": 37.83}),
    Published("megatron-1t", 512, 64, 1, 1, 512, {"full": 94.42, "selective": 71.49}),
)


class Throughput(NamedTuple):
    """A row of the table of SC 2021: sizes, plan, and TFLOP/s of each GPU, recomputation counted."""

    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    gpus: int
    global_batch: int
    tera: float


WEAK_SCALING = (
    Throughput(24, 2304, 24, 1, 1, 32, 512, 137),
    Throughput(32, 3072, 30, 2, 1, 64, 512, 138),
    Throughput(32, 4096, 36, 4, 1, 128, 512, 142),
    Throughput(48, 6144, 40, 8, 1, 256, 1024, 135),
    Throughput(64, 8192, 48, 8, 2, 512, 1536, 138),
    Throughput(80, 10240, 60, 8, 4, 1024, 1792, 140),
    Throughput(96, 12288, 80, 8, 8, 1536, 2304, 148),
    Throughput(128, 16384, 96, 8, 16, 1920, 2160, 155),
    Throughput(128, 20480, 105, 8, 35, 2520, 2520, 163),
    Throughput(160, 25600, 128, 8, 64, 3072, 3072, 163),
)
SEQUENCE, VOCABULARY = 2048, 51_200


def nodes(gpus: int, efficiency: Efficiency) -> Machine:
    """Return Selene's nodes of eight A100s."""
    tiers = A100_NODE_TIERS[0], BETWEEN_NODES._replace(size=gpus // 8)
    return Machine(gpu=GPUS["a100-80"], tiers=tiers).with_efficiency(efficiency)


def predicted_tera(row: Throughput, efficiency: Efficiency) -> float:
    """Return TFLOP/s of each GPU by the paper's formula, at the best micro-batch that fits (the paper gives none)."""
    h, s, layers = row.hidden, SEQUENCE, row.layers
    model = Transformer(num_layers=layers, hidden=h, heads=row.heads, sequence=s, vocabulary=VOCABULARY)
    plan = Parallelism(
        tensor=row.tensor,
        pipeline=row.pipeline,
        data=row.gpus // (row.tensor * row.pipeline),
        global_batch=row.global_batch,
        recompute="full",
    )
    flops = 96 * row.global_batch * s * layers * h**2 * (1 + s / (6 * h) + VOCABULARY / (16 * layers * h))
    steps = []
    for micro_batch in (1, 2, 4, 8, 16):
        if row.global_batch % (plan.data * micro_batch) == 0:
            found = estimate_checked(
                model, dataclasses.replace(plan, micro_batch=micro_batch), nodes(row.gpus, efficiency)
            )
            steps += [float(found.step_s)] if found.fits else []
    return float(flops / (min(steps) * row.gpus) / 1e12)


def predicted_s(row: Published, recompute: str, efficiency: Efficiency) -> float:
    """Return the step of a row, seconds."""
    plan = Parallelism(
        tensor=8,
        pipeline=row.pipeline,
        interleave=row.interleave,
        micro_batch=row.micro_batch,
        global_batch=row.global_batch,
        recompute="full" if recompute == "full" else "selective",
        sequence_parallel=recompute == "selective",
    )
    return float(estimate_checked(MODELS[row.model], plan, nodes(row.gpus, efficiency)).step_s)


def errors(efficiency: Efficiency) -> dict[tuple[str, str], float]:
    """Return predicted over published times, less 1, by model and recomputation."""
    return {
        (row.model, recompute): predicted_s(row, recompute, efficiency) / seconds - 1
        for row in PUBLISHED
        for recompute, seconds in row.seconds.items()
    }


def fit() -> Efficiency:
    """Return the efficiency fitted to the eight: shares of the peak and of the memory's bandwidth."""
    fixed = EFFICIENCIES["megatron"]

    def efficiency(values: Mapping[str, float]) -> Efficiency:
        return Efficiency(**{**vars(fixed), **values})

    found = fit_constants(lambda values: np.log1p(list(errors(efficiency(values)).values())), PRIORS)
    return efficiency(found)


def throughput_errors(efficiency: Efficiency) -> list[float]:
    """Return predicted over published throughputs of the ten others, less 1."""
    return [predicted_tera(row, efficiency) / row.tera - 1 for row in WEAK_SCALING]


def summary() -> pd.DataFrame:
    """Return the mean and the largest error of the shipped efficiency, as shares, of the eight and of the ten."""
    shipped = EFFICIENCIES["megatron"]
    sizes = {
        "eight, to which two constants were fitted": np.abs(list(errors(shipped).values())),
        "ten, not fitted": np.abs(throughput_errors(shipped)),
    }
    return pd.DataFrame([{"rows": name, "mean": of.mean(), "max": of.max()} for name, of in sizes.items()])


def main() -> int:
    """Print the eight times and errors, as shipped, as fitted, and of the efficiency fitted to other rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE")
    out = parser.parse_args().out
    shipped = EFFICIENCIES["megatron"]
    found = errors(shipped)
    for row in PUBLISHED:
        for recompute, seconds in row.seconds.items():
            predicted = predicted_s(row, recompute, shipped)
            error = found[row.model, recompute]
            print(
                f"{row.model:14} {recompute:10} {seconds:6.2f} s published {predicted:6.2f} s predicted {error:+7.2%}"
            )
    for name, efficiency in (("shipped", shipped), ("fitted", fit()), ("eager (other rows)", EFFICIENCIES["eager"])):
        sizes = 100 * np.abs(list(errors(efficiency).values()))
        print(f"{name:18} mean {sizes.mean():5.2f} %, max {sizes.max():5.2f} %   {efficiency}")
    print(f"{'Calculon':18} mean {CALCULON['mean']:5.2f} %, max {CALCULON['max']:5.2f} %")
    print("\nTen others, not fitted (TFLOP/s of a GPU, recomputation counted):")
    differences = throughput_errors(shipped)
    for other, difference in zip(WEAK_SCALING, differences, strict=True):
        tera = other.tera * (1 + difference)
        print(f"{other.gpus:5} GPUs {other.tera:6.0f} published {tera:6.1f} predicted {difference:+7.2%}")
    sizes = 100 * np.abs(differences)
    print(f"{'shipped':18} mean {sizes.mean():5.2f} %, max {sizes.max():5.2f} %")
    if out is not None:
        summary().to_csv(out, index=False, float_format="%.6g", lineterminator="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
