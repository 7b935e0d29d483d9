"""A run as it was, and again with something changed: which tenants and jobs gain, and which lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.cluster_files import read_cluster, tenants_of
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.tenants import ANY_KIND, Quota, Tenants
from ddlsched.deferred import pd
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.options import hints_of
from ddlsched.plugins.names import parsed_value
from ddlsched.results.statistics import NO_SEED, Interval, paired_change, verdict
from ddlsched.results.tenants import tenant_table
from ddlsched.simulation import simulate

if TYPE_CHECKING:
    from ddlsched.results.result import Result
    from ddlsched.workload.job import Workload

_OWN = ("servers", "quota.QUEUE")
_REFUSED = ("timeline", "watch", "disturbances", "throughputs", "reference_kind", "replay", "seed", "draw")


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Two runs of the same jobs, or several such pairs, whose jobs' lengths differ by a hair.

    Attributes
    ----------
    pairs
        Before and after, a pair a draw, at least one.
    """

    pairs: tuple[tuple[Result, Result], ...]

    def tenants(self) -> pd.DataFrame:
        """Return for each queue what it had before and after: means, and the change of the JCT as a share.

        Returns
        -------
        DataFrame
            By ``queue``: ``jobs``, ``wait_before_s``, ``wait_after_s``, ``jct_before_s``, ``jct_after_s``,
            ``preemptions_before``, ``preemptions_after``; ``jct_change``, of several draws with the ends of its 95 %
            interval, ``jct_change_low`` and ``_high``, and the ``verdict``: better, worse, or undecided. The last row,
            ``all``, is of all jobs. Jobs count that finished in both runs, and that both count; of a queue without any
            means are NaN.
        """
        draws = pd.concat([_means(*pair) for pair in self.pairs])
        rows = draws.groupby(["of_all", "queue"], sort=False)
        table = rows.mean().droplevel("of_all")
        changes = [_change(of_draws) for _, of_draws in rows]
        told = {"jct_change": "mean", "jct_change_low": "low", "jct_change_high": "high"}
        for column, end in told.items():
            table[column] = [getattr(change, end) for change in changes]
        if len(self.pairs) == 1:
            return table.drop(columns=["jct_change_low", "jct_change_high"])
        return table.assign(verdict=[verdict(change) for change in changes])

    def jobs(self) -> pd.DataFrame:
        """Return by how much each job that finished in both runs is faster, on average: who gains most first.

        Returns
        -------
        DataFrame
            ``job_id``, ``queue``, ``jct_before_s``, ``jct_after_s``, ``gain_s``.
        """
        both = pd.concat([_finished_in_both(*pair) for pair in self.pairs])
        both = both.groupby(["job_id", "queue"], sort=False, as_index=False).mean()
        both["gain_s"] = both["jct_before_s"] - both["jct_after_s"]
        columns = ["job_id", "queue", "jct_before_s", "jct_after_s", "gain_s"]
        return both[columns].sort_values("gain_s", ascending=False, ignore_index=True)


def _means(before: Result, after: Result) -> pd.DataFrame:
    """Return the means of each queue, and of all, in a pair of runs, by ``of_all``, as queues may be called ``all``."""
    both = _finished_in_both(before, after)
    names = [f"{name}_{when}_s" for name in ("wait", "jct") for when in ("before", "after")]
    runs = {"before": before, "after": after}
    stops = pd.DataFrame({f"preemptions_{when}": tenant_table(run)["preemptions"] for when, run in runs.items()})
    counts = both["queue"].value_counts().reindex(stops.index, fill_value=0)
    of_queues = counts.to_frame("jobs").join(both.groupby("queue")[names].mean()).join(stops)
    of_all = pd.DataFrame({"jobs": len(both), **both[names].mean(), **stops.sum()}, index=["all"])
    return pd.concat({False: of_queues, True: of_all}, names=["of_all", "queue"])


def _change(draws: pd.DataFrame) -> Interval:
    """Return the change of a queue's JCT over the draws in which a job of it finished."""
    done = draws[draws["jobs"] > 0]
    return NO_SEED if done.empty else paired_change(done["jct_after_s"], done["jct_before_s"])


def _finished_in_both(before: Result, after: Result) -> pd.DataFrame:
    jobs = {"before": before.jobs, "after": after.jobs}
    done = np.logical_and.reduce([(each["state"] == "finished") & each["counted"] for each in jobs.values()])
    if not done.any():
        raise InputError("no job that counts finished in both runs; expected one (warmup_s, until_s)")
    table = jobs["before"][["job_id"]].assign(queue=[job.queue or "-" for job in before.workload])
    for when, frame in jobs.items():
        table[f"wait_{when}_s"], table[f"jct_{when}_s"] = frame["queueing_s"], frame["jct_s"]
    return table[done].copy()


