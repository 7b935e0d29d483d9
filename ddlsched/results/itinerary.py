"""Where a job was, on which paths and why it left, and what it sent for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.results.slices import STATE_TASK, sending
from ddlsched.units import NS_PER_S
from ddlsched.workload.tasks import CollectiveTask

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.results.result import Result

__all__ = ["stays_of", "transfers_of"]


def stays_of(result: Result, job_id: str) -> pd.DataFrame:
    """Return a row for each of a job's stays on GPUs, in order; checkpoints do not end one.

    Columns: from_s, to_s (NaN if it is there still); ended_by (stopped by the order, moved, a failure, ...; empty of a
    job that finished or is there still); gpus; paths (the names of the links between switches that its flows crossed,
    each once); state_bytes (of its state, over the network).

    Raises
    ------
    UnknownNameError
        No such job.
    """
    import pandas as pd

    number, network = result.number_of(job_id), result.finished.network
    rows: list[dict[str, Any]] = []
    for stay in result.finished.stays:
        if stay.job != number:
            continue
        if not stay.saved:
            names = (network.links[link].name for link in dict.fromkeys(stay.links) if link >= network.ports.stop)
            row = {"from_s": stay.from_ns / NS_PER_S, "gpus": stay.gpus, "paths": tuple(names), "state_bytes": 0}
            rows.append(row)
        to_s = stay.to_ns / NS_PER_S if stay.to_ns >= 0 else np.nan
        rows[-1] |= {"to_s": to_s, "ended_by": stay.ended_by}
        rows[-1]["state_bytes"] += stay.state_bytes
    return pd.DataFrame(rows, columns=["from_s", "to_s", "ended_by", "gpus", "paths", "state_bytes"])


def transfers_of(result: Result, job_id: str) -> pd.DataFrame:
    """Return a row for each of a job's collectives that crossed a link, and one for its state, in the order of tasks.

    Columns: task (its name; "state" of what a job that goes on elsewhere takes along); kind (all-reduce, ...); tuples
    (of workers, each of which has its own transfer); seconds (in which at least one of them ran).

    Raises
    ------
    UnknownNameError
        No such job.
    InputError
        The run was not recorded.
    """
    import pandas as pd

    number, slices = result.number_of(job_id), sending(result)
    own = slices.job == number
    dag = result.workload[number].dag
    task_of_part = np.array([n for n, task in enumerate(dag.tasks) for _ in dag.names_of(task)], np.int64)
    tasks = np.where(slices.task[own] < 0, -1, task_of_part[np.maximum(slices.task[own], 0)])
    start_ns, end_ns = slices.start_ns[own], slices.end_ns[own]
    rows = []
    for place in np.unique(tasks).tolist():
        seconds = _covered_ns(start_ns[tasks == place], end_ns[tasks == place]) / NS_PER_S
        task = dag.tasks[place]
        if place < 0:
            rows.append((STATE_TASK, STATE_TASK, 1, seconds))
        elif isinstance(task, CollectiveTask):
            rows.append((task.name, task.kind, len(dag.names_of(task)), seconds))
    return pd.DataFrame(rows, columns=["task", "kind", "tuples", "seconds"])


def _covered_ns(start_ns: np.ndarray, end_ns: np.ndarray) -> int:
    """Return how much time some spans cover together."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    gaps_ns = np.maximum(start_ns[1:] - reach_ns[:-1], 0).sum()
    return int(reach_ns[-1] - start_ns[0] - gaps_ns)
