"""What gates tell ranks in memory that say drawn things at drawn times, and users' jobs that join one: as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from in_process_ranks import settings
from kept_numbers import assert_kept, digest

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import TestbedError
from ddlsched.real.gate import service
from ddlsched.real.gate.gate import Gate, GateSettings
from ddlsched.real.gate.live_jobs import SentRow
from ddlsched.real.gate.loop import Watch
from ddlsched.real.gate.service import Membership
from ddlsched.real.testbed.worker import Compute, Progress, Reduce
from ddlsched.workload.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
from ddlsched.workload.job import Job, Workload


@dataclass(frozen=True, kw_only=True)
class From:
    """Starts transfers from a time on, and asks to be woken then if it is to."""

    from_s: float
    wakes: bool = True

    def admit(self, transfer: Any, network: Any) -> bool:
        return bool(network.now_s >= self.from_s)

    def wake_s(self, now_s: float) -> float | None:
        return self.from_s if self.wakes and now_s < self.from_s else None


@dataclass(frozen=True, kw_only=True)
class Nowhere:
    """Places no job."""

    def place(self, job: Any, cluster: Any) -> None:
        return None


CASES: dict[str, dict[str, Any]] = {
    "one at a time": {"communication": "bounded-overlap:limit=1", "order": "fifo"},
    "two in chunks": {"communication": "bounded-overlap:limit=2", "placement": "blocks", "chunk_bytes": 3e5},
    "adadual": {"communication": "adadual", "placement": "lwf:kappa=1", "slots": True},
    "by time": {"communication": "preemptive:by=time", "placement": "lwf:kappa=4", "order": "las", "window": 3},
    "by bytes": {"communication": "preemptive:by=bytes", "slots": True, "window": 1, "train": True},
    "backfilled": {"placement": "easy-backfill:error_sigma=0.5", "order": "srtf", "slots": True},
    "random": {"placement": "random", "seed": 3, "contention": "linear"},
    "woken": {"communication": From(from_s=40.0), "slots": True},
    "never": {"communication": From(from_s=1e6, wakes=False)},
    "nowhere": {"placement": Nowhere()},
}


class Rank:
    """Keeps what it is told; what it could say next waits for its turn."""

    def __init__(self, server: int) -> None:
        self.server, self.address = server, f"host-{server}"
        self.told: list[dict[str, Any]] = []
        self.to_say: list[dict[str, Any]] = []
        self.job: Any = None
        self.received = 0

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        getattr(self, f"hears_{message['do']}")(message)

    def hears_place(self, order: dict[str, Any]) -> None:
        self.job, self.sent = SimpleNamespace(**order), Counter[int]()
        self.progress = Progress(IterationDag.from_dicts(order["tasks"]), order["gpus"])
        self.to_say += [{"say": "store", "port": 7}] * (order["rank"] == 0) + [{"say": "grouped"}]

    def hears_join(self, order: dict[str, Any]) -> None:
        assert self.job.rank > 0

    def hears_begin(self, _: dict[str, Any]) -> None:
        self.follow(self.progress.start())

    def hears_compute(self, order: dict[str, Any]) -> None:
        self.to_say.append({"say": "computed", "task": order["task"], "gpus": [order["gpu"]]})

    def hears_release(self, _: dict[str, Any]) -> None:
        self.job = None

    def hears_ping(self, order: dict[str, Any]) -> None:
        pong = {"say": "pong", "asked_ns": order["asked_ns"], "cards_down": ["eth1"] * (self.server == 2)}
        self.to_say.append(pong | {"computing": sum(one["say"] == "computed" for one in self.to_say)})

    def hears_send(self, order: dict[str, Any]) -> None:
        self.to_say.append(order | {"say": "sent"})

    def follow(self, events: Iterator[Any]) -> None:
        for event in list(events):
            if isinstance(event, Compute):
                self.computes(event.task, event.gpu)
            elif isinstance(event, Reduce) and self.job.size > 1:
                size = self.job.tasks[event.task]["message_bytes"]
                place = {"task": event.task, "iteration": self.progress.iteration}
                self.to_say.append({"say": "ready", "message_bytes": size} | place)
            elif isinstance(event, Reduce):
                self.follow(self.progress.ended(event.task))
            else:
                self.to_say.append({"say": "iterated", "iteration": event.iteration})
                if event.iteration + 1 < self.job.iterations:
                    self.follow(self.progress.start())

    def computes(self, task: int, gpu: int) -> None:
        """Ask for the GPU, or end there together with its other GPUs."""
        known = [one for one in self.to_say if (one["say"], one.get("task")) == ("computed", task)]
        if self.job.slots:
            self.to_say.append({"say": "compute", "task": task, "gpu": gpu})
        elif known:
            known[0]["gpus"].append(gpu)
        else:
            self.to_say.append({"say": "computed", "task": task, "gpus": [gpu]})

    def has_said(self, said: dict[str, Any]) -> None:
        if said["say"] == "computed":
            for gpu in said["gpus"]:
                self.follow(self.progress.ended(said["task"], gpu))
        elif said["say"] == "sent":
            self.sent[said["task"]] += 1
            if self.sent[said["task"]] % said["chunks"] == 0:
                self.follow(self.progress.ended(said["task"]))


def drawn_jobs(rng: np.random.Generator) -> Workload:
    def iteration() -> DataParallelIteration | IterationDag:
        first, second = (int(ns) for ns in rng.integers(1_000_000, 900_000_000, 2))
        size = float(rng.integers(100_000, 4_000_000))
        if rng.random() < 0.6:
            given = {"message_bytes": size, "buckets": int(rng.integers(1, 4))}
            return DataParallelIteration(forward_s=first / 1e9, backward_s=second / 1e9, **given)
        return IterationDag((
            ComputeTask(name="a", duration_ns=first),
            AllReduceTask(name="r", message_bytes=size, after=("a",)),
            ComputeTask(name="b", duration_ns=second, after=("a",)),
            ComputeTask(name="c", duration_ns=first // 2 + 1, after=("r", "b")),
            AllReduceTask(name="s", message_bytes=size / 3, after=("c",)),
        ))  # fmt: skip

    return Workload.of([
        Job(
            job_id=f"job-{number}",
            arrival_s=int(rng.integers(0, 60)) / 2,
            num_gpus=int(rng.integers(1, 7)),
            iterations=int(rng.integers(1, 4)),
            iteration=iteration(),
            gpu_memory_mb=float(rng.integers(4_000, 11_000)),
        )
        for number in range(6)
    ])  # fmt: skip


NONSENSE: tuple[dict[str, Any], ...] = (
    {"say": "sent", "task": 0, "iteration": 7, "chunk": 0},
    {"say": "ready", "task": 0, "iteration": 0},
    {"say": "computed", "task": 0, "gpus": None},
    {"say": "failed", "error": "no memory"},
    {"say": "sing"},
    {},
)


def seen(gate: Gate, now_ns: int) -> list[Any]:
    """What policies see now, and what is asked of the gate besides."""
    cluster, network = gate.placements.view(now_ns), gate.transfers.network()
    jobs = [(one.view.remaining_service_ns, one.view.iterations_left, one.view.servers) for one in gate.jobs]
    going = [
        (view.number, view.is_active, view.links, view.message_bytes, f"{view.bytes_left:.9g}")
        for view in (*network.active, *network.waiting)
    ]
    counts = [network.num_on(link) for link in range(len(gate.transfers.network().links))]
    due = sorted(gate.due_ns()), gate.nothing_is_due, gate.last_event_ns, [one.number for one in gate.running]
    free = [(cluster.free_memory_mb(gpu), cluster.num_residents(gpu)) for gpu in range(cluster.num_gpus)]
    residents = [[view.job_id for view in cluster.residents(gpu)] for gpu in range(cluster.num_gpus)]
    return [jobs, going, counts, due, free, residents, cluster.loads_ns(), sorted(gate.slots.running)]


class Drawn:
    """A gate whose ranks take turns that are drawn."""

    def __init__(self, given: GateSettings, seed: int) -> None:
        self.rng, self.now_ns = np.random.default_rng(seed), 0
        self.ranks: list[Rank] = []
        self.idle: list[Rank] = []
        self.rows: list[SentRow] = []
        self.wrong: list[str] = []
        self.seen: list[Any] = []
        self.gate = Gate(drawn_jobs(self.rng), given, self, self.rows.append)
        self.watch = Watch(self.gate)

    def take(self, server: int) -> Rank:
        rank = next((one for one in self.idle if one.server == server), None) or Rank(server)
        self.idle = [one for one in self.idle if one is not rank]
        self.ranks += [rank] * (rank not in self.ranks)
        return rank

    def give_back(self, rank: Any) -> None:
        self.idle.append(rank)

    def run(self) -> None:
        """Let somebody say something, or time pass, until all is done or it is stuck."""
        for turn in range(4_000):
            self.gate.decide(self.now_ns)
            if self.gate.finished:
                return
            self.seen += [] if turn % 4 else [seen(self.gate, self.now_ns)]
            if not self.try_(self.watch.look, self.now_ns):
                if self.wrong[-1].startswith("deadlock"):
                    return
                for rank in self.ranks:
                    self.watch.hear(rank, {}, self.now_ns)
            can = [rank for rank in self.ranks if rank.to_say]
            self.now_ns += int(self.rng.integers(8_000_000_000 if self.rng.random() < 0.02 else 100_000_000))
            if can:
                self.turn(can[self.rng.integers(len(can))])
        raise AssertionError("it does not end")

    def turn(self, rank: Rank) -> None:
        is_quiet = all(said["say"] == "pong" for said in rank.to_say)
        if not is_quiet and self.rng.random() < 0.05:
            self.try_(self.gate.hear, rank, NONSENSE[self.rng.integers(len(NONSENSE))], self.now_ns)
        in_turn = is_quiet or rank.to_say[0]["say"] == "store"
        said = rank.to_say.pop(0 if in_turn else self.rng.integers(len(rank.to_say)))
        if said["say"] == "pong":
            rank.received += int(self.rng.choice([0, 100, 1500, 90_000]))
            said |= {"received_bytes": rank.received}
        if not self.watch.hear(rank, said, self.now_ns):
            self.gate.hear(rank, said, self.now_ns)
            rank.has_said(said)

    def try_(self, what: Any, *given: Any) -> bool:
        try:
            what(*given)
        except TestbedError as error:
            self.wrong.append(str(error))
            return False
        return True


def told_of(parts: dict[str, list[Any]]) -> dict[str, str]:
    return {name: f"{len(part)} {digest(map(str, part))}" for name, part in parts.items()}


FOUR = Cluster(num_servers=4, gpus_per_server=2, gpu_memory_mb=16_000.0)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_gates_tell_ranks_what_they_told(case: str) -> None:
    seed = list(CASES).index(case)
    spread = Cluster(
        num_servers=4, gpus_per_server=2, exclusive=True, topology="leaf-spine:servers_per_leaf=2,spines=1"
    )
    drawn = Drawn(settings(spread if seed % 3 == 1 else FOUR, **CASES[case]), seed)
    drawn.run()
    times = [(job.placed_ns, job.began_ns, job.finished_ns, job.gpus) for job in drawn.gate.jobs]
    told = [message for rank in drawn.ranks for message in rank.told]
    parts: dict[str, list[Any]] = {
        "told": told,
        "rows": drawn.rows,
        "seen": drawn.seen,
        "jobs": times,
        "wrong": drawn.wrong,
    }
    found = told_of(parts) | {"at last": drawn.wrong[-1]}
    assert_kept(f"gate-{case.replace(' ', '-')}", found)


def test_a_rank_that_says_computed_of_an_all_reduce_is_told_in_a_line() -> None:
    drawn = Drawn(settings(FOUR, **CASES[next(iter(CASES))]), 0)
    while not drawn.gate.seats:
        drawn.now_ns = min(drawn.gate.due_ns())
        drawn.gate.decide(drawn.now_ns)
    rank, (job, _) = next(iter(drawn.gate.seats.items()))
    sends = next(number for number, task in enumerate(job.job.dag.tasks) if not isinstance(task, ComputeTask))
    with pytest.raises(TestbedError, match="expected a task that computes"):
        drawn.gate.hear(rank, {"say": "computed", "task": sends, "gpus": [job.gpus[0]]}, drawn.now_ns)


OF_USERS: tuple[dict[str, Any], ...] = (
    {"communication": "bounded-overlap:limit=1", "order": "fifo"},
    {"communication": "preemptive:by=bytes", "chunk_bytes": 3e5},
    {"communication": From(from_s=20.0)},
)


class OwnRank(Rank):
    """A rank of a user's job, which reduces two buckets in each of three iterations; its process may end."""

    def __init__(self, server: int, member: dict[str, Any]) -> None:
        super().__init__(server)
        self.is_gone, self.iteration, self.chunks_left = False, -1, {0: 0, 1: 0}
        self.to_say.append({"say": "join"} | member)

    def send(self, message: dict[str, Any]) -> None:
        if self.is_gone:
            raise TestbedError("it is gone")
        super().send(message)

    def hears_begin(self, order: dict[str, Any]) -> None:
        self.iteration += 1
        for task in self.chunks_left:
            self.chunks_left[task], size = -1, 1e6 * (1 + task)
            self.to_say.append({"say": "ready", "task": task, "iteration": self.iteration, "message_bytes": size})

    def hears_ping(self, order: dict[str, Any]) -> None:
        self.to_say.append({"say": "pong"})

    def hears_fail(self, order: dict[str, Any]) -> None:
        self.is_gone, self.to_say = True, []

    def has_said(self, said: dict[str, Any]) -> None:
        if said["say"] == "sent":
            left = self.chunks_left[said["task"]]
            self.chunks_left[said["task"]] = (said["chunks"] if left < 0 else left) - 1
            if not any(self.chunks_left.values()):
                self.to_say.append({"say": "iterated", "iteration": self.iteration})
        elif said["say"] == "iterated" and self.iteration < 2:
            self.hears_begin({})


