"""What tenants had of a run: waits and JCT by queue, how many GPUs each had when, and how the free ones lay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.results.placed_waits import Blocker
from ddlsched.units import NS_PER_S

if TYPE_CHECKING:
    from ddlsched.results.result import Result

_BEHIND = "behind other jobs of its queue"


def tenant_table(result: Result) -> pd.DataFrame:
    """Return what each queue's jobs had: a row a queue, in the order of their names.

    Returns
    -------
    DataFrame
        By ``queue``: ``jobs``, ``finished``, ``wait_s`` and ``jct_s`` (means of those that finished, seconds),
        ``p95_wait_s``, ``gpu_hours``, ``preemptions``.

    Raises
    ------
    InputError
        No job has a queue.
    """
    queues = _queues(result)
    jobs = result.jobs.assign(queue=queues)
    done = jobs[jobs["state"] == "finished"].groupby("queue")
    hours = pd.Series(0.0, index=sorted(set(queues)))
    for stay in result.finished.stays:
        hours[queues[stay.job]] += (stay.to_ns - stay.from_ns) * len(stay.gpus) / NS_PER_S / 3600
    preempted = pd.Series([queues[each.job] for each in result.finished.departures if not each.moved], dtype=object)
    table = pd.DataFrame(
        {
            "jobs": jobs.groupby("queue").size(),
            "finished": done.size(),
            "wait_s": done["queueing_s"].mean(),
            "p95_wait_s": done["queueing_s"].quantile(0.95),
            "jct_s": done["jct_s"].mean(),
            "gpu_hours": hours,
            "preemptions": preempted.value_counts(),
        }
    )
    return table.fillna({"finished": 0, "preemptions": 0}).astype({"finished": int, "preemptions": int})


def gpus_over_time(result: Result) -> pd.DataFrame:
    """Return how many GPUs each queue's jobs have, from each time on at which that changes.

    Returns
    -------
    DataFrame
        A row a change, index ``time_s``; a column a queue.
    """
    queues = _queues(result)
    rows = [
        (time_ns, queues[stay.job], sign * len(stay.gpus))
        for stay in result.finished.stays
        for time_ns, sign in ((stay.from_ns, 1), (stay.to_ns, -1))
    ]
    changes = pd.DataFrame(rows, columns=["time_ns", "queue", "gpus"])
    table = changes.pivot_table(index="time_ns", columns="queue", values="gpus", aggfunc="sum", fill_value=0).cumsum()
    table.index = pd.Index(table.index / NS_PER_S, name="time_s")
    return table.reindex(columns=sorted(set(queues)), fill_value=0).astype(int)


def free_gpus_over_time(result: Result) -> pd.DataFrame:
    """Return how many GPUs no job has, and how many of these are fragments: on servers of which jobs have others.

    Returns
    -------
    DataFrame
        A row a change, from 0 on, index ``time_s``; columns ``free`` and ``fragments``, GPUs.
    """
    cluster = result.cluster
    first, server_of = cluster.first_gpus, np.asarray(cluster.server_of_gpu)
    jobs_on, free = np.zeros(cluster.num_gpus, np.int64), np.diff(first)
    all_free, fragments, rows = free.copy(), np.zeros_like(free), [(0.0, cluster.num_gpus, 0)]
    changes = [
        (time, sign, stay) for stay in result.finished.stays for time, sign in ((stay.to_ns, -1), (stay.from_ns, 1))
    ]
    for time_ns, sign, stay in sorted(changes, key=lambda change: change[:2]):
        gpus = np.asarray(stay.gpus)
        jobs_on[gpus] += sign
        for server in np.unique(server_of[gpus]):
            free[server] = np.count_nonzero(jobs_on[first[server] : first[server + 1]] == 0)
            fragments[server] = free[server] if free[server] < all_free[server] else 0
        rows.append((time_ns / NS_PER_S, int(free.sum()), int(fragments.sum())))
    table = pd.DataFrame(rows, columns=["time_s", "free", "fragments"])
    return table.drop_duplicates("time_s", keep="last").set_index("time_s")


def _queues(result: Result) -> list[str]:
    """Return the queue of each job; "-" for those that have none beside others that have one."""
    queues = [job.queue for job in result.workload]
    if not any(queues):
        raise InputError("no job has a queue; expected a workload with the column queue")
    return [queue or "-" for queue in queues]


def tenant_waits(result: Result, number: int, from_ns: int, to_ns: int) -> Iterator[tuple[Blocker, float]]:
    """Yield why a job waited to be admitted in a span of time, and for how long, nanoseconds.

    Why is what was said last of the job, or of one of its queue and size, behind which it waited.
    """
    job, workload = result.workload[number], result.workload
    alike = [
        each
        for each in result.finished.refused
        if each.job == number or (workload[each.job].queue, workload[each.job].num_gpus) == (job.queue, job.num_gpus)
    ]
    times_ns = np.array([each.time_ns for each in alike], np.int64)
    inside = {int(time_ns) for time_ns in times_ns if from_ns < time_ns < to_ns}
    for begin, end in pairwise(sorted({from_ns, to_ns, *inside})):
        place = int(np.searchsorted(times_ns, begin, side="right"))
        yield Blocker("queueing", alike[place - 1].reason if place else _BEHIND, None), end - begin
