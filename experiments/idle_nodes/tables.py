"""Each part's table as the command prints it and the README shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from ddlsched.results.paired_comparison import interval_text, markdown
from ddlsched.results.statistics import Interval, by_seed, mean_interval, paired_change, paired_difference

BASE = "optimum, T_fwd 120 s"
REFERENCE = {"equal share": (212.7, 0.754), "optimum, T_fwd 10 s": (205.0, 0.820), BASE: (203.5, 0.836)}
"""Makespan (h) and U of the reference replay of the measured trace."""


def shown(part: str, table: pd.DataFrame) -> str:
    """Return a part's table in Markdown."""
    return markdown(ROWS[part](table))


def _outcome(row: Mapping[str, float]) -> dict[str, str]:
    return {
        "makespan h": f"{row['makespan_h']:.1f}",
        "lost to rescale (%)": f"{100 * row['rescale_lost']:.2f}",
        "lost to pre-emption (%)": f"{100 * row['preempt_lost']:.1f}",
        "rescales": f"{row['rescales']:,.0f}",
        "U": f"{row['u']:.3f}",
    }


def _reference(table: pd.DataFrame) -> list[dict[str, str]]:
    return [{"policy": row["policy"]} | _outcome(row) for row in table.to_dict("records")]


def _crosscheck(table: pd.DataFrame) -> list[dict[str, str]]:
    rows = []
    for row in table.to_dict("records"):
        more = {"of running trainers": f"{row['of_running']:,.0f}", "trainers done": f"{row['finished']:,.0f}"}
        makespan_h, u = REFERENCE[row["policy"]]
        given = {"reference, measured trace: h": f"{makespan_h:.1f}", "its U": f"{u:.3f}"}
        rows.append({"policy": row["policy"]} | _outcome(row) | more | given)
    return rows


def _sweep(table: pd.DataFrame) -> list[dict[str, str]]:
    rows = []
    for (trainers, rules), own in table.groupby(["trainers", "rules"], sort=False):
        best = own["u"].max()
        for row in own.to_dict("records"):
            labels = {"trainers": trainers, "rules": rules, "T_fwd s": f"{row['lookahead_s']:.0f}"}
            rows.append(labels | _outcome(row) | {"best": "x" if row["u"] == best else ""})
    return rows


def stream_changes(table: pd.DataFrame, metric: str, baseline: str) -> dict[str, dict[str, Interval]]:
    """Return by stream, then by policy, the change (%) of a metric against a policy's, paired by seed."""
    found = {}
    for stream, own in table.groupby("stream", sort=False):
        values = by_seed(own, metric)
        others = [policy for policy in values if policy != baseline]
        found[str(stream)] = {name: paired_change(values[name], values[baseline]).scaled(100) for name in others}
    return found


def _streams(table: pd.DataFrame) -> list[dict[str, str]]:
    linear = "FreeTrain, linear"
    jobs, ends = (stream_changes(table, metric, linear) for metric in ("jobs_per_h", "mean_finish_h"))
    truth = stream_changes(table, "mean_finish_h", "FreeTrain, true curves")
    return [
        {
            "stream": str(stream),
            "policy": str(policy),
            "jobs/h": f"{own['jobs_per_h'].mean():.2f}",
            "over linear (%)": _text(jobs[str(stream)].get(str(policy)), 1),
            "mean end h": f"{own['mean_finish_h'].mean():.1f}",
            "against linear (%)": _text(ends[str(stream)].get(str(policy)), 1),
            "against true curves (%)": _text(truth[str(stream)].get(str(policy)), 1),
        }
        for (stream, policy), own in table.groupby(["stream", "policy"], sort=False)
    ]


def topology_changes(table: pd.DataFrame) -> dict[tuple[str, str], Interval | None]:
    """Return by network and choice of nodes the change (%) against the star with counts alone, paired by window."""
    named = table.assign(policy=list(zip(table["network"], table["nodes_by"], strict=True)))
    rates = named.pivot(index="window", columns="policy", values="samples_per_s")
    star = ("star", "counts alone")
    labels = dict.fromkeys(named["policy"])
    return {label: None if label == star else paired_change(rates[label], rates[star]).scaled(100) for label in labels}


def _topology(table: pd.DataFrame) -> list[dict[str, str]]:
    means = table.groupby(["network", "nodes_by"])["samples_per_s"].mean()
    return [
        {
            "network": network,
            "nodes by": choice,
            "samples/s": f"{means[network, choice]:.0f}",
            "against the star, counts alone (%)": _text(change, 1),
        }
        for (network, choice), change in topology_changes(table).items()
    ]


def beyond_by_set(table: pd.DataFrame) -> pd.DataFrame:
    """Return U with a row a set of nodes and a column a policy, in the order of the table."""
    return table.pivot(index="first_node", columns="policy", values="u")[list(dict.fromkeys(table["policy"]))]


def _beyond(table: pd.DataFrame) -> list[dict[str, str]]:
    u = beyond_by_set(table)
    lost = table.groupby("policy")[["rescale_lost", "preempt_lost"]].mean()
    rows = []
    for policy in u:
        gain = None if policy == BASE else paired_difference(u[policy], u[BASE])
        losses = [f"{100 * share:.2f}" if share == share else "" for share in lost.loc[policy]]
        cells = {"policy": policy, "U": interval_text(mean_interval(u[policy]), decimals=4)}
        cells |= {"gain over T_fwd 120 s": _text(gain, 4)}
        rows.append(cells | dict(zip(("lost to rescale (%)", "lost to pre-emption (%)"), losses, strict=True)))
    return rows


def _text(interval: Interval | None, decimals: int) -> str:
    return "" if interval is None else interval_text(interval, decimals=decimals, sign=True)


def _over_seeds(table: pd.DataFrame, by: list[str]) -> list[tuple[dict[str, str], pd.DataFrame]]:
    """Return the rows of each setting, in the order of the table, with its labels."""
    groups = table.groupby(by, sort=False)
    return [(dict(zip(by, map(str, names), strict=True)), own) for names, own in groups]


def _main_queue(table: pd.DataFrame) -> list[dict[str, str]]:
    rows = []
    for labels, own in _over_seeds(table, ["source", "load", "scheduler"]):
        labels["load"] = labels["load"].replace("inf", "all wait")
        shares = {"idle (%)": own["idle"], "idle while jobs wait (%)": own["idle_while_waiting"]}
        cells = {name: interval_text(mean_interval(100 * share), decimals=1) for name, share in shares.items()}
        cells["mean wait h"] = f"{own['wait_s'].mean() / 3600:.1f}"
        cells["fragments: median s"] = f"{own['median_fragment_s'].mean():.0f}"
        rows.append(labels | cells | {"mean s": f"{own['mean_fragment_s'].mean():.0f}"})
    return rows


ROWS: dict[str, Callable[[pd.DataFrame], list[dict[str, str]]]] = {
    "reference": _reference,
    "crosscheck": _crosscheck,
    "sweep": _sweep,
    "streams": _streams,
    "topology": _topology,
    "beyond": _beyond,
    "main_queue": _main_queue,
    "logs": _main_queue,
}