ODD: tuple[dict[str, Any], ...] = (
    {"say": "sent", "task": 0, "iteration": 7, "chunk": 0},
    {"say": "sent", "task": 0, "iteration": 0, "chunk": -1},
    {"say": "ready", "task": 1, "iteration": 0, "message_bytes": 5.0},
    {"say": "ready", "task": 1 << 20, "iteration": 0, "message_bytes": 5.0},
    {"say": "iterated"},
    {"say": "sing"},
    {},
)


def joining(rng: np.random.Generator, number: int) -> list[OwnRank]:
    """The ranks of a job; of some jobs one is missing, or does not fit."""
    size = int(rng.integers(1, 5))
    servers = rng.permutation(4)
    member = {
        "job_id": f"job-{number % 12}",
        "size": size,
        "iterations": 3,
        "compute_s": float(rng.choice([0.0, 0.2, 1.5])),
        "message_bytes": 3e6,
    }
    ranks = [OwnRank(int(servers[rank]), member | {"rank": rank}) for rank in range(size)]
    odd, chosen = int(rng.integers(12)), ranks[rng.integers(size)]
    if odd == 0:
        chosen.server = int(rng.choice([-1, 4]))
    elif odd <= 4:
        field, value = (("rank", 0), ("size", 1), ("iterations", 0), ("message_bytes", -1.0))[odd - 1]
        chosen.to_say[0] |= {field: value}
    elif odd == 5:
        ranks.remove(chosen)
    return ranks


