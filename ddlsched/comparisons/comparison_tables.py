"""A comparison's rows beside its baseline, by class of size too, and the conditions under which they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ddlsched.cluster.disturbances import jitter_remark
from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.results.metrics import ON_NETWORK, SIZE_CLASSES, counted, network_remark, run_metrics
from ddlsched.results.paired_comparison import ALL_METRICS, compare_runs, with_holm
from ddlsched.results.result import COUNTS, averages


def conditions(asked: Mapping[str, Any], runs: pd.DataFrame) -> list[str]:
    """Return what a reader must know of the doors that the runs used; nothing where they used none.

    ``asked`` is the content of comparison.json, ``runs`` the table runs.csv.
    """
    disturbances = asked.get("options", {}).get("disturbances") or {}
    return [
        *_paths(asked["policies"]),
        *_clusters(asked["clusters"]),
        *_sharing(runs),
        *_network_bound(runs),
        *filter(None, [jitter_remark(disturbances.get("jitter_cv", 0.0))]),
        *_departures(disturbances, runs),
    ]


def _paths(policies: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Say which paths the flows of jobs took, if a policy chose them."""
    chosen: dict[str, list[str]] = {}
    for label, doors in policies.items():
        if isinstance(doors, Mapping) and "path" in doors:
            chosen.setdefault(doors["path"], []).append(label)
    told = [f"by {path} under {', '.join(map(repr, labels))}" for path, labels in chosen.items()]
    if told:
        rest = "; else the topology's own routes" if sum(map(len, chosen.values())) < len(policies) else ""
        yield f"Paths of flows were chosen {', '.join(told)}{rest}."


