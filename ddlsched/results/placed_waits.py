"""What a placed job waited for, and the jobs that held it, from the slices of a recorded run.

Nothing changes between two neighbouring times at which some slice on the job's GPUs and links begins or ends. Over all
these spans at once it is found what the job did, how many held what it waited for, and so each holder's share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddlsched.engine.field_values import SliceKind
from ddlsched.engine.outcome import gpus_of_workers, ragged
from ddlsched.results.slices import crossed, repeated

if TYPE_CHECKING:
    from ddlsched.engine.outcome import Residency
    from ddlsched.engine.records import Records
    from ddlsched.results.result import Result

_MOST_SLICES = 1 << 17
_POLICY_HELD = "the communication policy held it back, though no transfer ran on its links"


class Blocker(NamedTuple):
    """What a job waited for in a phase, and the job that held it, if one did."""

    phase: str
    waited_for: str
    held_by: str | None


class _Held(NamedTuple):
    """Times at which other jobs held something: the job's number, the GPU's or link's, and the first and last span."""

    job: np.ndarray
    place: np.ndarray
    first: np.ndarray
    end: np.ndarray


def placed_waits(result: Result, number: int) -> Iterator[tuple[Blocker, float]]:
    """Yield what job ``number`` waited for while it was placed, and how long, nanoseconds; a blocker may come again."""
    slices = result.finished.slices
    # They are recorded when they end, so that those that meet a stay lie together.
    longest_ns = (slices["end_ns"] - slices["start_ns"]).max(initial=0)
    for stay in result.finished.stays:
        if stay.job != number:
            continue
        first = np.searchsorted(slices["end_ns"], stay.from_ns, side="right")
        end = np.searchsorted(slices["end_ns"], stay.to_ns + longest_ns, side="right")
        near = slices[first:end]
        state_ns = _state_until_ns(result, stay, near)
        for span_ns in _pieces(near, stay.from_ns, state_ns):
            yield from _Span(result, stay, near, span_ns, of_state=True).waits()
        for span_ns in _pieces(near, state_ns + stay.hold_ns, stay.to_ns):
            yield from _Span(result, stay, near, span_ns, of_state=False).waits()


def _pieces(slices: Records, from_ns: int, to_ns: int) -> Iterator[tuple[int, int]]:
    """Yield a span of time in pieces in which few slices end, so that a long stay takes little memory."""
    if from_ns < to_ns:
        cuts_ns = np.unique(np.clip(slices["end_ns"][_MOST_SLICES::_MOST_SLICES], from_ns, to_ns)).tolist()
        yield from pairwise(sorted({from_ns, *cuts_ns, to_ns}))


def _state_until_ns(result: Result, stay: Residency, slices: Records) -> int:
    """Return when all the state that a job waits for had come to its GPUs, or was given up."""
    if not stay.state_links or stay.in_background:
        return stay.from_ns
    own = slices[(slices["task"] < 0) & np.isin(slices["kind"], [SliceKind.TRANSFER, SliceKind.WAIT])]
    ends_ns = own["end_ns"][[result.finished.stays[number] is stay for number in own["stay"].tolist()]]
    return int(ends_ns.max(initial=stay.from_ns))


