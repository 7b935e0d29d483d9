"""What no schedule's average JCT is below on each ground (docs/bound.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from grounds import Ground, jobs_of
from rivals import Rival

from algorithms.optimal.bound import average_jct_bound_s
from ddlsched.network.contention import MaxMin


def bounds_of(
    grounds: Sequence[Ground], rivals: Sequence[Rival], seeds: int, jobs: int, files: Mapping[str, Path]
) -> pd.DataFrame:
    """Return a row a ground and rival that plays there: the mean bound over the seeds, seconds.

    On shared GPUs it is lower than on exclusive ones.
    """
    rows = []
    for ground in grounds:
        playing = [rival for rival in rivals if rival.plays_on(ground)]
        made = partial(jobs_of, ground=ground.jobs, jobs=jobs, gpus=ground.gpus, file=str(files.get(ground.jobs, "")))
        mean_s = {
            shares: np.mean(
                [
                    average_jct_bound_s(made(seed=seed), ground.cluster(exclusive=not shares), MaxMin())
                    for seed in range(1, seeds + 1)
                ]
            )
            for shares in {rival.shares for rival in playing}
        }
        rows += [{"ground": ground.name, "policy": rival.name, "bound_s": mean_s[rival.shares]} for rival in playing]
    return pd.DataFrame(rows)
