"""The league table: means over seeds, tails over all jobs, and changes against the baseline and the strongest rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from grounds import Ground, jobs_of
from rivals import BASELINE, OURS, RIVALS, Rival

from algorithms.optimal.bound import average_jct_bound_s
from ddlsched.comparisons.sweeps.sweep import Sweep
from ddlsched.network.contention import MaxMin
from ddlsched.results.paired_comparison import compare_runs, with_holm
from ddlsched.results.statistics import by_seed, paired_change

METRICS = ("average_jct_s", "average_slowdown", "gpu_utilisation", "jain_index")
_RESAMPLES = 400


def league(summaries: pd.DataFrame, bounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and rival.

    ``average_jct_s`` and the other metrics are means over seeds; ``jct_change`` is the geometric mean of the average
    JCT over the baseline's - 1, with its 95 % interval, paired by seed; ``p_holm`` and ``verdict`` of it are adjusted
    for all rivals of the ground. ``bound_s`` is the mean over the seeds of what no schedule's average JCT is below,
    which ``bounds`` has for each ground and rival, ``over_bound`` the mean average JCT over it. ``strongest`` is the
    best of the others that know no more (:func:`strongest`), and ``over_strongest`` the change against that.
    """
    compared = [
        compare_runs(rows, baseline=BASELINE, metrics=METRICS).assign(ground=ground)
        for ground, rows in summaries.groupby("ground", sort=False)
    ]
    both = pd.concat(compared, ignore_index=True)
    of_jct = [rows[rows["metric"] == "average_jct_s"].reset_index(drop=True) for rows in compared]
    jct = pd.concat([with_holm(rows) for rows in of_jct], ignore_index=True)
    means = both.pivot_table(index=["ground", "policy"], columns="metric", values="mean", sort=False)[list(METRICS)]
    changes = jct.set_index(["ground", "policy"])[["seeds", "change", "change_low", "change_high", "p_holm"]]
    table = means.join(changes.rename(columns=lambda name: name.replace("change", "jct_change")))
    table["verdict"] = jct.set_index(["ground", "policy"])["verdict_holm"]
    table["bound_s"] = bounds.set_index(["ground", "policy"])["bound_s"]
    table = table.assign(over_bound=table["average_jct_s"] / table["bound_s"])
    return table.join(_against_the_strongest(summaries)).reset_index()


def _against_the_strongest(summaries: pd.DataFrame) -> pd.DataFrame:
    rows = {}
    for ground, runs in summaries.groupby("ground", sort=False):
        jct = by_seed(runs, "average_jct_s")
        for rival in RIVALS:
            other = strongest(rival, jct)
            if other is None:
                continue
            change = paired_change(jct[rival.name], jct[other])
            row = {"knows": knowledge(rival), "shares": rival.shares, "strongest": other}
            row |= {"over_strongest": change.mean, "over_strongest_low": change.low, "over_strongest_high": change.high}
            rows[ground, rival.name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["ground", "policy"])


def knowledge(rival: Rival) -> str:
    """Return what a rival knows, as tables show it."""
    return ", ".join(sorted(rival.knows)) or "nothing"


def strongest(rival: Rival, jct_s: pd.DataFrame) -> str | None:
    """Return the other one of the least average JCT, a mean over seeds, that knows no more than a rival.

    It shares GPUs only if the rival does. ``jct_s`` has a row a seed and a column a policy. None without any.
    """
    means = {
        other.name: float(jct_s[other.name].mean())
        for other in RIVALS
        if other.name in jct_s and other != rival and other.knows <= rival.knows and other.shares <= rival.shares
    }
    return min(means, key=lambda name: means[name]) if means and rival.name in jct_s else None


