"""What a grant costs at the gate: from the first rank's message to the last rank's order, 32 ranks on real sockets.

    .venv/bin/python benchmarks/gate_grants.py

A grant is one all-reduce of one job: all its ranks' "ready" read, parsed and counted, the order and the communication
policy asked, and "send" written to each rank. Prints milliseconds, wall and processor time. Ranks are in this process
and do nothing meanwhile; on a busy machine the processor time is the figure to trust.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
from benchmark_tables import Table, timed, workload_of

from ddlsched.cluster.cluster import Cluster
from ddlsched.policies.network_views import TransferState
from ddlsched.real.channel import Channel
from ddlsched.real.gate.gate import Gate
from ddlsched.real.gate.live_jobs import GateRank, LiveJob
from ddlsched.real.testbed.measuring import Pinned
from ddlsched.real.testbed.real_run import gate_settings

RANKS = 32
ITERATIONS = 300
POLICIES = {
    "free overlap": {"communication": "bounded-overlap:limit=99"},
    "SRSF(1)": {"communication": "bounded-overlap:limit=1"},
    "AdaDUAL": {"communication": "adadual"},
    "preemptive by time": {"communication": "preemptive:by=time", "chunk_bytes": 1e6},
}


class Sockets:
    """A crew of sockets whose other ends only this script reads and writes."""

    def __init__(self) -> None:
        self.ends: dict[GateRank, socket.socket] = {}

    def take(self, server: int) -> GateRank:
        """Return a rank."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        rank = GateRank(Channel(ours), server, "")
        self.ends[rank] = theirs
        return rank

    def give_back(self, rank: GateRank) -> None:
        """Nothing: no job ends here."""

    def say(self, rank: GateRank, message: dict[str, Any]) -> None:
        """Let a rank say something."""
        self.ends[rank].sendall(json.dumps(message).encode() + b"\n")

    def drain(self) -> None:
        """Read what ranks were told."""
        for end in self.ends.values():
            try:
                while end.recv(1 << 16):
                    pass
            except BlockingIOError:
                pass


def measured(num_jobs: int, policies: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return wall and processor seconds of each grant, while the other jobs' transfers run or wait."""
    cluster = Cluster(num_servers=RANKS // num_jobs, gpus_per_server=num_jobs)
    crew, sizes = Sockets(), [RANKS // num_jobs] * num_jobs
    step = {"forward_s": 0.1, "backward_s": 0.1, "message_bytes": 1e6}
    jobs = workload_of(gpus=sizes, iterations=10**6, gpu_memory_mb=20_000, **step)
    placement = Pinned(servers={job.job_id: range(job.num_gpus) for job in jobs})
    gate = Gate(jobs, gate_settings(cluster, placement=placement, **policies), crew, lambda _: None)
    gate.decide(0)
    for rank in list(gate.seats):
        gate.hear(rank, {"say": "grouped"}, 0)
    task = len(gate.jobs[0].job.dag.tasks) - 1
    found_s = []
    for step in range(ITERATIONS):
        job = gate.jobs[step % num_jobs]
        settle(gate, job, task)
        crew.drain()
        for rank in job.ranks:
            crew.say(rank, {"say": "ready", "task": task, "iteration": step, "message_bytes": 1e6})
        _, *taken_s = timed(lambda: granted(gate, job, step))  # noqa: B023
        found_s.append(taken_s)
    wall, cpu = np.array(found_s).T
    return wall, cpu


def granted(gate: Gate, job: LiveJob, step: int) -> None:
    """Let the gate hear a job's ranks, and decide."""
    for rank in job.ranks:
        for message in rank.channel.receive():  # type: ignore[attr-defined]
            gate.hear(rank, message, step)
    gate.decide(step)


def settle(gate: Gate, job: LiveJob, task: int) -> None:
    """Let running transfers end until a job's own has."""
    while task in job.transfers and job.transfers[task].state != TransferState.IDLE:
        for other in list(gate.transfers.active):
            message = {"say": "sent", "task": task, "iteration": other.iteration, "chunk": 0}
            for rank in other.job.ranks:
                gate.hear(rank, message, 0)
        gate.decide(0)


def main() -> None:
    """Print the table."""
    rows = []
    for num_jobs in (1, 8):
        for name, policies in POLICIES.items():
            wall, cpu = (1e3 * part[20:] for part in measured(num_jobs, policies))
            shape = f"{num_jobs} x {RANKS // num_jobs}"
            figures = np.median(wall), np.quantile(wall, 0.95), cpu.mean()
            rows.append((shape, name, *map(float, figures)))
    columns = ("jobs x ranks", "policy", "median ms", "95 % ms", "mean CPU ms")
    print(Table(title="A grant at the gate, 32 ranks", columns=columns, rows=rows))


if __name__ == "__main__":
    main()
