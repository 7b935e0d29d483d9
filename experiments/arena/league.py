"""The league table: means over seeds, changes against a FIFO queue that skips, paired, and Holm's adjustment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from grounds import Ground, jobs_of
from rivals import BASELINE, Rival

from algorithms.optimal.bound import average_jct_bound_s
from ddlsched import Result
from ddlsched.network.contention import MaxMin
from ddlsched.results.paired_comparison import compare_runs, with_holm

METRICS = ("average_jct_s", "p99_jct_s", "average_slowdown", "gpu_utilisation", "jain_index")


def league(summaries: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and rival.

    ``average_jct_s`` and the other metrics are means over seeds; ``jct_change`` is the geometric mean of the average
    JCT over the baseline's - 1, with its 95 % interval, paired by seed; ``p_holm`` and ``verdict`` of it are adjusted
    for all rivals of all grounds. ``bound_s`` is the mean over the seeds of what no schedule's average JCT is below,
    which ``bounds`` has for each ground and rival, ``over_bound`` the mean average JCT over it.
    """
    compared = [
        compare_runs(rows, baseline=BASELINE, metrics=METRICS).assign(ground=ground)
        for ground, rows in summaries.groupby("ground", sort=False)
    ]
    both = pd.concat(compared, ignore_index=True)
    jct = with_holm(both[both["metric"] == "average_jct_s"].reset_index(drop=True))
    means = both.pivot_table(index=["ground", "policy"], columns="metric", values="mean", sort=False)[list(METRICS)]
    changes = jct.set_index(["ground", "policy"])[["seeds", "change", "change_low", "change_high", "p_holm"]]
    table = means.join(changes.rename(columns=lambda name: name.replace("change", "jct_change")))
    table["verdict"] = jct.set_index(["ground", "policy"])["verdict_holm"]
    table["bound_s"] = bounds.set_index(["ground", "policy"])["bound_s"]
    return table.assign(over_bound=table["average_jct_s"] / table["bound_s"]).reset_index()


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


def tails(result: Result) -> Mapping[str, float]:
    """Return the 99th percentile of JCT, which ddlsched's own metrics lack."""
    jobs = result.jobs[result.jobs["finish_s"].notna()]
    return {"p99_jct_s": float(np.quantile(jobs["jct_s"], 0.99)) if len(jobs) else float("nan")}
