"""What is kept of the recorded slices: of a whole window, or only what touches one job's GPUs and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ddlsched.engine.outcome import Residency
from ddlsched.engine.records.field_values import SliceKind
from ddlsched.engine.records.layout import Records, make_records

__all__ = ["KeptSlices", "gpus_of_workers", "ragged", "touching"]


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