class _Span:
    """A span of a stay of the job that is asked about, the slices that met it in time, and the links it uses in it.

    They are those of the job's state (``of_state``) or of its collectives. What it sends of the other kind, a
    checkpoint, is not what it does, but may be what it waits for.
    """

    def __init__(
        self, result: Result, stay: Residency, slices: Records, span_ns: tuple[int, int], *, of_state: bool
    ) -> None:
        from_ns, to_ns = span_ns
        took_time = slices["end_ns"] > np.maximum(slices["start_ns"], from_ns)
        slices = slices[took_time & (slices["start_ns"] < to_ns)]
        self._result, self._stay, self._slices, self._kind = result, stay, slices, slices["kind"]
        self._links = frozenset(stay.state_links if of_state else stay.links)
        self._numbers, self._nth = np.unique(slices["stay"], return_inverse=True)
        self._others = [result.finished.stays[number] for number in self._numbers.tolist()]
        self._job = np.array([other.job for other in self._others], np.int64)[self._nth]
        self._own = (self._job == stay.job) & ((slices["task"] < 0) == of_state)
        self._gpu = np.full(len(slices), -1)
        by_worker = np.isin(self._kind, [SliceKind.COMPUTE, SliceKind.CUT])
        first_worker = result.finished.state.jobs.first_worker
        self._gpu[by_worker] = gpus_of_workers(result.finished.stays, first_worker, slices[by_worker])
        start_ns = np.clip(slices["start_ns"], from_ns, to_ns)
        end_ns = np.clip(slices["end_ns"], from_ns, to_ns)
        times_ns = np.unique(np.concatenate([start_ns, end_ns, [from_ns, to_ns]]))
        self._spans_ns = np.diff(times_ns)
        self._first, self._end = np.searchsorted(times_ns, start_ns), np.searchsorted(times_ns, end_ns)

    def waits(self) -> Iterator[tuple[Blocker, float]]:
        """Yield each blocker of the span, and how long it blocked, nanoseconds."""
        sends, waits = self._does(SliceKind.TRANSFER), self._does(SliceKind.WAIT)
        computes = self._does(SliceKind.COMPUTE, SliceKind.CUT, SliceKind.LOCKSTEP)
        network, links = waits & ~sends, self._result.finished.network.links
        held = self._held_links()
        for place, job_id, waited_ns in self._shares(held, network):
            yield Blocker("network_wait", f"link {links[place].name}", job_id), waited_ns
        nobody_ns = float(self._spans_ns[network & (self._count(held.first, held.end) == 0)].sum())
        if nobody_ns:
            yield Blocker("network_wait", _POLICY_HELD, None), nobody_ns
        for place, job_id, waited_ns in self._shares(self._held_gpus(), ~(computes | sends | waits)):
            yield Blocker("gpu_wait", f"GPU {place}", job_id), waited_ns

    def _does(self, *kinds: SliceKind) -> np.ndarray:
        """Return for each span whether the job does one of these."""
        own = self._own & np.isin(self._kind, kinds)
        return self._count(self._first[own], self._end[own]) > 0

    def _count(self, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return for each span how many of these times hold it."""
        num_times = len(self._spans_ns) + 1
        change = np.bincount(first, minlength=num_times) - np.bincount(end, minlength=num_times)
        return np.cumsum(change)[:-1]

    def _held_links(self) -> _Held:
        sent = np.flatnonzero((self._kind == SliceKind.TRANSFER) & ~self._own)
        which, routes = crossed(self._result, *(self._slices[name][sent] for name in ("stay", "task", "start_ns")))
        return _merged(self._held(sent, which, [sorted(self._links.intersection(route)) for route in routes]))

    def _held_gpus(self) -> _Held:
        mine = set(self._stay.gpus)
        lockstep = np.flatnonzero((self._kind == SliceKind.LOCKSTEP) & (self._job != self._stay.job))
        shared = [sorted(mine.intersection(other.gpus)) for other in self._others]
        together = self._held(lockstep, self._nth[lockstep], shared)
        one = np.isin(self._gpu, self._stay.gpus) & (self._job != self._stay.job)
        single = _Held(self._job[one], self._gpu[one], self._first[one], self._end[one])
        return _Held(*map(np.concatenate, zip(together, single, strict=True)))

    def _held(self, rows: np.ndarray, which: np.ndarray, places: Sequence[Sequence[int]]) -> _Held:
        """Return what some slices held: each all of the ``places`` that ``which`` says."""
        begins, flat = ragged(places)
        counts = np.array([len(row) for row in places], np.int64)[which]
        again, nth = repeated(counts)
        place = flat[begins[which[again]] + nth]
        rows = rows[again]
        return _Held(self._job[rows], place, self._first[rows], self._end[rows])

    def _shares(self, held: _Held, waiting: np.ndarray) -> Iterator[tuple[int, str, float]]:
        """Yield place, job and time of each holder: the spans of ``waiting``, shared equally among those of each."""
        count = self._count(held.first, held.end)
        share_ns = np.where(waiting, self._spans_ns / np.maximum(count, 1), 0.0)
        passed_ns = np.concatenate([[0.0], np.cumsum(share_ns)])
        places, jobs, nth = _holders(held)
        waited_ns = np.bincount(nth, passed_ns[held.end] - passed_ns[held.first], len(places))
        for place, job, total_ns in zip(places.tolist(), jobs.tolist(), waited_ns.tolist(), strict=True):
            if total_ns > 0:
                yield place, self._result.workload[job].job_id, total_ns


def _holders(held: _Held) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return place and job of each holder, sorted, and for each time which holder's it is."""
    room = int(held.job.max(initial=0)) + 1
    keys, nth = np.unique(held.place * room + held.job, return_inverse=True)
    places, jobs = np.divmod(keys, room)
    return places, jobs, nth


def _merged(held: _Held) -> _Held:
    """Return the same with overlapping times of one job at one place as one, such as of its buckets on a link."""
    held = _Held(*(column[held.end > held.first] for column in held))
    places, jobs, nth = _holders(held)
    # Each holder's times on an axis of its own, one behind the other: so a running maximum does not cross holders.
    room = int(held.end.max(initial=0)) + 1
    first, end = held.first + nth * room, held.end + nth * room
    order = np.argsort(first, kind="stable")
    reach = np.maximum.accumulate(end[order])
    opens = np.flatnonzero(np.append(True, first[order][1:] > reach[:-1])[: len(order)])
    own = nth[order][opens]
    last = reach[np.append(opens[1:], len(order))[: len(opens)] - 1]
    return _Held(jobs[own], places[own], first[order][opens] - own * room, last - own * room)
