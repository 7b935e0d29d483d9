"""The jobs that wait, as policies see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np

from ddlsched.policies.job_view import JobView

__all__ = ["JobQueue"]


class JobQueue(Sequence[JobView]):
    """Views of the jobs that wait, in the queue's order; only those that are looked at are made.

    Parameters
    ----------
    numbers
        The jobs' numbers, in the queue's order.
    views
        The view of each job, by number.
    """

    def __init__(self, numbers: np.ndarray, views: Sequence[JobView] | Mapping[int, JobView]) -> None:
        self.numbers = numbers
        """The jobs' numbers, in the queue's order, for policies that reckon with arrays."""
        self._views = views

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> JobView: ...
    @overload
    def __getitem__(self, place: slice) -> JobQueue: ...
    def __getitem__(self, place: int | slice) -> JobView | JobQueue:
        if isinstance(place, slice):
            return JobQueue(self.numbers[place], self._views)
        number: int = self.numbers.item(place)
        return self._views[number]

    def __iter__(self) -> Iterator[JobView]:
        for number in self.numbers.tolist():
            yield self._views[number]
