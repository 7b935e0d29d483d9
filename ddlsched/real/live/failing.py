"""Nodes of this machine that fail as a simulated run's servers do: the same causes, draws, recovery and health."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import inf

from ddlsched.cluster.capacity_changes import CapacityChange, FailurePlaces, Strike
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import failures_per_s
from ddlsched.cluster.reliability_doors import WAIT, RecoveryPolicy, StoppedJob
from ddlsched.engine.decisions.checked_policies import random_streams
from ddlsched.errors import InputError, InvalidDecisionError, guarded, label
from ddlsched.plugins.names import resolve
from ddlsched.real.live.processes import JobProcesses, LiveProcess
from ddlsched.units import NS_PER_S


class FailingNodes:
    """A scavenger whose nodes leave and come as causes say, and that kills or stops processes whose job alone is hit.

    Parameters
    ----------
    num_nodes
        They are called ``node0``, ``node1``, ... Each has one GPU.
    jobs
        The most nodes of each job, by its name.
    disturbances
        Why nodes fail, how jobs go on, and who looks after nodes; its times pass ``speed`` times as fast.
    seed
        A simulated run of this seed, with as many servers and jobs from time 0, meets the same failures.

    Attributes
    ----------
    running
        What runs each job now; for the manager to set.
    failures
        Time (seconds), cause and node or job of each failure so far.
    """

    def __init__(
        self, num_nodes: int, jobs: Mapping[str, int], disturbances: Disturbances, seed: int = 0, speed: float = 1.0
    ) -> None:
        if not 0 < speed < inf:
            raise InputError(f"live: speed is {speed}; expected a number above 0")
        self._jobs, self._disturbances, self._speed = tuple(jobs), disturbances, speed
        self._health = disturbances.health_policy
        given = disturbances.recovery
        self._recovery: RecoveryPolicy | None = None if given is None else resolve("recovery", given)
        self._spares = set() if self._recovery is None else set(self._recovery.spares(num_nodes, ()))
        self._lacking = 0
        self._there = set(range(num_nodes)) - self._spares
        self._replaced: set[int] = set()
        self._failed_s: defaultdict[int, list[float]] = defaultdict(list)
        self._waiting: dict[str, set[int]] = {}
        self._given: dict[str, set[str]] = {}
        self._hanging: list[tuple[float, LiveProcess]] = []
        places = FailurePlaces(range(num_nodes + 1), (), [(0, most) for most in jobs.values()])
        self._changes = disturbances.capacity_changes(places, random_streams(seed)["capacity"], self._replaced)
        self._next = next(self._changes, None)
        self.running: Mapping[str, JobProcesses] = {}
        self.failures: list[tuple[float, str, str]] = []

    def time_to_failure_s(self, num_nodes: int) -> float:
        """Return the mean time until a job of so many nodes is hit, seconds of this machine; infinite if never."""
        rate = failures_per_s(self._disturbances.causes, num_nodes, num_nodes)
        return 1 / (rate * self._speed) if rate else inf

    def idle(self, now_s: float) -> frozenset[str]:
        """Carry out what fails and comes back until now, and return the nodes that may be used."""
        for until_s, worker in [each for each in self._hanging if each[0] <= now_s]:
            self._hanging.remove((until_s, worker))
            _signal(worker, signal.SIGKILL)
        while self._next is not None and self._next.time_ns <= now_s * self._speed * NS_PER_S:
            change, self._next = self._next, next(self._changes, None)
            if isinstance(change, Strike):
                self._strike(change, now_s)
            elif change.fails:
                self._goes(change, now_s)
            else:
                self._comes(change.server)
        return frozenset(f"node{node}" for node in self._there)

    def awaited(self, job_id: str) -> int:
        """Return for how many nodes a job waits that are to come back to it; their places are no others'."""
        return len(self._waiting.get(job_id, ()))

    def order(self, job_id: str, nodes: Collection[str]) -> list[str]:
        """Return nodes in the order in which a job takes them: the spares that it was given are first."""
        given = self._given.get(job_id, ())
        return sorted(nodes, key=lambda node: (node not in given, node))

    def _goes(self, change: CapacityChange, now_s: float) -> None:
        node = change.server
        self.failures.append((now_s, change.cause, f"node{node}"))
        if self._health is not None and not change.warned:
            self._failed_s[node].append(now_s * self._speed)
            if self._health.replaces(self._failed_s[node]):
                self._replaced.add(node)
                self._failed_s[node].clear()
        if node in self._spares:
            self._spares.remove(node)
            self._lacking += 1
            return
        self._there.discard(node)
        for job_id, job in self.running.items():
            if f"node{node}" in job.nodes:
                self._recover(job_id, job.nodes, node, now_s)

    def _comes(self, node: int) -> None:
        waits = [job_id for job_id, lost in self._waiting.items() if node in lost]
        if self._lacking and not waits:
            self._lacking -= 1
            self._spares.add(node)
            return
        self._there.add(node)
        for job_id in waits:
            self._waiting[job_id].discard(node)

    def _recover(self, job_id: str, nodes: Sequence[str], lost: int, now_s: float) -> None:
        """Ask how a job goes on that loses a node."""
        if self._recovery is None:
            return
        seen = StoppedJob(
            job_id=job_id,
            num_gpus=len(nodes),
            servers=tuple(int(name.removeprefix("node")) for name in nodes),
            lost={lost: 1},
            spares=dict.fromkeys(sorted(self._spares), 1),
            racks=(),
            now_s=now_s * self._speed,
        )
        name = f"recovery {label(self._recovery)}: recover"
        answer = guarded(name, lambda: self._recovery.recover(seen))  # type: ignore[union-attr]
        if answer is WAIT:
            self._waiting.setdefault(job_id, set()).add(lost)
        elif answer is not None:
            if not isinstance(answer, Mapping) or not self._spares.issuperset(answer.values()):
                raise InvalidDecisionError(f"{name} answered {answer!r}; expected one of the spares {seen.spares}")
            taken: Collection[int] = answer.values()
            self._spares.difference_update(taken)
            self._there.update(taken)
            self._given[job_id] = {f"node{spare}" for spare in taken}
            self._lacking += len(taken)

    def _strike(self, strike: Strike, now_s: float) -> None:
        """Hit a process of each job on a GPU, or of one job: at once, or by stopping it until that is noticed."""
        if strike.hang_ns is None:
            return
        names = {f"node{gpu}" for gpu in strike.gpus}
        for place, job_id in enumerate(self._jobs):
            job = self.running.get(job_id)
            if job is None or not (strike.job == place or names.intersection(job.nodes)):
                continue
            node = next((node for node in job.nodes if node in names), job.nodes[0])
            self.failures.append((now_s, strike.cause, job_id))
            _signal(job.workers[node], signal.SIGSTOP if strike.hang_ns else signal.SIGKILL)
            if strike.hang_ns:
                self._hanging.append((now_s + strike.hang_ns / NS_PER_S / self._speed, job.workers[node]))


def _signal(worker: LiveProcess, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker.process.pid, number)
