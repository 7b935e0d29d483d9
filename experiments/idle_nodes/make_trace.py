"""Makes the idle nodes and training jobs that ship with the experiment, from a seed.

python experiments/idle_nodes/make_trace.py        writes experiments/idle_nodes/generated/

1024 nodes for 48 hours. Groups of nodes become idle together (how many: a Pareto law, cut off), mostly for the same
time (drawn from quantiles of the measured fragments' lengths: median 475 s, mean about 1200 s); so often that about
8.6 % of nodes are idle on average, as measured.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

SEED, NODES, HOURS, IDLE_SHARE = 6, 1024, 48, 0.086
SHARES = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
LENGTHS_S = (50.0, 81.0, 91.0, 162.0, 475.0, 1446.0, 3400.0, 4739.0, 9246.0, 12670.0)
"""Quantiles of the lengths of measured fragments."""
SPEEDS = (2831.0, 5259.0, 9988.0, 20379.2, 38895.3, 74125.1, 145081.5)
"""Samples/s of the measured trainer at 1, 2, 4, ..., 64 nodes."""
JOBS, SAMPLES, BEGIN_S = 80, 130_000_000, 6 * 3600
HERE = Path(__file__).resolve().parent / "generated"


def fragments(rng: np.random.Generator) -> pd.DataFrame:
    """Return idle fragments: groups that join together, of which a tenth of the nodes leaves at times of its own."""
    idle_until = np.zeros(NODES)
    rows, now_s, idle_node_s = [], 0.0, 0.0
    while now_s < HOURS * 3600:
        free = np.flatnonzero(idle_until <= now_s)
        size = min(int(rng.pareto(0.9) + 1), len(free), 400)
        if idle_node_s <= IDLE_SHARE * NODES * (now_s + 1):
            nodes = rng.choice(free, size, replace=False)
            lengths_s = np.full(size, _length_s(rng))
            own = rng.random(size) < 0.1
            lengths_s[own] = [_length_s(rng) for _ in range(own.sum())]
            idle_until[nodes] = now_s + lengths_s
            idle_node_s += lengths_s.sum()
            rows += [(n, now_s, now_s + length) for n, length in zip(nodes, lengths_s, strict=True)]
        now_s += float(np.ceil(rng.exponential(100.0)))
    return pd.DataFrame(rows, columns=["node", "idle_from_s", "idle_to_s"]).sort_values(["idle_from_s", "node"])


def _length_s(rng: np.random.Generator) -> float:
    return float(np.ceil(np.exp(np.interp(rng.random(), SHARES, np.log(LENGTHS_S)))))


def trainers() -> pd.DataFrame:
    """Return jobs of the measured trainer, submitted 36 s apart from the sixth hour on."""
    speeds = {f"samples_per_s_{2**k}": speed for k, speed in enumerate(SPEEDS)}
    return pd.DataFrame(
        {
            "trainer": [f"J{j:05d}" for j in range(JOBS)],
            "submit_s": [BEGIN_S + 36 * j for j in range(JOBS)],
            **{"min_nodes": 1, "max_nodes": 64, "scale_up_s": 18.0, "scale_down_s": 12.0, "samples": SAMPLES},
            **speeds,
        }
    )


def varied(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return trainers of seven speeds and their own costs, as the measured mix of networks has them."""
    speed = rng.choice([0.35, 0.42, 1.07, 1.0, 1.15, 1.84, 2.5], len(table))
    costs = {"scale_up_s": rng.normal(18.0, 0.6, len(table)), "scale_down_s": rng.normal(12.0, 0.5, len(table))}
    scaled = dict(table.filter(like="samples_per_s").mul(speed, axis=0).items())
    return table.assign(**scaled, **costs).round(4)


def main() -> None:
    """Write both tables."""
    HERE.mkdir(exist_ok=True)
    made = fragments(np.random.default_rng(SEED)).astype(int)
    made.to_csv(HERE / "idle_fragments.csv", index=False, lineterminator="\n")
    trainers().to_csv(HERE / "trainers_hpo.csv", index=False, lineterminator="\n")
    varied(trainers(), np.random.default_rng([SEED, 1])).to_csv(
        HERE / "trainers_imagenet.csv", index=False, lineterminator="\n"
    )
    lengths_s = made["idle_to_s"] - made["idle_from_s"]
    idle = lengths_s.sum() / (NODES * HOURS * 3600)
    print(f"{len(made)} fragments, mean {lengths_s.mean():.0f} s, median {lengths_s.median():.0f} s, {idle:.1%} idle")


if __name__ == "__main__":
    main()
