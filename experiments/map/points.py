"""The points of the map: which jobs come how densely to which network, and the jobs of a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched import Cluster, Workload
from ddlsched.workload.generators.microsoft import microsoft_160
from experiments.arrivals import arriving, drawn_once, poisson
from experiments.baseline import PRICES
from experiments.language_models import language_model_jobs

BURST, BURST_S = "burst", 60.0
GPUS_PER_SERVER = 8


class Mix(NamedTuple):
    """Jobs, the cluster that they come to: servers of eight GPUs, so many a leaf, and spines; Tiresias' numbers there.

    These are as tuned on the arena's ground of the same jobs (``experiments/arena/expected/tuned.csv``), rounded.
    """

    jobs: int
    servers: int
    servers_per_leaf: int
    spines: int
    tiresias: str


MIXES = {
    "CNNs": Mix(280, 16, 4, 4, "threshold_gpu_s=5000,interval_s=540"),
    "fine-tuning": Mix(280, 16, 4, 4, "threshold_gpu_s=5000,interval_s=540"),
    "language models": Mix(200, 128, 16, 8, "threshold_gpu_s=25800,interval_s=408"),
}
GBPS = (100.0, 400.0, 1600.0, 6400.0)
OVERSUBSCRIPTION = (1.0, 2.0, 4.0, 8.0)
LOADS = ("0.5", "0.8", BURST)


@dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """A place on the map: a mix, the Gbit/s of a server, the leaves' oversubscription, a stream's load or a burst."""

    mix: str
    load: str
    gbps: float
    oversubscription: float

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.mix}, {self.load}, {self.gbps:g} Gbit/s, {self.oversubscription:g}:1"

    @property
    def axes(self) -> dict[str, Any]:
        """Its place on each axis."""
        return asdict(self)

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``simulate`` that are the same for all policies."""
        _, servers, per_leaf, spines, _ = MIXES[self.mix]
        over = f"oversubscription={self.oversubscription:g},nic_gbps={self.gbps:g}"
        cluster = Cluster(
            num_servers=servers,
            gpus_per_server=GPUS_PER_SERVER,
            gpu_memory_mb=80_000.0,
            topology=f"leaf-spine:servers_per_leaf={per_leaf},spines={spines},{over}",
            exclusive=True,
        )
        return {"cluster": cluster, "disturbances": PRICES, "sample": True}

    def workload(self) -> str:
        """Return the text that names its jobs, which the seed makes."""
        return f"{Path(__file__).resolve()}:jobs_of:mix={self.mix},load={self.load},gbps={self.gbps:g}"


POINTS = tuple(
    Point(mix=mix, load=load, gbps=gbps, oversubscription=over)
    for mix, load, gbps, over in product(MIXES, LOADS, GBPS, OVERSUBSCRIPTION)
)
QUICK = tuple(
    Point(mix=mix, load="0.8", gbps=gbps, oversubscription=4.0) for mix in ("CNNs", "fine-tuning") for gbps in GBPS[:2]
)


def jobs_of(*, seed: int, mix: str, load: str, gbps: float) -> Workload:
    """Return the jobs of a point: a Poisson stream of this load, or a burst of all of them within a minute."""
    rng = np.random.default_rng([seed, 3])
    jobs, servers, *_ = MIXES[mix]
    if mix == "CNNs":
        drawn = drawn_once(microsoft_160, seed, jobs, rng)
    else:
        drawn = language_model_jobs("fine-tuning" if mix == "fine-tuning" else "llm", jobs, rng)
    if load == BURST:
        return arriving(drawn, rng.uniform(0.0, BURST_S, jobs))
    gpus = servers * GPUS_PER_SERVER
    return poisson(drawn, load=float(load), gpus=gpus, gpus_per_server=GPUS_PER_SERVER, gbps=gbps, rng=rng)
