"""What every GPU and every transfer did, when: the records of a run as columns and as tables.

A run has them only if they were asked for, ``simulate(..., timeline=True)`` or ``timeline=(from_s, to_s)``.
Of a window, everything that intersects it is there, whole. Iterations are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlsched.deferred import pa, pd, pq
from ddlsched.engine.field_values import SliceKind
from ddlsched.engine.outcome import gpus_of_workers
from ddlsched.errors import InputError
from ddlsched.io.files import replacing

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster
    from ddlsched.engine.outcome import Finished
    from ddlsched.engine.records import Records
    from ddlsched.workload.job import Workload

STATE_TASK = "state"
"""What stands for a task where a transfer is of a job's state."""

_CHUNK = 1 << 14
"""Rows turned into Python numbers at a time, so that a long timeline is never in memory as text."""


class RunRecords:
    """What was simulated, and the records of the run.

    Attributes
    ----------
    workload, cluster
        What was simulated.
    finished
        The records.
    """

    def __init__(self, workload: Workload, cluster: Cluster, finished: Finished) -> None:
        self.workload = workload
        self.cluster = cluster
        self.finished = finished


def compute_slices(run: RunRecords) -> pd.DataFrame:
    """Return a row for each time that a GPU ran a task, sorted by GPU, then start.

    Columns: gpu; job_id; task (its name); iteration; start_ns, end_ns; cut (whether a failure ended it undone).
    Tasks that take no time are left out.

    Raises
    ------
    InputError
        The run was not recorded.
    """
    slices = computing(run)
    return pd.DataFrame({"gpu": slices.owner} | _named(run, slices) | {"cut": slices.sharing == 1})


def transfer_slices(run: RunRecords) -> pd.DataFrame:
    """Return a row for each time that a transfer ran at one rate, sorted by start, then transfer.

    A transfer has several rows in an iteration if its rate or the number it shares with changed, or if it
    paused. During its latency it has its rate, but sends nothing.

    Columns: job_id; task (its name; "state" of what a job that goes on elsewhere takes along); iteration; start_ns,
    end_ns; links (numbers of the rows of
    ``Result.links``, one entry a crossing); sharing (the most transfers on any one of its links, itself
    included); rate_bytes_per_s.

    Raises
    ------
    InputError
        The run was not recorded.
    """
    slices = sending(run)
    frame = pd.DataFrame(_named(run, slices))
    which, routes = crossed(run, slices.stay, slices.task, slices.start_ns)
    frame["links"] = [routes[place] for place in which.tolist()]
    return frame.assign(sharing=slices.sharing, rate_bytes_per_s=slices.rate)


def timeline_table(run: RunRecords) -> pd.DataFrame:
    """Return a row for each time that a GPU ran a task or a transfer ran at one rate, sorted by start.

    Columns: kind (``compute`` or ``transfer``); job_id; task; iteration; start_ns, end_ns; of a task gpu and cut
    (whether a failure ended it undone); of a transfer links (numbers of the rows of ``Result.links``), sharing (the
    most transfers on any of them, itself included) and rate_bytes_per_s. What a row does not have is missing.

    Raises
    ------
    InputError
        The run was not recorded.
    """
    slices = (compute_slices(run).assign(kind="compute"), transfer_slices(run).assign(kind="transfer"))
    names = ["kind", "job_id", "task", "iteration", "start_ns", "end_ns", "gpu", "cut"]
    names += ["links", "sharing", "rate_bytes_per_s"]
    parts = [
        part.reindex(columns=names).astype({"gpu": "Int64", "cut": "boolean", "sharing": "Int64", "links": "object"})
        for part in slices
    ]
    table = pd.concat(parts, ignore_index=True).sort_values("start_ns", kind="stable", ignore_index=True)
    table["links"] = table["links"].map(list, na_action="ignore")
    return table


def write_timeline_table(run: RunRecords, path: Path) -> None:
    """Write the table to a Parquet file, whole or not at all.

    Raises
    ------
    InputError
        The run was not recorded, or the file cannot be written.
    """
    table = timeline_table(run)
    links = pa.array(table.pop("links"), pa.list_(pa.int64()), from_pandas=True)
    whole = pa.Table.from_pandas(table, preserve_index=False).append_column("links", links)
    with replacing(path, "timeline") as beside:
        pq.write_table(whole, beside)


