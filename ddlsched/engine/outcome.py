"""What a run is asked for beyond its inputs, and what it leaves behind, recorded slices too.

Of these a whole window is kept, or only what touches one job's GPUs and links.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from ddlsched.engine.field_values import SliceKind
from ddlsched.engine.records import Records, State, make_records
from ddlsched.errors import InputError
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Network
from ddlsched.units import MAX_NS, NS_PER_S
from ddlsched.workload.elastic_job import Rescale


@dataclass(frozen=True)
class Window:
    """The part of a run to record, seconds; with ``job_id`` only what touches that job's GPUs and links."""

    from_s: float = 0.0
    to_s: float = math.inf
    job_id: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s or self.from_s >= MAX_NS / NS_PER_S:
            raise InputError(f"timeline window {self.from_s}:{self.to_s}; expected 0 <= FROM < TO, seconds")


@dataclass(frozen=True)
class CountedSpan:
    """Which part of a run counts and when it is cut off, nanoseconds."""

    warmup_ns: int = 0
    until_ns: int = MAX_NS


@dataclass(slots=True)
class Residency:
    """A job's time on its GPUs, from placement to its finish, a failure, a stop, a move or a change of size.

    It begins with the transfers of the job's state, if a policy had taken it off its GPUs, and ``hold_ns`` in which the
    job starts again; ``to_ns`` is -1 until it ends, ``ended_by`` says why unless the job has finished. ``links_of`` are
    the links that each transfer crosses, by its task's number, an entry a crossing; those of state are below 0.
    ``state_bytes`` is what of its state comes over the network to begin with. From ``begin_ns`` on it works, with
    ``iterations_left``, which is known when it ends; ``saved`` says that it began with a checkpoint, which in the
    background is whole at ``safe_ns`` (set when a stay ends, if it crossed the network), and ``lost`` that a failure
    has undone its work. ``from_queue`` says that a placement chose its GPUs: it is neither a move nor a start where the
    engine says.
    """

    job: int
    gpus: tuple[int, ...]
    links_of: dict[int, tuple[int, ...]]
    from_ns: int
    hold_ns: int = 0
    to_ns: int = -1
    ended_by: str = ""
    rerouted: dict[int, list[tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
    state_bytes: int = 0
    begin_ns: int = -1
    iterations_left: int = 0
    saved: bool = False
    safe_ns: int = -1
    lost: bool = False
    from_queue: bool = False

    @property
    def in_background(self) -> bool:
        """Whether it began with a checkpoint that nobody waits for."""
        return self.safe_ns >= 0

    @property
    def worked_ns(self) -> int:
        """For how long it worked before it ended."""
        return max(self.to_ns - self.begin_ns, 0)

    @property
    def began_whole(self) -> bool:
        """Whether the state with which it began can be gone back to: no failure cut its checkpoint short."""
        return not self.saved or max(self.begin_ns, self.safe_ns) <= self.to_ns

    def reroute(self, task: int, from_ns: int, links: tuple[int, ...]) -> None:
        """Note the links that a task's transfer crosses from an instant on; only in recorded runs."""
        self.rerouted.setdefault(task, []).append((from_ns, links))

    def links_at(self, task: int, time_ns: int) -> tuple[int, ...]:
        """Return the links that a task's transfer crossed then."""
        changes = self.rerouted.get(task, [])
        place = bisect_right(changes, time_ns, key=lambda change: change[0])
        return changes[place - 1][1] if place else self.links_of[task]

    @property
    def links(self) -> tuple[int, ...]:
        """The links of all its collectives, those of the same links once."""
        return tuple(chain.from_iterable(dict.fromkeys(self._links(of_state=False))))

    @property
    def state_links(self) -> tuple[int, ...]:
        """The links of the transfers of its state."""
        return tuple(chain.from_iterable(dict.fromkeys(self._links(of_state=True))))

    def _links(self, *, of_state: bool) -> list[tuple[int, ...]]:
        changed = [(task, links) for task, changes in self.rerouted.items() for _, links in changes]
        return [links for task, links in [*self.links_of.items(), *changed] if (task < 0) == of_state]


class Refused(NamedTuple):
    """From when on (nanoseconds) a job, and those behind it in its queue, waited for a reason."""

    time_ns: int
    job: int
    reason: str


@dataclass(frozen=True)
class Departure:
    """A running job was stopped or moved by a policy: which, when, from which GPUs, and the work that it lost."""

    job: int
    time_ns: int
    moved: bool
    gpus: tuple[int, ...]
    lost_ns: int


@dataclass(frozen=True)
class JobFailure:
    """A failure that hit a running job: which, when, why, the time since its last checkpoint, and for how long it hung.

    ``stay`` is the one in which it hung or went on, by number; -1 where it lost its GPUs at once. ``hang_ns`` is None
    where nobody notices; another failure may end it earlier.
    """

    job: int
    time_ns: int
    cause: str
    lost_ns: int
    stay: int = -1
    hang_ns: int | None = 0


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind.

    Attributes
    ----------
    state, network
        The records and the links.
    contention
        The model, bound to the network.
    stays
        Every job's stays on GPUs, in the order of placement; slices name them by number.
    slices
        What was recorded of the timeline, in the order in which it ended.
    sampled
        Whether the run was asked to be sampled.
    unsampled
        What kept such a run from leaping at all; "" if nothing did.
    recorded_job_id
        The only job that was recorded, if it is one.
    rescales
        Job, change and its cost (nanoseconds) of every change of an elastic job, in order of time.
    departures
        Every stop and move by a policy, in order of time.
    failures
        Every failure that hit a running job, in order of time.
    replaced
        Servers that were taken for lemons.
    reservations
        Job, when it was made and for when (nanoseconds), of each reservation of a recorded run, in order of time.
    outages
        Server, from, to (nanoseconds) of each time that a server was absent.
    refused
        Why jobs of tenants waited, whenever that changed, in order of time.
    busy_ns
        Compute time of each GPU after the warm-up.
    warmup_ns, end_ns
        Ends of the warm-up and of the run.
    engine_s
        Wall time.
    """

    state: State
    network: Network
    contention: ContentionModel
    stays: tuple[Residency, ...]
    slices: Records
    rescales: tuple[tuple[int, Rescale, int], ...]
    departures: tuple[Departure, ...]
    failures: tuple[JobFailure, ...]
    replaced: frozenset[int]
    reservations: tuple[tuple[int, int, int], ...]
    outages: tuple[tuple[int, int, int], ...]
    refused: tuple[Refused, ...]
    busy_ns: np.ndarray
    warmup_ns: int
    end_ns: int
    engine_s: float
    sampled: bool = False
    unsampled: str = ""
    recorded_job_id: str | None = None

    @cached_property
    def gpus(self) -> dict[int, tuple[int, ...]]:
        """The GPUs of each job that was placed, by its number; those of its last stay."""
        return {stay.job: stay.gpus for stay in self.stays}


_COUNTED = ("kind", "owner", "stay", "task", "sharing")
_WHOLE = make_records("slice", 0).dtype
_SHORT = np.dtype([(name, np.int32 if name in _COUNTED else _WHOLE[name]) for name in _WHOLE.names or ()])


class KeptSlices:
    """Slices in the order in which they ended, in an array that grows where it lies: it is never there twice.

    ``short`` ones have numbers and counts in 32 bits, for what only the explanation of a job reads.
    """

    def __init__(self, short: bool) -> None:
        self._slices = np.empty(0, _SHORT if short else _WHOLE)
        self._count = 0

    def append(self, slices: Records) -> None:
        """Keep a copy of these as well."""
        count = self._count + len(slices)
        if count > len(self._slices):
            self._slices.resize(count + count // 8, refcheck=False)
        self._slices[self._count : count] = slices
        self._count = count

    def all(self) -> Records:
        """Return all that are kept."""
        return self._slices[: self._count].view(np.recarray)


def gpus_of_workers(
    stays: Sequence[Residency], first_worker: np.ndarray, slices: Records, nth: np.ndarray | int = 0
) -> np.ndarray:
    """Return the GPU of each worker's slice, or of the ``nth`` worker after it; ``first_worker`` is by job."""
    numbers, place = np.unique(slices["stay"], return_inverse=True)
    present = [stays[number] for number in numbers.tolist()]
    first, gpus = ragged([stay.gpus for stay in present])
    jobs = np.array([stay.job for stay in present], np.int64)[place]
    found: np.ndarray = gpus[first[place] + slices["owner"] - first_worker[jobs] + nth]
    return found


def ragged(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each row begins in all rows' numbers one behind the other, and those."""
    lengths = np.array([len(row) for row in rows], np.int64)
    return np.cumsum(lengths) - lengths, np.array([number for row in rows for number in row], np.int64)


def touching(slices: Records, job: int, stays: Sequence[Residency], first_worker: np.ndarray) -> Records:
    """Return the slices on a job's GPUs and links while it was there, and its own waits.

    ``stays`` are those that had begun when the last slice ended; of one that goes on, ``to_ns`` is -1.
    """
    if not len(slices):
        return slices
    first_ns, last_ns = slices["start_ns"].min(), slices["end_ns"].max()
    own = [stay for stay in stays if stay.job == job and stay.from_ns < last_ns]
    own = [stay for stay in own if stay.to_ns < 0 or stay.to_ns > first_ns]
    kept = np.zeros(len(slices), bool)
    if own:
        kind = slices["kind"]
        by_worker = (kind == SliceKind.COMPUTE) | (kind == SliceKind.CUT)
        gpu = np.full(len(slices), -1)
        gpu[by_worker] = gpus_of_workers(stays, first_worker, slices[by_worker])
        for stay in own:
            there = (slices["start_ns"] < stay.to_ns) | (stay.to_ns < 0)
            kept |= there & (slices["end_ns"] > stay.from_ns) & _at(stay, slices, gpu, stays)
    return slices[kept]


def _at(own: Residency, slices: Records, gpu: np.ndarray, stays: Sequence[Residency]) -> np.ndarray:
    """Return which slices are on GPUs or links of a stay, or waits of its job; ``gpu`` is -1 if not a worker's."""
    kind, numbers = slices["kind"], np.unique(slices["stay"]).tolist()
    share_gpus = _any_of(slices["stay"], (n for n in numbers if not set(own.gpus).isdisjoint(stays[n].gpus)))
    links = {*own.links, *own.state_links}
    share_links = _any_of(
        slices["stay"], (n for n in numbers if not links.isdisjoint((*stays[n].links, *stays[n].state_links)))
    )
    mine = _any_of(slices["stay"], (n for n in numbers if stays[n].job == own.job))
    where: np.ndarray = np.isin(gpu, own.gpus) | (kind == SliceKind.LOCKSTEP) & share_gpus
    where |= (kind == SliceKind.TRANSFER) & share_links | (kind == SliceKind.WAIT) & mine
    return where


def _any_of(values: np.ndarray, wanted: Iterable[int]) -> np.ndarray:
    return np.isin(values, np.fromiter(wanted, np.int64))
