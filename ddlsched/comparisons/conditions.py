"""Under which conditions a comparison's results hold, a sentence each: paths, kinds, exclusive GPUs, stops, moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ddlsched.cluster.disturbances import jitter_remark
from ddlsched.results.door_counts import COUNTS
from ddlsched.results.metrics import ON_NETWORK, network_remark

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["conditions"]


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
            on = (
                f"the workload's times are those on {table['reference_kind']}"
                if table["reference_kind"]
                else ("a throughput of 1 means the workload's times")
            )
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