def what_if(workload: Workload, options: Mapping[str, Any], changes: Sequence[str], *, draws: int = 1) -> WhatIf:
    """Run jobs as they were, and with changes.

    Parameters
    ----------
    workload, options
        The run: its jobs, and arguments of :func:`ddlsched.simulate`.
    changes
        See :func:`changed`.
    draws
        How often, with jobs' lengths that differ by at most 0.1 % or one iteration.

    Raises
    ------
    InputError, UnknownNameError
        A change that is none, or a run that cannot be.
    """
    if not any(job.queue for job in workload):
        raise InputError("no job has a queue; expected a workload with the column queue, to say which tenants gain")
    if draws < 1:
        raise InputError(f"--draws {draws}: is no number of runs; expected 1 or more")
    both = (options, changed(options, changes))
    first, second = ([simulate(workload, **given, draw=draw) for draw in range(draws)] for given in both)
    return WhatIf(pairs=tuple(zip(first, second, strict=True)))


def changed(options: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return the options of a run with changes, each ``NAME=VALUE``.

    ``servers=+4`` adds servers like the last one (``-4`` takes the last ones away), ``quota.QUEUE=16`` sets what a
    queue is guaranteed (``+8``: so many more), and any other name is that of an option of a run or of its disturbances.

    Raises
    ------
    InputError
        A text without ``=``, or a value that is none.
    UnknownNameError
        No option of that name, or no such queue.
    """
    found = dict(options)
    for text in changes:
        name, sign, value = text.partition("=")
        if not sign or not value:
            raise InputError(f"--change {text}: expected NAME=VALUE, such as servers=+4 or quota.team-a=32")
        if name == "servers":
            found["cluster"] = _with_servers(found.get("cluster") or Cluster(), text, value)
        elif name.startswith("quota."):
            found["queues"] = _with_quota(found, text, name.removeprefix("quota."), value)
        else:
            _set(found, text, name.replace("-", "_"), value)
    return found


def _set(found: dict[str, Any], text: str, name: str, value: str) -> None:
    of_run = {option: kind for option, kind in hints_of(RunOptions).items() if option not in _REFUSED}
    of_disturbances = hints_of(Disturbances)
    known: dict[str, Any] = {**of_run, **of_disturbances}
    if name not in known:
        raise UnknownNameError(f"--change {text}: nothing is called so.{did_you_mean(name, [*known, *_OWN])}")
    cluster, new = found.get("cluster") or Cluster(), parsed_value(f"--change {text}", known[name], value)
    if name == "server_table":
        table = read_cluster(value, topology=cluster.topology, exclusive=cluster.exclusive)
        found["cluster"] = replace(table, throughputs=cluster.throughputs)
    elif name in ("gpus_per_server", "gpu_memory_mb") and cluster.servers:
        raise InputError(f"--change {text}: the servers are those of a table; expected server_table=FILE.csv")
    elif name in ("topology", "exclusive", "gpus_per_server", "gpu_memory_mb"):
        found["cluster"] = replace(cluster, **{name: new})
    elif name in of_disturbances:
        found["disturbances"] = replace(found.get("disturbances") or Disturbances(), **{name: new})
    else:
        found[name] = new


def _number(text: str, value: str, before: int) -> int:
    """Return a number, or one that is so many more or fewer than before."""
    try:
        return before + int(value) if value[0] in "+-" else int(value)
    except ValueError:
        raise InputError(f"--change {text}: {value!r} is no number; expected such as 16, +4 or -4") from None


def _with_servers(cluster: Cluster, text: str, value: str) -> Cluster:
    count = _number(text, value, cluster.num_servers)
    if count < 1:
        raise InputError(f"--change {text}: leaves {count} servers; expected 1 or more")
    if not cluster.servers:
        return replace(cluster, num_servers=count)
    servers = cluster.servers[:count]
    return replace(cluster, servers=servers + cluster.servers[-1:] * (count - len(servers)))


def _with_quota(found: Mapping[str, Any], text: str, name: str, value: str) -> Tenants:
    tenants = tenants_of(found.get("queues"))
    if tenants is None:
        raise InputError(f"--change {text}: the run has no queues; expected --queues as well")
    if name not in tenants.by_name:
        raise UnknownNameError(f"--change {text}: no queue is named {name!r}.{did_you_mean(name, tenants.by_name)}")
    queue = tenants.by_name[name]
    if len(queue.quotas) > 1:
        raise InputError(f"--change {text}: {name} has quotas of several kinds; expected queues=FILE with others")
    kind = next(iter(queue.quotas), next(iter(tenants.kinds), ANY_KIND))
    own = queue.quotas.get(kind, Quota())
    other = replace(queue, quotas={kind: replace(own, gpus=_number(text, value, own.gpus))})
    return Tenants(queues=tuple(other if each is queue else each for each in tenants.queues))
