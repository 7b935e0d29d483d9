"""What is varied: load, placement, sharing of GPUs, bandwidth, and under each the bundles and no contention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network import linear, per_byte_s
from parts import Imported

from ddlsched.comparisons.sweeps.sweep import Run

NETWORK_FILE = Path(__file__).resolve().with_name("network.py")
ALONE = "no contention"
BASELINE = "SRSF(1)"
BUNDLES = {"SRSF(1)": "srsf-1", "SRSF(2)": "srsf-2", "SRSF(3)": "srsf-3", "Ada-SRSF": "ada-srsf"}
EVERY = "bounded-overlap:limit=1000"
"""Every all-reduce starts at once: a server has at most 88 jobs."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A cluster's size, its GPUs' memory, and a placement."""

    name: str
    load: float
    placement: str = "lwf:kappa=1"
    shared: bool = False


REGIMES = (
    Regime(name="LWF-1, load 0.35", load=0.35),
    Regime(name="LWF-1, load 0.7", load=0.7),
    Regime(name="LWF-1, load 1.4, GPUs shared", load=1.4, shared=True),
    Regime(name="FF, load 0.7", load=0.7, placement="first-fit"),
)
CONSOLIDATED, SPREAD = REGIMES[1], REGIMES[3]
"""The same servers, and two placements."""


def runs(part: Imported, regime: Regime, gbps: float) -> Iterator[Run]:
    """Yield a part's runs under one regime: each bundle, and the same placement and order without contention."""
    labels = {"trace": part.part.trace, "part": part.part.name, "regime": regime.name, "gbps": f"{gbps:g}"}
    labels["scale"] = f"{part.part.scale:g}"
    cluster = part.cluster(regime.load, shared=regime.shared)
    common = {"cluster": cluster, "placement": regime.placement}
    unshared = f"{NETWORK_FILE}:Unshared:per_byte_s={per_byte_s(gbps)!r}"
    policies: dict[str, dict[str, Any]] = {
        ALONE: {"scheduler": "srsf-1", "communication": EVERY, "contention": unshared},
        **{name: {"scheduler": bundle, "contention": linear(gbps)} for name, bundle in BUNDLES.items()},
    }
    for policy, options in policies.items():
        yield Run(
            labels=labels | {"policy": policy, "gpus": str(cluster.num_gpus)},
            workload=str(part.path),
            seed=part.part.seed,
            options=common | options,
            measures=(f"{NETWORK_FILE}:network",),
        )


def grid(parts: Sequence[Imported], regimes: Sequence[Regime], bandwidths: Sequence[float]) -> list[Run]:
    """Return the runs of all parts under all regimes at all bandwidths."""
    return [run for part in parts for regime in regimes for gbps in bandwidths for run in runs(part, regime, gbps)]
