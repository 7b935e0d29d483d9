"""The published log replayer's rules, written down as plainly as they are: the cross-check of the engine's numbers.

At each change of the set of idle nodes: every trainer advances by its rate since the last change, less what changes of
its size then cost; one that loses nodes pays R_down x its rate before; finished ones leave; new nodes join; queued ones
are admitted up to a cap; the allocator shares the nodes out; one whose size it changes pays its rate before x R_up or
R_down. Nothing happens between two changes: a trainer that is done holds its nodes until the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.idle_trace import IdleChange, IdleTrace
from ddlsched.workload.trainers import NodeAllocator, Numbers, Trainer


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob:
    """A row of a table of trainers; ``rates`` in samples/s at 0, 1, ..., most nodes."""

    job_id: str
    submit_s: float
    samples: float
    rates: Numbers
    min_nodes: int = 1
    scale_up_s: float
    scale_down_s: float


@dataclass(eq=False)
class _Running:
    job: TrainingJob
    left: float
    nodes: set[int] = field(default_factory=set)
    cost: float = 0.0

    @property
    def rate(self) -> float:
        return float(self.job.rates[len(self.nodes)])

    def trainer(self) -> Trainer:
        job = self.job
        costs = {"scale_up_s": job.scale_up_s, "scale_down_s": job.scale_down_s}
        return Trainer(nodes=len(self.nodes), rates=job.rates, min_nodes=job.min_nodes, **costs)


class Outcome(NamedTuple):
    """What came of a replay; the losses in samples, ``rescales`` with and ``resizes`` without starts from nothing."""

    makespan_s: float
    finished: int
    trained: float
    rescale_lost: float
    preempt_lost: float
    rescales: int
    resizes: int
    mean_idle: float


def replay(
    idle: IdleTrace,
    jobs: Sequence[TrainingJob],
    allocator: NodeAllocator,
    *,
    most_jobs: int = 10,
    until_s: float = np.inf,
) -> Outcome:
    """Replay from time 0 until all jobs are done, the trace ends, or ``until_s``."""
    run = _Replay(list(jobs), allocator, most_jobs)
    for change in idle.changes():
        if change.time_s > until_s or run.is_done():
            break
        run.take(change)
    return run.outcome()


class _Replay:
    def __init__(self, jobs: list[TrainingJob], allocator: NodeAllocator, most_jobs: int) -> None:
        self._queue, self._allocator, self._most_jobs = jobs[::-1], allocator, most_jobs
        self._running: list[_Running] = []
        self._free: set[int] = set()
        self._now_s = self._idle_node_s = self._trained = 0.0
        self._rescale_lost = self._preempt_lost = 0.0
        self._finished = self._rescales = self._resizes = 0

    def is_done(self) -> bool:
        return not self._running and not self._queue

    def take(self, change: IdleChange) -> None:
        self._advance(change.time_s)
        self._preempt(set(change.left))
        self._let_go()
        self._free |= set(change.joined)
        while self._queue and len(self._running) < self._most_jobs and self._queue[-1].submit_s <= self._now_s:
            job = self._queue.pop()
            self._running.append(_Running(job, job.samples))
        self._share_out()

    def _advance(self, time_s: float) -> None:
        for each in self._running:
            trained = (time_s - self._now_s) * each.rate - each.cost
            each.left, each.cost = each.left - trained, 0.0
            self._trained += trained
        self._idle_node_s += (time_s - self._now_s) * self._num_nodes()
        self._now_s = time_s

    def _num_nodes(self) -> int:
        return len(self._free) + sum(len(each.nodes) for each in self._running)

    def _preempt(self, left: set[int]) -> None:
        self._free -= left
        for each in self._running:
            if each.nodes & left:
                cost = each.rate * each.job.scale_down_s
                each.cost += cost
                self._preempt_lost += cost
                each.nodes -= left

    def _let_go(self) -> None:
        for each in [each for each in self._running if each.left <= 0]:
            self._running.remove(each)
            self._free |= each.nodes
            self._finished += 1

    def _share_out(self) -> None:
        counts = self._allocator.counts([each.trainer() for each in self._running], self._num_nodes())
        for each, count in zip(self._running, counts, strict=True):
            self._pay(each, count)
            for node in sorted(each.nodes)[count:]:
                each.nodes.remove(node)
                self._free.add(node)
        for each, count in zip(self._running, counts, strict=True):
            added = sorted(self._free)[: count - len(each.nodes)]
            each.nodes |= set(added)
            self._free -= set(added)

    def _pay(self, each: _Running, count: int) -> None:
        if count == len(each.nodes):
            return
        cost = each.rate * (each.job.scale_up_s if count > len(each.nodes) else each.job.scale_down_s)
        each.cost += cost
        self._rescale_lost += cost
        self._rescales += 1
        self._resizes += bool(each.nodes)

    def outcome(self) -> Outcome:
        mean_idle = self._idle_node_s / self._now_s if self._now_s else 0.0
        losses = self._rescale_lost, self._preempt_lost
        return Outcome(self._now_s, self._finished, self._trained, *losses, self._rescales, self._resizes, mean_idle)
