"""Why a job waited: what blocked it, and who held that.

A run that was recorded (``simulate(..., timeline=True)``, or a window that holds the job's whole life) says at
each moment which of the job's phases it was in; every waiting moment is put down to what the job waited for and
to the jobs that held it. Where several held it at once, the time is shared equally among them, so that the
blockers of a phase add up to the phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.results.placed_waits import Blocker, placed_waits
from ddlsched.results.slices import STATE_TASK, sending
from ddlsched.results.tenants import tenant_waits
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.tasks import CollectiveTask

if TYPE_CHECKING:
    from ddlsched.engine.outcome import Residency
    from ddlsched.results.result import Result


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


_NO_ALLOCATION = "the allocation policy gave it no GPUs"
_POLICY_CHOSE = "the placement policy chose to wait, though enough GPUs had the memory"


def explain(result: Result, job_id: str) -> pd.DataFrame:
    """Return what a job waited for, who held it, and how long: a row a blocker, those of a phase longest first.

    Parameters
    ----------
    result
        A recorded run.
    job_id
        The job.

    Returns
    -------
    DataFrame
        ``phase`` (queueing, gpu_wait or network_wait), ``waited_for`` (a server's GPU memory, a GPU, a link,
        repairs, or a policy's decision), ``held_by`` (a job, itself if its checkpoint was on the way, or None),
        ``seconds``. The seconds of a phase add up to that phase in :attr:`Result.jobs`.

    Raises
    ------
    UnknownNameError
        No such job.
    InputError
        The run was not recorded, or not for the job's whole life.
    """
    waits_ns: dict[Blocker, float] = defaultdict(float)
    number = result.number_of(job_id)
    _refuse_unrecorded(result, number)
    for blocker, waited_ns in (*_queueing(result, number), *placed_waits(result, number)):
        waits_ns[blocker] += waited_ns
    rows = [(*blocker, waited_ns / NS_PER_S) for blocker, waited_ns in waits_ns.items()]
    frame = pd.DataFrame(rows, columns=["phase", "waited_for", "held_by", "seconds"])
    phases = ["queueing", "gpu_wait", "network_wait"]
    frame["phase"] = pd.Categorical(frame["phase"], phases, ordered=True)
    frame = frame.sort_values(["phase", "seconds"], ascending=[True, False], kind="stable", ignore_index=True)
    return frame.astype({"phase": str})


def reservations(result: Result, job_id: str) -> pd.DataFrame:
    """Return a job's reservations that a policy told of, in order: ``made_s`` and ``start_s``, seconds.

    Raises
    ------
    UnknownNameError
        No such job.
    """
    number = result.number_of(job_id)
    rows = [(made, start) for job, made, start in result.finished.reservations if job == number]
    return pd.DataFrame(rows, columns=["made_s", "start_s"], dtype=float) / NS_PER_S


def _refuse_unrecorded(result: Result, number: int) -> None:
    state = result.finished.state
    run, job = state.run[0], state.jobs[number]
    other = result.finished.recorded_job_id not in (None, result.workload[number].job_id)
    last_ns = job.finish_ns if job.finish_ns >= 0 else result.finished.end_ns
    placed = job.start_ns >= 0
    whole = not placed or (run.record_from_ns <= job.start_ns and last_ns <= run.record_to_ns)
    if not run.record or other or not whole:
        raise InputError(
            f"job {result.workload[number].job_id!r}: the run's timeline does not hold its whole life; "
            "expected one of simulate(..., timeline=True) or timeline=Window(job_id=...)"
        )


# --- in the queue


def _queueing(result: Result, number: int) -> Iterator[tuple[Blocker, float]]:
    """Yield what the job waited for between arrival and placement, and after each failure."""
    state = result.finished.state
    own = [stay for stay in result.finished.stays if stay.job == number]
    since = [int(state.jobs.arrival_ns[number])] + [stay.to_ns for stay in own]
    until = [stay.from_ns for stay in own] + [result.finished.end_ns]
    finished = state.jobs.finish_ns[number] >= 0
    span_waits = tenant_waits if result.finished.refused else _queue_span
    for from_ns, to_ns in list(zip(since, until, strict=True))[: -1 if finished else None]:
        yield from span_waits(result, number, from_ns, to_ns)


def _queue_span(result: Result, number: int, from_ns: int, to_ns: int) -> Iterator[tuple[Blocker, float]]:
    stays = [stay for stay in result.finished.stays if stay.from_ns < to_ns and stay.to_ns > from_ns]
    outages = [outage for outage in result.finished.outages if outage[1] < to_ns and outage[2] > from_ns]
    changes = {time for stay in stays for time in (stay.from_ns, stay.to_ns)}
    changes |= {time for _, *times in outages for time in times} | {from_ns, to_ns}
    times = sorted(time for time in changes if from_ns <= time <= to_ns)
    for begin, end in pairwise(times):
        present = [stay for stay in stays if stay.from_ns <= begin < stay.to_ns]
        down = {server for server, down_ns, up_ns in outages if down_ns <= begin < up_ns}
        blockers = _lacking(result, number, present, down)
        for blocker in blockers:
            yield blocker, (end - begin) / len(blockers)


def _lacking(result: Result, number: int, present: list[Residency], down: set[int]) -> list[Blocker]:
    """Return who holds the memory of GPUs that lack it, once a GPU, or why the job is not placed at all."""
    job, cluster = result.workload[number], result.cluster
    if isinstance(job, ElasticJob):
        return [Blocker("queueing", _NO_ALLOCATION, None)]
    free_bytes = cluster.gpu_memory_bytes.copy()
    for stay in present:
        holder = result.workload[stay.job]
        alone = cluster.exclusive or isinstance(holder, ElasticJob)
        free_bytes[list(stay.gpus)] = -1 if alone else free_bytes[list(stay.gpus)] - holder.gpu_memory_bytes
    lacks = free_bytes < job.gpu_memory_bytes
    failed = np.isin(cluster.server_of_gpu, list(down))
    if np.count_nonzero(~lacks & ~failed) >= job.num_gpus:
        return [Blocker("queueing", _POLICY_CHOSE, None)]
    held = "GPUs" if cluster.exclusive else "GPU memory"
    blockers = [
        Blocker("queueing", f"{held} of server {cluster.server_of_gpu[gpu]}", result.workload[stay.job].job_id)
        for stay in present
        for gpu in stay.gpus
        if lacks[gpu] and not failed[gpu]
    ]
    useful = down & set(cluster.server_of_gpu[cluster.gpu_memory_bytes >= job.gpu_memory_bytes].tolist())
    return blockers + [Blocker("queueing", f"repair of server {server}", None) for server in sorted(useful)]
