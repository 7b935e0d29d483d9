"""The gate decides as a simulation does: in virtual time, with ideal ranks and links, jobs finish when simulated.

Nothing here sleeps: the ranks are objects that end computes and transfers when a clock of the test's says so, at the
rates of the contention model that the simulation has.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from in_process_ranks import settings
from tiers import examples

import ddlsched
from ddlsched.cluster.cluster import Cluster
from ddlsched.network.rates import rates_of
from ddlsched.real.gate.gate import Gate, GateSettings
from ddlsched.real.testbed.worker import Compute, Iterated, Progress, Reduce
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload


class IdealRank:
    """A rank that answers at once; what takes time is put into the world's lists."""

    def __init__(self, world: World, server: int) -> None:
        self.world, self.server, self.address = world, server, ""
        self.inbox: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.inbox.append(message)


class World:
    """A gate, ideal ranks, and a clock."""

    def __init__(self, workload: Workload, given: GateSettings) -> None:
        self.workload, self.given, self.now_ns = workload, given, 0
        self.ranks: list[IdealRank] = []
        self.progress: dict[IdealRank, Progress] = {}
        self.computes: list[tuple[int, IdealRank, int, int]] = []
        self.told: dict[tuple[int, int], list[IdealRank]] = {}
        self.left: dict[tuple[int, int], float] = {}
        self.rates: dict[tuple[int, int], float] = {}
        self.since_ns = 0
        self.gate = Gate(workload, given, self, lambda row: None)

    def take(self, server: int) -> IdealRank:
        self.ranks.append(IdealRank(self, server))
        return self.ranks[-1]

    def give_back(self, rank: Any) -> None:
        pass

    def run(self) -> list[float]:
        """Return the finish times, seconds."""
        while not self.gate.finished:
            self._settle()
            self.now_ns = min([*self.gate.due_ns(), *(end for end, *_ in self.computes), *self._transfer_ends()])
            self._advance()
        return [job.finished_ns / 1e9 for job in self.gate.jobs]

    def _settle(self) -> None:
        """Let everything happen that takes no time."""
        while True:
            self.gate.decide(self.now_ns)
            orders = [(rank, message) for rank in self.ranks for message in rank.inbox]
            for rank in self.ranks:
                rank.inbox = []
            if not orders:
                return self._rate()
            for rank, message in orders:
                self._obey(rank, message)

    def _say(self, rank: IdealRank, **message: Any) -> None:
        self.gate.hear(rank, message, self.now_ns)

    def _obey(self, rank: IdealRank, message: dict[str, Any]) -> None:
        job, _ = self.gate.seats.get(rank, (None, 0))
        if message["do"] == "place":
            rank.size, rank.iterations = message["size"], message["iterations"]
            self.progress[rank] = Progress(IterationDag.from_dicts(message["tasks"]), message["gpus"])
            self._say(rank, say="grouped")
        elif message["do"] == "begin":
            self._follow(rank, self.progress[rank].start())
        elif message["do"] == "compute":
            task = job.job.dag.tasks[message["task"]]
            self.computes.append((self.now_ns + task.duration_ns, rank, message["task"], message["gpu"]))
        elif message["do"] == "send":
            key = (job.number, message["task"])
            self.told.setdefault(key, []).append(rank)
            self.left[key] = job.transfers[message["task"]].view.message_bytes

    def _follow(self, rank: IdealRank, events: Any) -> None:
        coming = [events]
        while coming:
            for event in list(coming.pop(0)):
                if isinstance(event, Compute):
                    self._say(rank, say="compute", task=event.task, gpu=event.gpu)
                elif isinstance(event, Iterated):
                    self._say(rank, say="iterated", iteration=event.iteration)
                    if event.iteration + 1 < rank.iterations:
                        coming.append(self.progress[rank].start())
                elif isinstance(event, Reduce) and rank.size == 1:
                    coming.append(self.progress[rank].ended(event.task))
                else:
                    iteration = self.progress[rank].iteration
                    job, _ = self.gate.seats[rank]
                    size = job.job.dag.tasks[event.task].message_bytes
                    self._say(rank, say="ready", task=event.task, iteration=iteration, message_bytes=size)

    def _views(self) -> list[Any]:
        return [self.gate.jobs[number].transfers[task].view for number, task in self.left]

    def _rate(self) -> None:
        model, links = self.given.costs.model, self.given.costs.network.links
        views = self._views()
        rates = rates_of(model, views, [], links) if views else []
        self.rates = dict(zip(self.left, rates, strict=True))
        self.since_ns = self.now_ns

    def _transfer_ends(self) -> list[int]:
        return [self.now_ns + max(0, math.ceil(self.left[key] / self.rates[key] * 1e9 - 0.001)) for key in self.left]

    def _advance(self) -> None:
        passed_s = (self.now_ns - self.since_ns) / 1e9
        ended = [key for key in self.left if self.left[key] - self.rates[key] * passed_s <= self.rates[key] * 1e-12]
        for key in self.left:
            self.left[key] -= self.rates[key] * passed_s
        for key in ended:
            del self.left[key]
            number, task = key
            transfer = self.gate.jobs[number].transfers[task]
            for rank in self.told.pop(key):
                self._say(rank, say="sent", task=task, iteration=transfer.iteration, chunk=0)
                self._follow(rank, self.progress[rank].ended(task))
        due = [one for one in self.computes if one[0] <= self.now_ns]
        self.computes = [one for one in self.computes if one[0] > self.now_ns]
        for _, rank, task, gpu in due:
            self._say(rank, say="computed", task=task, gpus=[gpu])
            self._follow(rank, self.progress[rank].ended(task, gpu))