def who_leads(seeds: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground, one job a GPU: :data:`OURS` against the best without lengths, and what is left to win.

    Parts of ours, which are near enough too, are no rivals of it. ``change`` is what it changes of the average JCT,
    ``p99_change`` of the lowest 99th percentile over all jobs of any without lengths;
    ``left`` is what the best that knows lengths changes of ours, and ``bound`` what no schedule passes.

    Grounds without both have none.

    Parameters
    ----------
    seeds, table
        What :func:`by_seeds` and :func:`league` return, with the columns of :func:`tails`.
    """
    rows = []
    for ground, own in seeds.groupby("ground", sort=False):
        jct = own.set_index("policy").drop(columns="ground").dropna(axis=1, how="all").T
        facts = table[table["ground"] == ground].set_index("policy")
        told = {rival.name: rival.knows for rival in RIVALS if rival.name in jct and not rival.shares}
        means = jct[list(told)].mean()
        if OURS not in told or not any("lengths" in knows for knows in told.values()):
            continue
        others = [name for name, knows in told.items() if "lengths" not in knows and not name.endswith(", near enough")]
        blind = str(means[others].idxmin())
        lengths = str(means[[name for name, knows in told.items() if "lengths" in knows]].idxmin())
        change, left = paired_change(jct[OURS], jct[blind]), paired_change(jct[lengths], jct[OURS])
        row = {"ground": ground, "seeds": len(jct), "blind": blind, "change": change.mean, "change_low": change.low}
        p99_s = facts["p99_jct_s"]
        row |= {"change_high": change.high, "p99_change": p99_s[OURS] / p99_s[others].min() - 1}
        row |= {"lengths": lengths, "left": left.mean, "left_low": left.low, "left_high": left.high}
        rows.append(row | {"bound": 1 / facts["over_bound"][OURS] - 1})
    return pd.DataFrame(rows)


def tails(done: Sweep) -> pd.DataFrame:
    """Return of each ground and policy the 99th percentile of JCT over the jobs of all seeds, and its change.

    ``p99_change`` is against the baseline; its interval is the bootstrap's over seeds, the same for both.
    """
    jobs = done.jobs()[["ground", "policy", "seed", "jct_s"]]
    rows = {}
    for ground, of_ground in jobs.groupby("ground", sort=False):
        seeds = of_ground["seed"].unique()
        drawn = np.random.default_rng(0).integers(len(seeds), size=(_RESAMPLES, len(seeds)))
        times = {
            policy: [own["jct_s"].to_numpy() for _, own in one.groupby("seed")]
            for policy, one in of_ground.groupby("policy", sort=False)
        }
        resampled = {policy: np.array([_p99(own, places) for places in drawn]) for policy, own in times.items()}
        base = _p99(times[BASELINE], range(len(seeds)))
        for policy, own in times.items():
            p99_s = _p99(own, range(len(seeds)))
            low, high = np.quantile(resampled[policy] / resampled[BASELINE] - 1, [0.025, 0.975])
            rows[ground, policy] = {"p99_jct_s": p99_s, "p99_change": p99_s / base - 1, "p99_change_low": low}
            rows[ground, policy]["p99_change_high"] = high
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["ground", "policy"]).reset_index()


def _p99(times_s: Sequence[np.ndarray], seeds: Sequence[int] | np.ndarray) -> float:
    return float(np.quantile(np.concatenate([times_s[seed] for seed in seeds]), 0.99))


def by_seeds(summaries: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and policy with the average JCT of each seed, seconds."""
    return summaries.pivot_table(
        index=["ground", "policy"], columns="seed", values="average_jct_s", sort=False
    ).reset_index()


def bounds_of(grounds: Sequence[Ground], rivals: Sequence[Rival], seeds: int, jobs: int, folder: Path) -> pd.DataFrame:
    """Return a row a ground and rival that plays there: the mean bound over the seeds, seconds.

    On shared GPUs it is lower than on exclusive ones.
    """
    rows = []
    for ground in grounds:
        playing = [rival for rival in rivals if rival.plays_on(ground)]
        file = str(folder / f"{ground.jobs}.parquet")
        made = partial(jobs_of, ground=ground.jobs, jobs=min(jobs, ground.num_jobs), file=file)
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


def tables(done: Sweep, bounds: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
    """Return the league, and the average JCTs that it is made of."""
    summaries = done.summaries()
    table = league(summaries, bounds).merge(tails(done), on=["ground", "policy"])
    return {"league": table, "seeds": by_seeds(summaries)}