class Slices(NamedTuple):
    """Columns of what GPUs ran or transfers did.

    ``owner`` is the number of the GPU or transfer; ``sharing`` of a GPU's is 1 if a failure cut it short.
    """

    owner: np.ndarray
    job: np.ndarray
    stay: np.ndarray
    task: np.ndarray
    iteration: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    sharing: np.ndarray
    rate: np.ndarray


def _recorded(run: RunRecords, *kinds: int) -> Records:
    """Return the recorded slices of some kinds that take time."""
    if not run.finished.state.run[0].record:
        raise InputError("this run has no timeline; expected one of simulate(..., timeline=True) or (FROM, TO)")
    slices = run.finished.slices
    return slices[np.isin(slices["kind"], kinds) & (slices["end_ns"] > slices["start_ns"])]


def computing(run: RunRecords) -> Slices:
    """Return what the GPUs ran, sorted by GPU, then start."""
    state = run.finished.state
    slices = _recorded(run, SliceKind.COMPUTE, SliceKind.LOCKSTEP, SliceKind.CUT)
    job = state.workers.job[slices["owner"]]
    # A job in lockstep is recorded once, for its first worker; the others have the numbers after it.
    sizes = np.array([len(stay.gpus) for stay in run.finished.stays], np.int64)
    place, nth = repeated(np.where(slices["kind"] == SliceKind.LOCKSTEP, sizes[slices["stay"]], 1))
    gpu = gpus_of_workers(run.finished.stays, state.jobs.first_worker, slices[place], nth)
    order = np.lexsort((slices["start_ns"][place], gpu))
    place = place[order]
    slices["sharing"] = slices["kind"] == SliceKind.CUT
    return Slices(gpu[order], job[place], *(slices[name][place] for name in Slices._fields[2:]))


def sending(run: RunRecords) -> Slices:
    """Return what the transfers did, sorted by start, then transfer."""
    slices = _recorded(run, SliceKind.TRANSFER)
    slices = slices[np.lexsort((slices["owner"], slices["start_ns"]))]
    job = run.finished.state.transfers.job[slices["owner"]]
    return Slices(slices["owner"], job, *(slices[name] for name in Slices._fields[2:]))


def crossed(
    run: RunRecords, stay: np.ndarray, task: np.ndarray, start_ns: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Return the links that transfers of some stays and tasks crossed at some times, an entry a crossing.

    For each transfer a place in a list, and that list.
    """
    stays = run.finished.stays
    if any(each.rerouted for each in stays):
        rows = zip(stay.tolist(), task.tolist(), start_ns.tolist(), strict=True)
        return np.arange(len(stay)), [stays[number].links_at(part, time_ns) for number, part, time_ns in rows]
    first = int(task.min(initial=0))  # those of state are below 0
    num_tasks = int(task.max(initial=0)) + 1 - first
    pairs, which = np.unique(stay.astype(np.int64) * num_tasks + task - first, return_inverse=True)
    return which, [stays[pair // num_tasks].links_of[pair % num_tasks + first] for pair in pairs.tolist()]


def repeated(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return places 0, 1, ... each as often as ``counts`` says, and for each repetition which one it is."""
    place = np.repeat(np.arange(len(counts)), counts)
    return place, np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)


def _named(run: RunRecords, slices: Slices) -> dict[str, Any]:
    """Return the columns that both tables have."""
    job_ids = np.array([job.job_id for job in run.workload], dtype=object)
    names = [job.dag.part_names for job in run.workload]
    first, tasks = np.cumsum([0, *map(len, names)]), np.array([*chain.from_iterable(names)], dtype=object)
    of_tasks = tasks[first[slices.job] + np.maximum(slices.task, 0)]
    return {
        "job_id": job_ids[slices.job],
        "task": np.where(slices.task >= 0, of_tasks, STATE_TASK),
        "iteration": slices.iteration,
        "start_ns": slices.start_ns,
        "end_ns": slices.end_ns,
    }


def rows_of(*columns: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """Iterate over equally long columns row by row."""
    for first in range(0, len(columns[0]), _CHUNK):
        yield from zip(*(column[first : first + _CHUNK].tolist() for column in columns), strict=True)
