"""Which samples a training run has seen and which come next, for any number of data-parallel ranks.

The state names no rank: the *global* batches follow from the seed and the progress alone, and each is cut contiguously
among however many ranks there are (Tenplex, arXiv 2312.05181). So a run that goes on with another number of ranks,
micro-batches or reader processes sees the same samples in the same steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import located
from ddlsched.ranges import check_arguments
from ddlsched.units import is_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SAMPLES = 2**40
_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class DatasetState:
    """The order of a data set's samples and how far a run has come in it.

    The samples of epoch after epoch, each epoch in an order of its own, are one endless sequence; a global batch is the
    next ``global_batch`` of it, so that one may begin in one epoch and end in the next, and none is dropped.

    Parameters
    ----------
    num_samples
        Samples of an epoch.
    global_batch
        Samples of an optimiser step, over all ranks.
    consumed_samples
        Samples of the steps done so far. A whole number of batches, unless the batch's size was changed on the way.
    seed
        Of the shuffles; None keeps the files' own order in every epoch.
    samples_hash
        What the samples are (:attr:`TokenFiles.samples_hash`), so that going on with other files is noticed; empty if
        not known.
    """

    num_samples: int
    global_batch: int
    consumed_samples: int = 0
    seed: int | None = 0
    samples_hash: str = ""

    def __post_init__(self) -> None:
        ranges = {"num_samples": (1, MAX_SAMPLES), "global_batch": (1, MAX_SAMPLES), "consumed_samples": (0, 2**62)}
        check_arguments("dataset state", **{name: (getattr(self, name), *ends) for name, ends in ranges.items()})
        if self.seed is not None:
            check_arguments("dataset state", seed=(self.seed, 0))
        if not isinstance(self.samples_hash, str):
            raise InputError(f"dataset state: samples_hash is {self.samples_hash!r}; expected a text")

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.consumed_samples // self.num_samples

    @property
    def batches_left_in_epoch(self) -> int:
        """Global batches from the next one to the one with the epoch's last sample, which may end in the next epoch."""
        left = self.num_samples - self.consumed_samples % self.num_samples
        return -(-left // self.global_batch)

    def advanced(self, batches: int = 1) -> DatasetState:
        """Return the state after so many more global batches."""
        return dataclasses.replace(self, consumed_samples=self.consumed_samples + batches * self.global_batch)

    def batch(self, ahead: int = 0) -> NDArray[np.int64]:
        """Return the samples of a global batch, in order: the next one, or the one so many after it.

        Returns
        -------
        ndarray of int64, shape (global_batch,)
            Numbers of samples, from 0.
        """
        return self._samples(self.consumed_samples + ahead * self.global_batch, self.global_batch)

    def rank_slice(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return a rank's places in each global batch: from the first to before the second (:func:`rank_slice`)."""
        return rank_slice(rank, ranks, self.global_batch)

    def rank_batch(self, rank: int, ranks: int, ahead: int = 0) -> NDArray[np.int64]:
        """Return what one of so many data-parallel ranks takes of a global batch; may be empty.

        All ranks' parts in order are :meth:`batch`, whatever ``ranks`` is.

        Raises
        ------
        InputError
            No such rank.
        """
        begin, end = self.rank_slice(rank, ranks)
        return self._samples(self.consumed_samples + ahead * self.global_batch + begin, end - begin)

    def _samples(self, first: int, count: int) -> NDArray[np.int64]:
        places = np.arange(first, first + count, dtype=np.int64)
        epochs, within = np.divmod(places, self.num_samples)
        if self.seed is None:
            return within
        samples = np.empty_like(within)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            samples[here] = shuffled(within[here], self.num_samples, (self.seed, int(epoch)))
        return samples

    def as_json(self) -> dict[str, Any]:
        """Return the state as what ``checkpoint.json`` holds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> DatasetState:
        """Return a state that was kept by :meth:`as_json`; ``where`` names the file in errors.

        Raises
        ------
        InputError
            With the place, the field, its value and what is expected.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or set(value) != names:
            raise InputError(f"{where}: the dataset state is {value!r}; expected {', '.join(sorted(names))}")
        return located(where, lambda: cls(**value))


def rank_slice(rank: int, ranks: int, global_batch: int) -> tuple[int, int]:
    """Return a rank's places in a global batch, from ``i ceil(G/n)`` to ``(i+1) ceil(G/n)``, cut at G.

    Where n does not divide G the last ranks have fewer, or none: a loss must be averaged over samples, not over ranks.

    Raises
    ------
    InputError
        No such rank.
    """
    if not is_whole(ranks, 1) or not is_whole(rank, 0) or rank >= ranks:
        raise InputError(f"data-parallel rank {rank!r} of {ranks!r}: expected a rank from 0 below the number of ranks")
    each = -(-global_batch // ranks)
    return min(rank * each, global_batch), min((rank + 1) * each, global_batch)


def shuffled(places: NDArray[np.int64], count: int, key: tuple[int, int]) -> NDArray[np.int64]:
    """Return what stands at some places of a random order of ``range(count)``, without making the order.

    A Feistel network over the least power of 4 that holds ``count``, walked until it falls below ``count``: the memory
    is that of ``places`` also for 10^12 samples, and the order is this code's own, whatever numpy's generators become.

    Parameters
    ----------
    places
        int64, from 0 to ``count - 1``.
    count
        From 1 to 2^40.
    key
        Seed and epoch.

    References
    ----------
    J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002 (cycle walking).
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    keys = _mixed(np.arange(_ROUNDS, dtype=np.uint64) + _mixed(_mixed(np.uint64(key[0])) ^ np.uint64(key[1])))
    result = _permuted(places.astype(np.uint64), half, keys)
    while (outside := result >= count).any():
        result[outside] = _permuted(result[outside], half, keys)
    return result.astype(np.int64)


def _permuted(values: NDArray[np.uint64], half: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(value: Any) -> Any:
    """Return the finaliser of splitmix64 of unsigned 64-bit numbers."""
    with np.errstate(over="ignore"):  # multiplication modulo 2^64 is what is wanted
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