def _clusters(clusters: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say what is particular about the GPUs, the inside of servers and the contention model's constants."""
    for name, told in clusters.items():
        if told.get("exclusive"):
            yield f"{name}: exclusive, one job a GPU at a time."
        if kinds := told.get("gpu_kinds"):
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            table = told["throughputs"]
            kind = table["reference_kind"]
            on = f"the workload's times are those on {kind}" if kind else "a throughput of 1 means the workload's times"
            yield f"{name}: GPUs of several kinds ({counts}), with the throughputs of {table['source']}; {on}."
        if inside := told.get("inside"):
            cards = f"{inside['cards']} network {'card' if inside['cards'] == 1 else 'cards'}"
            yield f"{name}: the inside of servers counts, {inside['gpu_gbps']:g} Gbit/s a GPU and {cards} a server."
        if remark := told.get("remark"):
            yield f"{name}: {remark}"


def _sharing(runs: pd.DataFrame) -> Iterator[str]:
    """Say that jobs shared GPUs, if they did; tables of an older version do not tell."""
    most = runs.get("most_jobs_on_a_gpu")
    if most is not None and most.max() > 1:
        yield f"GPUs were shared: up to {int(most.max())} jobs at a time on one (--exclusive: one job a GPU)."


def _network_bound(runs: pd.DataFrame) -> Iterator[str]:
    """Say of each policy whose runs the network decides that it does."""
    if {f"{phase}_share" for phase in ON_NETWORK} <= {*runs}:
        for policy, own in runs.groupby("policy", sort=False):
            if remark := network_remark(*(float(own[f"{phase}_share"].mean()) for phase in ("queueing", *ON_NETWORK))):
                yield f"{policy}: {remark}"


def _departures(disturbances: Mapping[str, Any], runs: pd.DataFrame) -> Iterator[str]:
    """Say how often policies stopped and moved running jobs, and at which price."""
    distinct = runs.drop_duplicates("file") if len(runs) else runs
    stops, moves, state_bytes = (int(distinct[name].sum()) if name in distinct else 0 for name in list(COUNTS)[:3])
    if not stops and not moves:
        return
    restart_s, state_mb = disturbances.get("restart_s", 0.0), disturbances.get("state_mb")
    share = disturbances.get("state_share", 1.0)
    memory = "all memory" if share == 1 else f"{share:.3g} of the memory"
    state = f"{memory} that the job takes there" if state_mb is None else f"{state_mb:g} MB"
    yield (
        f"Policies stopped running jobs {_times(stops)} and moved them {_times(moves)}, over all runs. Going on took "
        f"{restart_s:g} s (restart_s) and, on other servers, {state} from each GPU over the network: "
        f"{state_bytes / 1e9:,.1f} GB."
    )


def _times(count: int) -> str:
    return f"{count:,} {'time' if count == 1 else 'times'}"


SETTING = ["workload", "cluster"]
"""Columns of what is compared apart."""
_COLUMNS = ["policy", "metric", "seeds", "mean", "low", "high", "change", "change_low", "change_high", "verdict"]
_WITHOUT_MEANING = ["seed", "engine_s"]
"""Numbers that differ between runs that are the same."""


def compare_metrics(runs: pd.DataFrame, *, baseline: str) -> pd.DataFrame:
    """Compare runs by all metrics that they have and that are compared."""
    return compare_runs(runs, baseline=baseline, metrics=[metric for metric in ALL_METRICS if metric in runs])


def compare_everywhere(
    runs: pd.DataFrame, measured: pd.DataFrame, baseline: str, compare: Callable[..., pd.DataFrame] = compare_metrics
) -> pd.DataFrame:
    """Return the comparisons on all workloads and clusters, one below the other.

    A policy of which runs failed is compared on the seeds that it and the baseline have finished; what is left
    is no fair sample, so there is no verdict. Where the runs of all seeds are the same, of the policy and of the
    baseline, nothing random was at work: that is one run, without an interval and without a verdict.

    Parameters
    ----------
    runs
        A row a finished run: policy, workload, cluster, seed, and metrics.
    measured
        What is compared: the same runs, or several rows of each.
    baseline
        A policy.
    compare
        Compares the rows of one workload and cluster.

    Returns
    -------
    DataFrame
        workload, cluster, the columns of ``compare``, and seeds_left_out, those on which only others finished.
    """
    parts = []
    for (workload, cluster), group in runs.groupby(SETTING, sort=False):
        rows = measured[(measured["workload"] == workload) & (measured["cluster"] == cluster)]
        if rows.empty:  # size classes of runs in which no job counts
            continue
        part = _without_false_intervals(_against_baseline(rows, group, baseline, compare), group, baseline)
        parts.append(part.assign(workload=str(workload), cluster=str(cluster)))
    if not parts:
        return pd.DataFrame(columns=[*SETTING, *_COLUMNS])
    table = pd.concat(parts, ignore_index=True)
    return with_holm(table[[*SETTING, *table.columns.drop(SETTING)]])


def _against_baseline(
    rows: pd.DataFrame, runs: pd.DataFrame, baseline: str, compare: Callable[..., pd.DataFrame]
) -> pd.DataFrame:
    """Compare together the policies that have the same seeds; with itself one that shares none with the baseline."""
    seeds = {str(policy): frozenset(own["seed"]) for policy, own in runs.groupby("policy", sort=False)}
    together: dict[tuple[str, frozenset[int]], list[str]] = {}
    for policy, own in seeds.items():
        shared = own & seeds.get(baseline, frozenset())
        together.setdefault((baseline, shared) if shared else (policy, own), []).append(policy)
    parts = []
    for (against, common), policies in together.items():
        chosen = rows["policy"].isin([*policies, against]) & rows["seed"].isin(common)
        part = compare(rows[chosen], baseline=against)
        part = part[part["policy"].isin(policies)]
        part = part.assign(seeds_left_out=part["seeds_left_out"] + len(set(runs["seed"]) - common))
        parts.append(_without(part, part["policy"] != "", "change", "difference") if against != baseline else part)
    table = pd.concat(parts, ignore_index=True)
    unfair = (table["seeds_left_out"] > 0) & (table["policy"] != baseline)
    return _without(table, unfair, "p_")


def _without_false_intervals(table: pd.DataFrame, runs: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Take back the intervals over seeds that were one run."""
    policies = {str(policy) for policy in runs["policy"]}
    fixed = table["policy"].isin([policy for policy in policies if _is_one_run(runs[runs["policy"] == policy])])
    table.loc[fixed, ["low", "high"]] = np.nan
    if baseline in policies and not _is_one_run(runs[runs["policy"] == baseline]):
        return table
    table.loc[fixed, "seeds"] = 1
    return _without(table, fixed, "change_", "difference_", "p_")


def _is_one_run(runs: pd.DataFrame) -> bool:
    measured = runs.select_dtypes("number").drop(columns=_WITHOUT_MEANING, errors="ignore")
    return bool((measured.nunique(dropna=False) <= 1).all())


def _without(table: pd.DataFrame, where: pd.Series, *beginnings: str) -> pd.DataFrame:
    """Take back the columns that begin so, and with them the verdict."""
    table = table.copy()
    table.loc[where, [name for name in table.columns if name.startswith(beginnings)]] = np.nan
    for name in (name for name in table.columns if name.startswith("verdict")):
        table.loc[where & table[name].isin(["better", "worse"]), name] = "undecided"
    return table


CLASS_METRICS = ("average_jct_s", "median_jct_s", "p95_jct_s", "average_slowdown", "worst_finish_time_fairness")
"""What classes are compared by unless told otherwise."""


def class_metrics(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return a row a size class that has jobs that count, from :func:`ddlsched.comparisons.alone.job_metrics`.

    Columns: size_class; average_jct_s, median_jct_s, p95_jct_s of those that finished (NaN if none did); and
    all of :func:`ddlsched.results.metrics.run_metrics`.
    """
    rows = []
    for name in SIZE_CLASSES.values():
        own = jobs[jobs["size_class"] == name]
        jct_s = counted(own)["jct_s"].dropna().to_numpy()
        rows.append({"size_class": name, **averages(jct_s, "jct_s"), **run_metrics(own)})
    classes = pd.DataFrame(rows)
    return classes[classes["jobs"] > 0].reset_index(drop=True)


def compare_classes(classes: pd.DataFrame, *, baseline: str, metrics: Sequence[str] = CLASS_METRICS) -> pd.DataFrame:
    """Return what :func:`ddlsched.results.paired_comparison.compare_runs` does, for each size class by itself.

    A seed whose workload has no job of a class says nothing of it: ``seeds`` counts those that have some. A
    seed in which no job of the class finished under some policy is left out for all and counted in
    ``seeds_left_out``; then there is no verdict. ``p_holm`` is over all classes together.

    Parameters
    ----------
    classes
        The rows of :func:`class_metrics` of all runs, with their ``seed`` and ``policy``; every policy on every seed.
    baseline, metrics
        As for runs.

    Raises
    ------
    InputError
        A policy lacks a seed, or there is no such baseline or metric.
    """
    parts = []
    for name in SIZE_CLASSES.values():
        own = classes[classes["size_class"] == name]
        if len(own):
            compared = compare_runs(own, baseline=baseline, metrics=metrics)
            compared.insert(0, "size_class", name)
            parts.append(compared)
    if not parts:
        raise InputError("comparison of size classes: no job counts; expected one that arrives after the warm-up")
    return with_holm(pd.concat(parts, ignore_index=True))
