"""The league table: means over seeds, tails over all jobs, and changes against the baseline and the strongest rival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
from grounds import Ground, jobs_of
from rivals import BASELINE, OURS, PARTS_OF_OURS, RIVALS, Rival

from algorithms.bound import jct_bound
from ddlsched.comparisons.sweeps.sweep import Sweep
from ddlsched.errors import InputError
from ddlsched.network.contention import MaxMin
from ddlsched.results.paired_comparison import compare_tables, with_holm
from ddlsched.results.statistics import paired_change
from ddlsched.workload.job import Workload

METRICS = ("average_slowdown", "gpu_utilisation", "jain_index")
_RESAMPLES = 400
_ENDS = ("", "_low", "_high")
COLUMNS = (
    *("ground", "policy", "average_jct_s", *METRICS, "seeds", *(f"jct_change{end}" for end in _ENDS), "p_holm"),
    *("verdict", "bound_s", "over_bound", "p99_bound_s", "knows", "shares", "strongest"),
    *(f"over_strongest{end}" for end in _ENDS),
    *("p99_jct_s", *(f"{name}_change{end}" for name in ("p99", "ours_p99") for end in _ENDS)),
)


def league(jct_s: pd.DataFrame, facts: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and rival, in their orders, each on the seeds that it has: the first ones.

    ``average_jct_s`` is a mean over seeds; ``jct_change`` is the geometric mean of the average JCT over the baseline's
    - 1, with its 95 % interval, paired by seed; ``p_holm`` and ``verdict`` of it are adjusted for all rivals of the
    ground. ``over_bound`` is the mean average JCT over ``bound_s``. ``strongest`` is the best of the others that know
    no more (:func:`strongest`), and ``over_strongest`` the change against that. All of these come of ``jct_s``, for
    rows that stay beside new ones, too.

    Parameters
    ----------
    jct_s
        What :func:`by_seeds` returns.
    facts
        What :func:`facts_of` returns of the same grounds and rivals.
    """
    found = []
    for ground in jct_s["ground"].unique():
        own = of_ground(jct_s, ground)
        rows = with_holm(pd.concat([_compared(own, name) for name in own], ignore_index=True)).set_index("policy")
        table = rows.rename(columns={"mean": "average_jct_s"} | {f"change{end}": f"jct_change{end}" for end in _ENDS})
        table["verdict"] = table.pop("verdict_holm")
        table = table.assign(ground=ground).join(_against_the_strongest(own))
        there = facts[facts["ground"] == ground].set_index("policy")
        table = table.join(there[there.columns.difference(table.columns)])
        found.append(table.assign(over_bound=table["average_jct_s"] / table["bound_s"]).reset_index())
    return pd.concat(found, ignore_index=True).reindex(columns=list(COLUMNS))


def of_ground(jct_s: pd.DataFrame, ground: str) -> pd.DataFrame:
    """Return the average JCTs of a ground with a row a seed and a column a rival; NaN where it has no run."""
    own: pd.DataFrame = jct_s[jct_s["ground"] == ground].set_index("policy").drop(columns="ground")
    return own.dropna(axis=1, how="all").T