def random_workload(seed: int) -> Workload:
    rng = np.random.default_rng(seed)

    def iteration() -> DataParallelIteration | IterationDag:
        first, second = (int(ns) for ns in rng.integers(1_000_000, 60_000_000, 2))
        size = float(rng.integers(100_000, 40_000_000))
        if rng.random() < 0.7:
            buckets = int(rng.integers(1, 4))
            return DataParallelIteration(
                forward_s=first / 1e9, backward_s=second / 1e9, message_bytes=size, buckets=buckets
            )
        return IterationDag(
            (
                ComputeTask(name="a", duration_ns=first),
                AllReduceTask(name="r", message_bytes=size, after=("a",)),
                ComputeTask(name="b", duration_ns=second, after=("a",)),
                ComputeTask(name="c", duration_ns=first // 2 + 1, after=("r", "b")),
                AllReduceTask(name="s", message_bytes=size / 3, after=("c",)),
            )
        )

    jobs = [
        Job(
            job_id=f"job-{number}",
            arrival_s=int(rng.integers(0, 300_000_000)) / 1e9,
            num_gpus=int(rng.integers(1, 7)),
            iterations=int(rng.integers(1, 8)),
            iteration=iteration(),
            gpu_memory_mb=float(rng.integers(5_000, 20_000)),
        )
        for number in range(rng.integers(2, 8))
    ]
    return Workload.of(jobs)


POLICIES = {
    "free": {"communication": "bounded-overlap:limit=99"},
    "srsf-1": {"communication": "bounded-overlap:limit=1", "placement": "lwf:kappa=1"},
    "srsf-2": {"communication": "bounded-overlap:limit=2", "order": "fifo"},
    "ada-srsf": {"communication": "adadual", "placement": "lwf:kappa=1"},
    "blocks": {"placement": "blocks", "order": "srtf", "communication": "bounded-overlap:limit=1"},
}


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("topology", ["star", "leaf-spine:servers_per_leaf=2,spines=1,oversubscription=2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_finish_when_they_do_in_a_simulation(policy: str, topology: str) -> None:
    cluster = Cluster(num_servers=4, gpus_per_server=2, topology=topology)
    given = {"placement": "first-fit", "order": "srsf", **POLICIES[policy], "contention": "equal-share"}
    for seed in range(examples(8, by_default=3)):
        workload = random_workload(seed)
        measured = World(workload, settings(cluster, slots=True, **given)).run()
        simulated = ddlsched.simulate(workload, cluster, **given).jobs.finish_s.tolist()
        assert measured == pytest.approx(simulated, abs=1e-6), (policy, seed)
