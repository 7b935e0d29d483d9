"""Ranks that are threads of this process, and all-reduces between them that need no network."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import defaultdict
from typing import Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.real.channel import Channel
from ddlsched.real.gate.gate import Gate, GateSettings
from ddlsched.real.gate.live_jobs import GateRank, SentRow
from ddlsched.real.gate.loop import run_gate
from ddlsched.real.testbed.gloo import Ended
from ddlsched.real.testbed.worker import Worker
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

MOST_S = 60.0
"""A run of these tests takes a second or two."""


class Exchange:
    """Matches collectives by the order in which each rank issues them, as gloo does; a mismatch is an error there.

    An all-reduce ends ``delay_s`` after its last rank has begun it.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.lock = threading.Lock()
        self.ports = itertools.count(1)
        self.groups: dict[int, dict[int, list[tuple[Any, Ended]]]] = defaultdict(dict)
        self.barriers: dict[int, threading.Barrier] = {}
        self.matched: dict[int, int] = defaultdict(int)
        self.most_at_a_time = 0
        self.under_way = 0

    def match(self, port: int, size: int) -> None:
        with self.lock:
            lists = self.groups[port]
            place = self.matched[port]
            if len(lists) < size or any(len(issued) <= place for issued in lists.values()):
                return
            self.matched[port] += 1
            ops = [issued[place] for issued in lists.values()]
            self.under_way += 1
            self.most_at_a_time = max(self.most_at_a_time, self.under_way)
        same = len({what for what, _ in ops}) == 1
        error = None if same else f"ranks issued {[what for what, _ in ops]} together"

        def end() -> None:
            with self.lock:
                self.under_way -= 1
            for _, ended in ops:
                ended(error)

        if self.delay_s:
            timer = threading.Timer(self.delay_s, end)
            timer.daemon = True
            timer.start()
        else:
            end()


class LocalReducer:
    """One rank's part in an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.received = self.rank = 0

    def listen(self, address: str) -> int:
        return next(self.exchange.ports)

    def join(self, host: str, port: int, address: str, rank: int, size: int, threads: int) -> None:
        self.port, self.rank, self.size = port, rank, size
        with self.exchange.lock:
            self.exchange.groups[port][rank] = []

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        with self.exchange.lock:
            self.exchange.groups[self.port][self.rank].append(((task, chunk, chunks), ended))
        self.exchange.match(self.port, self.size)

    def received_bytes(self) -> int:
        self.received += 1_000_000
        return self.received

    def cards_down(self) -> list[str]:
        return []

    def leave(self) -> None:
        pass


class ThreadCrew:
    """Workers that are threads, started when they are needed."""

    def __init__(self, exchange: Exchange, reducer: Any = LocalReducer) -> None:
        self.exchange, self.reducer = exchange, reducer
        self._ranks: list[GateRank] = []
        self._idle: dict[int, list[GateRank]] = defaultdict(list)
        self.threads: list[threading.Thread] = []
        self.workers: list[Worker] = []

    def take(self, server: int) -> GateRank:
        if not self._idle[server]:
            self._start(server)
        return self._idle[server].pop()

    def _start(self, server: int) -> None:
        ours, theirs = socket.socketpair()
        worker = Worker(Channel(theirs), lambda: self.reducer(self.exchange))
        self.workers.append(worker)
        thread = threading.Thread(target=worker.serve, daemon=True)
        thread.start()
        self.threads.append(thread)
        rank = GateRank(Channel(ours), server, f"host-{server}")
        self._ranks.append(rank)
        self._idle[server].append(rank)

    def give_back(self, rank: Any) -> None:
        self._idle[rank.server].append(rank)

    def ranks(self) -> list[GateRank]:
        return self._ranks

    def close(self) -> None:
        for rank in self._ranks:
            rank.channel.close()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        ends = [end for worker in self.workers for end in (worker._wakes, worker._wake)]
        assert all(end.fileno() == -1 for end in ends)  # closed


def settings(cluster: Cluster, **given: Any) -> GateSettings:
    """Return settings of policies by name; free overlap, first fit, srsf by default."""
    network = Network(resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards)
    names = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=99"}
    policies = {kind: resolve(kind, given.pop(kind, name)) for kind, name in names.items()}
    model = resolve("contention", given.pop("contention", "max-min")).bound_to(network)
    return GateSettings(cluster=cluster, **policies, costs=CommunicationCosts(cluster, network, model), **given)


def quick_job(name: str, *, gpus: int = 4, iterations: int = 3, compute_s: float = 0.004, **more: Any) -> Job:
    """Return a job of a few milliseconds an iteration."""
    given = {"message_bytes": 1e6, "buckets": 1} | {
        key: more.pop(key) for key in set(more) & {"message_bytes", "buckets"}
    }
    iteration = DataParallelIteration(forward_s=compute_s / 2, backward_s=compute_s / 2, **given)
    return Job(
        job_id=name,
        num_gpus=gpus,
        iterations=iterations,
        iteration=more.pop("iteration", iteration),
        gpu_memory_mb=more.pop("gpu_memory_mb", 100.0),
        arrival_s=more.pop("arrival_s", 0.0),
    )


class Outcome:
    """A run's gate, what it recorded, and what ranks said."""

    def __init__(self, gate: Gate, rows: list[SentRow], said: list[tuple[int, dict[str, Any]]]) -> None:
        self.gate, self.rows, self.said = gate, rows, said


def run_jobs(jobs: list[Job], given: GateSettings, crew: ThreadCrew) -> Outcome:
    """Run jobs to their end and let the threads go; a run that does not end fails in place of hanging."""
    rows: list[SentRow] = []
    said: list[tuple[int, dict[str, Any]]] = []
    gate = Gate(Workload.of(jobs), given, crew, rows.append)
    raised: list[BaseException] = []

    def drive() -> None:
        try:
            run_gate(gate, crew, lambda rank, message: said.append((rank.server, message)))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=drive, daemon=True)
    thread.start()
    thread.join(MOST_S)
    has_ended = not thread.is_alive()
    crew.close()
    assert has_ended, f"the run did not end within {MOST_S:g} s"
    if raised:
        raise raised[0]
    return Outcome(gate, rows, said)