def _compared(jct_s: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the row of a rival against the baseline, on its seeds."""
    both = jct_s[[*dict.fromkeys((BASELINE, name))]].dropna().rename_axis(index="seed", columns="policy")
    rows = compare_tables({"average_jct_s": both}, baseline=BASELINE)
    return rows[rows["policy"] == name]


def on_seeds_of(jct_s: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the average JCTs on the seeds of a rival, of it and of those that have all of them."""
    return jct_s[jct_s[name].notna()].dropna(axis=1)


def _against_the_strongest(jct_s: pd.DataFrame) -> pd.DataFrame:
    rows = {}
    for rival in RIVALS:
        if (other := strongest(rival, jct_s)) is not None:
            both = on_seeds_of(jct_s, rival.name)
            change = paired_change(both[rival.name], both[other])
            row = {"knows": knowledge(rival), "shares": rival.shares, "strongest": other}
            row |= {"over_strongest": change.mean, "over_strongest_low": change.low, "over_strongest_high": change.high}
            rows[rival.name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


KNOWLEDGE = ("nothing", "kinds", "lengths")


def knowledge(rival: Rival) -> str:
    """Return what a rival knows of jobs: ``nothing``, ``kinds`` (whatever belongs to a kind of job), or ``lengths``."""
    return "lengths" if "lengths" in rival.knows else "kinds" if rival.knows else "nothing"


def is_ours(name: str) -> bool:
    """Return whether a rival is :data:`OURS` or a part of it, which are no rivals of each other."""
    return name in (OURS, *PARTS_OF_OURS)


def lowest(jct_s: pd.DataFrame, names: Sequence[str]) -> str:
    """Return who has the lowest geometric mean over seeds: the one that no paired change shows to be behind."""
    return str(np.log(jct_s[list(names)]).mean().idxmin())


def strongest(rival: Rival, jct_s: pd.DataFrame) -> str | None:
    """Return the :func:`lowest` of the others on a rival's seeds that know no more than it.

    It shares GPUs only if the rival does, and is no part of it. ``jct_s`` has a row a seed and a column a policy.
    """
    if rival.name not in jct_s:
        return None
    there, may = on_seeds_of(jct_s, rival.name), KNOWLEDGE[: KNOWLEDGE.index(knowledge(rival)) + 1]
    others = [
        other.name
        for other in RIVALS
        if other.name in there and knowledge(other) in may and other.shares <= rival.shares
        if other != rival and not (is_ours(rival.name) and is_ours(other.name))
    ]
    return lowest(there, others) if others else None


def who_leads(seeds: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground, one job a GPU: :data:`OURS` against the best without lengths, and what is left to win.

    ``change`` is what it changes of the average JCT of ``blind``, its :func:`strongest`, ``p99_change`` of the lowest
    99th percentile over all jobs of any without lengths, that of ``p99_lowest``; ``left`` is what the best that knows
    lengths changes of ours, ``bound`` and ``p99_bound`` what no schedule passes. ``nothing``, ``kinds`` and ``lengths``
    are the best of those that know these, ours among them; ``kinds_change`` and ``lengths_change`` are against the
    first. Rivals that lack a seed of ours are left out; ``field`` says how many play, in brackets how many of them have
    all seeds, and how many these are.

    Grounds without both have none.

    Parameters
    ----------
    seeds, table
        What :func:`by_seeds` and :func:`league` return.
    """
    rows = []
    for ground in seeds["ground"].unique():
        jct_s, facts = of_ground(seeds, ground), table[table["ground"] == ground].set_index("policy")
        jct_s = on_seeds_of(jct_s, OURS) if OURS in jct_s else jct_s[[]]
        told = {rival.name: knowledge(rival) for rival in RIVALS if rival.name in jct_s and not rival.shares}
        if "lengths" not in told.values():
            continue
        best = {one: lowest(jct_s, [name for name, knows in told.items() if knows == one]) for one in KNOWLEDGE}
        best["blind"] = facts.loc[OURS, "strongest"]
        others = [name for name, knows in told.items() if knows != "lengths" and not is_ours(name)]
        changes = {
            name: paired_change(jct_s[one], jct_s[other])
            for name, one, other in (
                ("change", OURS, best["blind"]),
                ("left", best["lengths"], OURS),
                ("kinds_change", best["kinds"], best["nothing"]),
                ("lengths_change", best["lengths"], best["nothing"]),
            )
        }
        row = {"ground": ground, "seeds": len(jct_s), **best}
        for name, change in changes.items():
            row |= {name: change.mean, f"{name}_low": change.low, f"{name}_high": change.high}
        p99_s = facts["p99_jct_s"][facts["seeds"] == len(jct_s)]
        tail = facts.loc[p99_s[p99_s.index.isin(others)].idxmin()]
        row |= {"p99_lowest": tail.name} | {f"p99_change{end}": tail[f"ours_p99_change{end}"] for end in _ENDS}
        row["p99_change"] = p99_s[OURS] / tail["p99_jct_s"] - 1  # a row that stayed has no interval of it
        row["field"] = f"{len(facts)} ({len(jct_s.columns)}), {len(jct_s)}"
        row["p99_bound"] = facts["p99_bound_s"][OURS] / p99_s[OURS] - 1
        rows.append(row | {"bound": 1 / facts["over_bound"][OURS] - 1})
    return pd.DataFrame(rows)


def tails(jobs: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Return of each ground and policy the 99th percentile of JCT over the jobs of all seeds, and its change.

    ``p99_change`` is against ``baseline``, ``ours_p99_change`` that of :data:`OURS` against the policy, if it plays;
    intervals are the bootstrap's over seeds, the same for both.

    Parameters
    ----------
    jobs
        A row a job: ``ground``, ``policy``, ``seed``, ``jct_s``.
    """
    rows = {}
    for ground, of_ground in jobs.groupby("ground", sort=False):
        seeds = of_ground["seed"].unique()
        drawn = np.random.default_rng(0).integers(len(seeds), size=(_RESAMPLES, len(seeds)))
        p99_s = {}
        for policy, one in of_ground.groupby("policy", sort=False):
            times = [own["jct_s"].to_numpy() for _, own in one.groupby("seed")]
            p99_s[policy] = np.array([_p99(times, places) for places in (range(len(seeds)), *drawn)])
        for policy, own in p99_s.items():
            rows[ground, policy] = {"p99_jct_s": own[0]}
            for name, ratio in (("p99", own / p99_s[baseline]), ("ours_p99", p99_s.get(OURS, np.nan) / own)):
                ends = ratio[0], *np.quantile(ratio[1:], [0.025, 0.975])
                rows[ground, policy] |= {
                    f"{name}_change{end}": value - 1 for end, value in zip(_ENDS, ends, strict=True)
                }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["ground", "policy"]).reset_index()


def _p99(times_s: Sequence[np.ndarray], seeds: Sequence[int] | np.ndarray) -> float:
    return float(np.quantile(np.concatenate([times_s[seed] for seed in seeds]), 0.99))


def by_seeds(summaries: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and policy with the average JCT of each seed, seconds."""
    return summaries.pivot_table(
        index=["ground", "policy"], columns="seed", values="average_jct_s", sort=False
    ).reset_index()


def fingerprints_of(grounds: Sequence[Ground], seeds: int, jobs: int, folder: Path) -> pd.DataFrame:
    """Return a row a ground and seed: a hash of its ``jobs``, their numbers to six digits."""
    rows = [
        {"ground": ground.name, "seed": seed, "jobs": _fingerprint(_drawn(ground, jobs, folder)(seed=seed))}
        for ground in grounds
        for seed in range(1, seeds + 1)
    ]
    return pd.DataFrame(rows)


def _fingerprint(workload: Workload) -> str:
    rows = [
        [f"{number:.6g}" for number in (job.arrival_s, job.compute_ns, job.dag.message_bytes, job.gpu_memory_mb)]
        + [str(part) for part in (job.num_gpus, job.iterations, job.model, job.user, job.dag.groups)]
        for job in workload
    ]
    return sha256(repr(rows).encode()).hexdigest()[:8]


def beside_same_jobs(fingerprints: pd.DataFrame, path: Path, *, whole: bool = False) -> pd.DataFrame:
    """Return the fingerprints of a file, if it is there, and a table's; a whole ground takes its rows' place.

    Raises
    ------
    InputError
        The file has other jobs of a seed, so that its rows cannot stand beside those of the table.
    """
    there = pd.read_csv(path) if path.exists() else fingerprints[:0]
    if whole:
        there = there[~there["ground"].isin(fingerprints["ground"])]
    both = pd.concat([there, fingerprints], ignore_index=True).drop_duplicates()
    for row in both[both.duplicated(["ground", "seed"])].to_dict("records"):
        raise InputError(
            f"{path}: {row['ground']}, seed {row['seed']}: rows there are of other jobs than {row['jobs']}; expected "
            "the same jobs; run the ground without --only, or with another --out"
        )
    return both


def _drawn(ground: Ground, jobs: int, folder: Path) -> Callable[..., Workload]:
    file = str(folder / f"{ground.jobs}.parquet")
    return partial(jobs_of, ground=ground.jobs, jobs=min(jobs, ground.num_jobs), file=file)


def bounds_of(grounds: Sequence[Ground], rivals: Sequence[Rival], seeds: int, jobs: int, folder: Path) -> pd.DataFrame:
    """Return a row a ground and rival that plays there: the mean bound over the seeds, and that of the tail, seconds.

    On shared GPUs the first is lower than on exclusive ones. The second is the 99th percentile of the times that the
    jobs of all seeds take alone: no schedule has a lower one of their JCTs.
    """
    rows = []
    for ground in grounds:
        playing = [rival for rival in rivals if rival.plays_on(ground)]
        made = _drawn(ground, jobs, folder)
        for shares in {rival.shares for rival in playing}:
            cluster = ground.cluster(exclusive=not shares)
            found = [jct_bound(made(seed=seed), cluster, MaxMin()) for seed in range(1, seeds + 1)]
            row = {"ground": ground.name, "bound_s": np.mean([one.average_jct_s for one in found])}
            row["p99_bound_s"] = _p99([one.alone_s for one in found], range(seeds))
            rows += [row | {"policy": rival.name} for rival in playing if rival.shares == shares]
    return pd.DataFrame(rows)


def facts_of(done: Sweep, bounds: pd.DataFrame) -> pd.DataFrame:
    """Return a row a ground and rival: means over seeds, ``bound_s``, how many ``seeds``, and :func:`tails`."""
    runs = done.summaries().groupby(["ground", "policy"], sort=False)
    means = runs[list(METRICS)].mean().join(runs.size().rename("seeds")).reset_index()
    jobs = done.jobs()[["ground", "policy", "seed", "jct_s"]]
    return means.merge(bounds, on=["ground", "policy"]).merge(tails(jobs), on=["ground", "policy"])
