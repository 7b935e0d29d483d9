"""Why a job waited: what blocked it, and who held that.

A run that was recorded (``simulate(..., timeline=True)``, or a window that holds the job's whole life) says at
each moment which of the job's phases it was in; every waiting moment is put down to what the job waited for and
to the jobs that held it. Where several held it at once, the time is shared equally among them, so that the
blockers of a phase add up to the phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlsched.engine.loop.codes import SliceKind
from ddlsched.errors import InputError
from ddlsched.results.slices import crossed, gpus_of_workers
from ddlsched.units import NS_PER_S
from ddlsched.workload.elastic_job import ElasticJob

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.engine.loop.layout import Records
    from ddlsched.engine.outcome import Residency
    from ddlsched.results.result import Result

__all__ = ["explain"]

_KINDS = {
    SliceKind.COMPUTE: "computes",
    SliceKind.CUT: "computes",
    SliceKind.LOCKSTEP: "computes",
    SliceKind.TRANSFER: "sends",
    SliceKind.WAIT: "waits",
}
_NO_ALLOCATION = "the allocation policy gave it no GPUs"
_POLICY_CHOSE = "the placement policy chose to wait, though enough GPUs had the memory"
_POLICY_HELD = "the communication policy held it back, though no transfer ran on its links"


class Blocker(NamedTuple):
    """What a job waited for in a phase, and the job that held it, if one did."""

    phase: str
    waited_for: str
    held_by: str | None


@dataclass(frozen=True)
class _Piece:
    """Something that began and ended: what it is, whose it is (a job's number), and where (GPU or links)."""

    kind: str
    job: int
    places: tuple[int, ...]


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
        repairs, or a policy's decision), ``held_by`` (a job, or None), ``seconds``. The seconds of a phase add
        up to that phase in :attr:`Result.jobs`.

    Raises
    ------
    UnknownNameError
        No such job.
    InputError
        The run was not recorded, or not for the job's whole life.
    """
    import pandas as pd

    waits_ns: dict[Blocker, float] = defaultdict(float)
    number = result.number_of(job_id)
    _refuse_unrecorded(result, number)
    for blocker, waited_ns in (*_queueing(result, number), *_running(result, number)):
        waits_ns[blocker] += waited_ns
    rows = [(*blocker, waited_ns / NS_PER_S) for blocker, waited_ns in waits_ns.items()]
    frame = pd.DataFrame(rows, columns=["phase", "waited_for", "held_by", "seconds"])
    phases = ["queueing", "gpu_wait", "network_wait"]
    frame["phase"] = pd.Categorical(frame["phase"], phases, ordered=True)
    frame = frame.sort_values(["phase", "seconds"], ascending=[True, False], kind="stable", ignore_index=True)
    return frame.astype({"phase": str})


def _refuse_unrecorded(result: Result, number: int) -> None:
    state = result.finished.state
    run, job = state.run[0], state.jobs[number]
    last_ns = job.finish_ns if job.finish_ns >= 0 else result.finished.end_ns
    placed = job.start_ns >= 0
    if not run.record or (placed and not (run.record_from_ns <= job.start_ns and last_ns <= run.record_to_ns)):
        raise InputError(
            f"job {result.workload[number].job_id!r}: the run's timeline does not hold its whole life; "
            "expected one of simulate(..., timeline=True)"
        )


# --- in the queue


def _queueing(result: Result, number: int) -> Iterator[tuple[Blocker, float]]:
    """Yield what the job waited for between arrival and placement, and after each failure."""
    state = result.finished.state
    own = [stay for stay in result.finished.stays if stay.job == number]
    since = [int(state.jobs.arrival_ns[number])] + [stay.to_ns for stay in own]
    until = [stay.from_ns for stay in own] + [result.finished.end_ns]
    finished = state.jobs.finish_ns[number] >= 0
    for from_ns, to_ns in list(zip(since, until, strict=True))[: -1 if finished else None]:
        yield from _queue_span(result, number, from_ns, to_ns)


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


# --- on its GPUs


def _running(result: Result, number: int) -> Iterator[tuple[Blocker, float]]:
    """Yield what the job waited for while it was placed."""
    for stay in [stay for stay in result.finished.stays if stay.job == number]:
        state_ns = _state_until_ns(result, stay)
        spans = (
            (frozenset(stay.state_links), stay.from_ns, state_ns),
            (frozenset(stay.links), state_ns + stay.hold_ns, stay.to_ns),
        )
        for links, from_ns, to_ns in spans:
            pieces = _pieces(result, number, stay, links, (from_ns, to_ns)) if from_ns < to_ns else []
            for begin_ns, end_ns, going_on in _moments(pieces, from_ns, to_ns):
                blockers = _blockers(result, number, going_on)
                for blocker in blockers:
                    yield blocker, (end_ns - begin_ns) / len(blockers)


def _state_until_ns(result: Result, stay: Residency) -> int:
    """Return when all of a job's state had come to its GPUs, or was given up."""
    if not stay.state_links:
        return stay.from_ns
    slices = result.finished.slices
    mine = np.array([other is stay for other in result.finished.stays])[slices["stay"]]
    ends_ns = slices["end_ns"][
        mine & (slices["task"] < 0) & np.isin(slices["kind"], [SliceKind.TRANSFER, SliceKind.WAIT])
    ]
    return int(ends_ns.max(initial=stay.from_ns))


def _pieces(
    result: Result, number: int, stay: Residency, links: frozenset[int], span_ns: tuple[int, int]
) -> list[tuple[int, int, _Piece]]:
    """Return start, end and kind of all that went on on the job's GPUs and some links within a span of its stay."""
    stays, slices = result.finished.stays, result.finished.slices
    slices = slices[(slices["start_ns"] < span_ns[1]) & (slices["end_ns"] > span_ns[0])]
    slices = slices[slices["end_ns"] > slices["start_ns"]]
    shared = [tuple(sorted(set(stay.gpus).intersection(other.gpus))) for other in stays]
    nth, kind, jobs = slices["stay"], slices["kind"], np.array([other.job for other in stays])
    by_worker = (kind == SliceKind.COMPUTE) | (kind == SliceKind.CUT)
    gpu = np.full(len(slices), -1)
    gpu[by_worker] = gpus_of_workers(result, slices[by_worker])
    single = by_worker & np.isin(gpu, stay.gpus)
    together = (kind == SliceKind.LOCKSTEP) & np.array([bool(gpus) for gpus in shared])[nth]
    met = _links_met(result, links, slices)
    sends = np.array([bool(crossing) for crossing in met], bool)
    kept = single | together | sends | ((kind == SliceKind.WAIT) & (jobs[nth] == number))
    begin_ns = np.maximum(slices["start_ns"], span_ns[0])[kept].tolist()
    end_ns = np.minimum(slices["end_ns"], span_ns[1])[kept].tolist()
    pieces = []
    for place in np.flatnonzero(kept).tolist():
        what, n = kind.item(place), nth.item(place)
        one_gpu = (gpu.item(place),)
        places = shared[n] if what == SliceKind.LOCKSTEP else met[place] if what == SliceKind.TRANSFER else one_gpu
        pieces.append(_Piece(_KINDS[what], stays[n].job, places))
    return list(zip(begin_ns, end_ns, pieces, strict=True))


def _links_met(result: Result, mine: frozenset[int], slices: Records) -> list[tuple[int, ...]]:
    """Return for each slice the links on which it is a transfer that a job with such links meets."""
    met: list[tuple[int, ...]] = [()] * len(slices)
    sent = np.flatnonzero(slices["kind"] == SliceKind.TRANSFER)
    which, routes = crossed(result, slices["stay"][sent], slices["task"][sent])
    links = [tuple(sorted(mine.intersection(route))) for route in routes]
    for place, route in zip(sent.tolist(), which.tolist(), strict=True):
        met[place] = links[route]
    return met


def _moments(
    pieces: list[tuple[int, int, _Piece]], from_ns: int, to_ns: int
) -> Iterator[tuple[int, int, list[_Piece]]]:
    """Yield each span of time in which nothing changes, and the pieces that are going on."""
    changes = sorted(
        [(start, 1, place) for place, (start, _, _) in enumerate(pieces)]
        + [(end, 0, place) for place, (_, end, _) in enumerate(pieces)]
        + [(from_ns, 2, -1), (to_ns, 2, -1)]
    )
    going_on: dict[int, _Piece] = {}
    last_ns = from_ns
    for time_ns, what, place in changes:
        if time_ns > last_ns:
            yield last_ns, time_ns, list(going_on.values())
            last_ns = time_ns
        if what == 1:
            going_on[place] = pieces[place][2]
        elif what == 0:
            going_on.pop(place, None)


def _blockers(result: Result, number: int, pieces: list[_Piece]) -> list[Blocker]:
    """Return what the job waits for at a moment; nothing if it sends or computes."""
    mine = {piece.kind for piece in pieces if piece.job == number}
    others = [piece for piece in pieces if piece.job != number]
    if "sends" in mine:
        return []
    if "waits" in mine:
        links = result.finished.network.links
        held = [(piece.job, link) for piece in others if piece.kind == "sends" for link in piece.places]
        names = {(links[link].name, result.workload[job].job_id) for job, link in held}
        blockers = [Blocker("network_wait", f"link {link}", job) for link, job in sorted(names)]
        return blockers or [Blocker("network_wait", _POLICY_HELD, None)]
    if "computes" in mine:
        return []
    return [
        Blocker("gpu_wait", f"GPU {gpu}", result.workload[piece.job].job_id)
        for piece in others
        if piece.kind == "computes"
        for gpu in piece.places
    ]