@pytest.mark.parametrize("seed", range(6))
def test_jobs_that_join_a_gate_are_told_what_they_were(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows, seen_then = np.random.default_rng(seed), list[SentRow](), list[Any]()
    now_ns, looked_ns = 17, 0
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    members = Membership(settings(FOUR, **OF_USERS[seed % 3]), rows.append)
    ranks: list[OwnRank] = []
    for turn in range(420):
        if turn % 15 == 0 and turn < 250:
            ranks += joining(rng, turn // 15)
        now_ns += int(rng.integers(400_000_000))
        if now_ns - looked_ns > 1e9:
            looked_ns = now_ns
            members.look_after()
        awake = [rank for rank in ranks if rank.server != 1 or turn < 200]
        for rank in [awake[place] for place in rng.permutation(len(awake))]:
            way = rng.random()
            if not rank.to_say:
                continue
            if way > 0.998:
                rank.is_gone, rank.to_say = True, []
                members.lose(rank, "is gone")
            elif way < 0.003:
                members.hear(rank, ODD[rng.integers(len(ODD))])
            else:
                said = rank.to_say.pop(rng.integers(len(rank.to_say)))
                members.hear(rank, said)
                rank.has_said(said)
        members.decide()
        jobs = [(name, job.view.iterations_left, job.view.remaining_service_ns) for name, job in members.jobs.items()]
        seen_then.append((jobs, members.wake_ns, members.now_ns()))
    told = [message for rank in ranks for message in rank.told]
    why = sorted({message["error"] for message in told if message["do"] == "fail"})
    assert_kept(f"gate-users-{seed}", told_of({"told": told, "rows": rows, "seen": seen_then, "why": why}))
