"""Is it worth profiling from large to small? MalleTrain's advisor against one that steps up, by what growing costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from inputs import Inputs
from on_engine import simulated
from parallel import Workers
from streams import JOBS, LONGEST_S, MAKERS

from algorithms.allocation.malletrain import MalleTrain
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.workload.malleable.profiling import ProfilingAdvisor

DOWN_S = 12.0
RATIOS = (1.5, 4.0)
"""Growing takes so many times as long as shrinking: as was measured of the trainers, as was claimed."""


class UpwardAdvisor(ProfilingAdvisor):
    """Measures the smallest size first; every further one is a step up."""

    def next_size(self, sizes: Sequence[int], after: int | None) -> int | None:
        """Return the smallest, or the next larger."""
        return min((size for size in sizes if after is None or size > after), default=None)


@dataclass(frozen=True, kw_only=True)
class UpwardMalleTrain(MalleTrain):
    """MalleTrain with that advisor."""

    def advisor(self) -> ProfilingAdvisor:
        """Return the advisor that steps up."""
        return UpwardAdvisor(scales=tuple(range(self.most_scale, 0, -1)), hold_s=self.hold_s)


DIRECTIONS = {"down": MalleTrain, "up": UpwardMalleTrain}


def scale_up(inputs: Inputs, workers: Workers, seeds: int) -> pd.DataFrame:
    """Return how fast streams are done under each direction and cost; each seed has its own jobs and time."""
    apart_s = (float(inputs.idle.idle_to_s.max()) - LONGEST_S) / max(seeds - 1, 1)
    later = [inputs.idle.since(seed * max(apart_s, 0.0)) for seed in range(seeds)]
    settings = list(product(MAKERS, RATIOS, range(1, seeds + 1), DIRECTIONS))
    calls = [(later[seed - 1], stream, ratio, seed, profiles) for stream, ratio, seed, profiles in settings]
    rows = workers.do("scale-up", _done, calls)
    labels = [dict(zip(("stream", "ratio", "seed", "profiles"), setting, strict=True)) for setting in settings]
    return pd.DataFrame([label | row for label, row in zip(labels, rows, strict=True)])


def _done(idle: IdleTrace, stream: str, ratio: float, seed: int, profiles: str) -> dict[str, float]:
    costs = {"scale_up_s": ratio * DOWN_S, "scale_down_s": DOWN_S}
    jobs = [replace(job, **costs) for job in MAKERS[stream](seed, JOBS)]
    result, tally = simulated(idle, jobs, DIRECTIONS[profiles](lookahead_s=120.0, **costs))
    finish_h = np.sort(result.jobs["finish_s"]) / 3600
    samples = sum(job.samples for job in jobs)
    return {"mean_finish_h": finish_h.mean(), "rescale_lost": tally.rescale_lost / samples, "rescales": tally.rescales}
