"""Data-parallel PyTorch training that outlives changes of its nodes: ``train`` is all that a script calls.

A process that stays keeps its weights in memory and joins the next group; one that joins loads the last commit. After a
group that broke in the middle of a step all load the last commit, since nobody knows who has done the step.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import distributed

from ddlsched.errors import InputError
from ddlsched.real.live.groups import group, meeting
from ddlsched.real.live.seat import CommitTimes, Orders, Seat

__all__ = ["Stateful", "train"]


class Stateful(Protocol):
    """A model, an optimiser, a schedule, ...: what can give its state away and take it back."""

    def state_dict(self) -> Any:
        """Return the state, in what ``torch.save`` writes and ``torch.load`` reads with ``weights_only``."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state."""
        ...


Step = Callable[[int], float]


def train(begin: Callable[[int, int], Step], state: Mapping[str, Stateful], samples_a_step: int) -> None:
    """Train until the last step is committed, whatever groups that takes; only the process of rank 0 returns.

    Parameters
    ----------
    begin
        Called in every new group with this process's rank and the number of ranks. Makes what depends on them
        (``DistributedDataParallel``, a sampler) and returns the step: a function from the step's number (from 0) to its
        loss, of which that of rank 0 is kept. A step must draw its samples by its number, the rank and the ranks alone.
    state
        What goes on from step to step, by names. It must be whole once the step returns.
    samples_a_step
        Of all ranks together, for the manager's measurements.

    Raises
    ------
    InputError
        This process was not started by ``ddlsched live``, or what is committed cannot be loaded.
    """
    if Seat.here is None:
        raise InputError("train: was called outside of a job; expected a script that ddlsched live runs")
    training = _Training(Seat.here, begin, state, samples_a_step)
    while not training.is_done:
        orders = training.seat.orders()
        try:
            training.in_group(orders)
        except RuntimeError:  # What gloo raises when another process has gone; it has no class of its own.
            if orders.ranks == 1:
                raise
            traceback.print_exc()


class _Training:
    """What a process holds from group to group."""

    def __init__(
        self, seat: Seat, begin: Callable[[int, int], Step], state: Mapping[str, Stateful], samples_a_step: int
    ) -> None:
        self.seat, self._begin, self._state, self._samples = seat, begin, state, samples_a_step
        self._in_memory: int | None = None
        """Steps that the state in memory has seen; None at first, in the middle of one, and after one that broke."""
        self._kept: Any = None
        """The last group, until the next. When a group goes, torch waits for its threads, and holds Python's lock if a
        DistributedDataParallel was the last to have it; a thread that has just ended a collective may need that lock.
        """
        self.is_done = False
        self._times = CommitTimes(seat.assignment.job)

    def in_group(self, orders: Orders) -> None:
        """Train as a rank of a group until the last step, or until all are asked to leave."""
        store = meeting(self.seat, orders)
        if store is None:
            return
        with group(store, orders), self.seat.writing(orders):
            self._kept = distributed.group.WORLD
            done = self._agree(orders)
            step = self._begin(orders.rank, orders.ranks)
            self._times.begin(orders)
            committed = done
            while done < self.seat.assignment.steps and not self._are_to_leave(orders):
                self._in_memory = None
                loss = float(step(done))
                done = self._in_memory = done + 1
                if orders.rank == 0:
                    self._losses.append(loss)
                    if self._times.is_due() or done == self.seat.assignment.steps:
                        self._commit()
                        committed = done
                    self.seat.report(self._losses, done * self._samples, orders.ranks, self._times.write_s)
            if orders.rank == 0 and committed < done:
                self._commit()
            if done == self.seat.assignment.steps and orders.rank > 0:
                self.seat.wait_for_leave()  # Until the manager ends this process, or wants it to do the step again.
        self.is_done = done == self.seat.assignment.steps and orders.rank == 0

    def _agree(self, orders: Orders) -> int:
        """Return the number of committed steps, once every rank has the state after them.

        Nobody of the group before can commit any more: all who are alive have left it for this one.
        """
        if orders.rank == 0:
            self._losses = self.seat.commits.losses()
            if not self._losses and not self.seat.commits.has_state(0):
                self._commit()  # What all begin with.
        done = _from_first(len(self._losses) if orders.rank == 0 else 0)
        if self._in_memory != done:
            self._load(done)
        self._in_memory = done
        distributed.barrier()
        return done

    def _load(self, done: int) -> None:
        try:
            with self.seat.commits.open_state(done) as file:
                kept = torch.load(file, weights_only=True)
            for name, each in self._state.items():
                each.load_state_dict(kept[name])
        except (OSError, InputError, KeyError) as error:
            where = self.seat.commits.name_of_state(done)
            raise InputError(f"{where}: cannot be loaded ({error}); expected the state that was committed") from None

    def _are_to_leave(self, orders: Orders) -> bool:
        """Return the same answer on every rank, so that all leave between the same two steps."""
        return bool(_from_first(orders.rank == 0 and self.seat.is_asked_to_leave()))

    def _commit(self) -> None:
        with self._times.timed():
            states = {name: each.state_dict() for name, each in self._state.items()}
            self.seat.commits.commit(self._losses, lambda file: torch.save(states, file))


def _from_first(value: int) -> int:
    """Return the value of rank 0."""
    shared = torch.tensor(value)
    distributed.broadcast(shared, 0)
    return int(shared)
