"""Megatron-LM's eight published step times against the model with one efficiency for all.

    python experiments/cluster_design/megatron.py

Published: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, on A100s:
full recomputation without, and selective recomputation with sequence parallelism.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ddlsched.performance.estimate import estimate_checked
from ddlsched.performance.fitting import Prior, fit_constants
from ddlsched.performance.hardware import Efficiency, Machine, Tier
from ddlsched.performance.parallelism import Parallelism
from ddlsched.performance.presets import A100_NODE_TIERS, EFFICIENCIES, GPUS, MODELS

CALCULON = {"mean": 3.65, "max": 8.87}
"""Error of Calculon (Isaev et al., SC 2023) on the same eight, %."""

BETWEEN_NODES = Tier(size=1, bytes_per_s=20e9, latency_s=10e-6)
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


def predicted_s(row: Published, recompute: str, efficiency: Efficiency) -> float:
    """Return the step of a row, seconds."""
    inside = A100_NODE_TIERS[0]
    nodes = Tier(size=row.gpus // 8, bytes_per_s=BETWEEN_NODES.bytes_per_s, latency_s=BETWEEN_NODES.latency_s)
    machine = Machine(gpu=GPUS["a100-80"], tiers=(inside, nodes)).with_efficiency(efficiency)
    plan = Parallelism(
        tensor=8,
        pipeline=row.pipeline,
        interleave=row.interleave,
        micro_batch=row.micro_batch,
        global_batch=row.global_batch,
        recompute="full" if recompute == "full" else "selective",
        sequence_parallel=recompute == "selective",
    )
    return float(estimate_checked(MODELS[row.model], plan, machine).step_s)


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


def main() -> int:
    """Print the eight times and errors, as shipped, as fitted, and of the efficiency fitted to other rows."""
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
