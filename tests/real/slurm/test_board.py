"""The agent's policies see of jobs and costs what a simulation's do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
from ddlsched.cluster.cluster import Server
from ddlsched.plugins import DEFAULT_BUNDLE, DEFAULT_CONTENTION
from ddlsched.real.slurm.board import Board, BoardDecision, BoardJob, Demand, Demanding, Holder
from ddlsched.real.slurm.commands import SlurmNode
from ddlsched.real.slurm.settings import JobFacts
from ddlsched.testing import cluster_view, job_view

GPUS = (8, 8, 4)
NODES = [
    SlurmNode(name=f"n{number}", num_gpus=gpus, gpu_kind="", partitions=("gpus",), is_usable=True)
    for number, gpus in enumerate(GPUS)
]
MEMORY_MB = 32768.0


@dataclass(eq=False)
class Seen:
    """First-fit that notes what it sees."""

    seen: list[Any] = field(default_factory=list)

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        alone_s = [cluster.all_reduce_s(1e9, servers) for servers in (1, 2, 3)]
        self.seen.append((job.job_id, alone_s, cluster.loads_ns(), len(cluster.network.links)))
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


def training(job_id: str, num_gpus: int) -> Job:
    iteration = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=3e8, buckets=2)
    return Job(job_id=job_id, arrival_s=0.0, num_gpus=num_gpus, iterations=9, iteration=iteration, gpu_memory_mb=1.0)


@pytest.mark.parametrize(
    "topology", ["star", "rail-optimised:rails=4,spines=2", "rail-optimised:rails=4,spines=2,nvlink_gbps=3600"]
)
def test_costs_and_loads_are_those_of_a_simulation(topology: str) -> None:
    """Also where the inside of servers takes time, on servers of different sizes."""
    jobs = [training("inside", 4), training("across", 8), training("wide", 6)]
    servers = tuple(Server(gpus=gpus, gpu_memory_mb=MEMORY_MB) for gpus in GPUS)
    simulated, real, views = Seen(), Seen(), []

    class Keeping(Seen):
        def place(self, job: Any, cluster: Any) -> list[int] | None:
            views.append(job)
            return super().place(job, cluster)

    cluster = Cluster(servers=servers, exclusive=True, topology=topology)
    simulate(Workload.of(jobs), cluster, placement=Keeping(simulated.seen), order="fifo")
    board = Board({"placement": real, "order": "fifo", "topology": topology, "gpu_memory_mb": MEMORY_MB}, NODES)
    queued = [BoardJob(job, number) for number, job in enumerate(jobs)]
    decided = board.decide([], queued, {}, 0.0)
    assert [job.job.job_id for job, _ in decided.starts] == ["inside", "across", "wide"]
    assert real.seen == simulated.seen[: len(real.seen)]
    assert [job.view.communication_ns for job in queued] == [view.communication_ns for view in views[:3]]
    assert any(job.view.communication_ns for job in queued)


class Last:
    """Chooses the last GPUs, however few there are."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return list(cluster.eligible_gpus(job)[-job.num_gpus :])

    def wake_s(self, now_s: float) -> float:
        return now_s + 1.5


class Never:
    def place(self, job: Any, cluster: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("placement", "gpus", "demand", "answer"),
    [
        (Last(), 4, Demand(), [12, 13, 14, 15]),
        (Last(), 4, Demand(kind="a"), [0, 1, 2, 3]),
        (Last(), 4, Demand(gpus_per_node=2), [8, 9, 12, 13]),
        (Last(), 6, Demand(kind="a"), None),
        (Last(), 10, Demand(gpus_per_node=5), None),
        (Never(), 4, Demand(gpus_per_node=2), None),
    ],
)
def test_what_a_job_asks_for_it_gets_on_the_nodes_that_the_policy_chooses(placement, gpus, demand, answer) -> None:
    demanding = Demanding(placement=placement, demands={0: demand}, kinds=["a", "b", "b", "b"])
    begun = demanding.begin(Cluster(num_servers=4, gpus_per_server=4), np.random.default_rng(0))
    assert begun.place(job_view(num_gpus=gpus), cluster_view()) == answer
    assert begun.wake_s(2.0) == (3.5 if isinstance(placement, Last) else None)


def test_a_job_that_needs_all_the_memory_of_a_gpu_fits_and_one_that_needs_more_does_not() -> None:
    board = Board({"placement": "lwf:kappa=1", "order": "fifo", "gpu_memory_mb": MEMORY_MB}, NODES)
    job = training("large", 1)
    fits = [board.fits(replace(job, gpu_memory_mb=MEMORY_MB + more), Demand()) for more in (0.0, 1.0)]
    assert fits == [True, False]


def test_a_job_that_runs_has_its_last_iteration_before_it() -> None:
    """Three iterations of 1 s since 10 s; another has one behind it already."""
    facts = JobFacts(iterations=3, forward_s=0.75, backward_s=0.25)
    described = facts.job("1", arrival_s=0.0, num_gpus=1, user="me", time_limit_s=None)
    job, resumed, waiting = BoardJob(described, 0, 0, 10.0), BoardJob(described, 1, 1, 10.0), BoardJob(described, 2, 1)
    times = (5.0, 10.0, 10.9, 11.0, 12.5, 13.0, 99.0)
    assert [job.iterations_done(now_s) for now_s in times] == [0, 0, 0, 1, 2, 2, 2]
    assert [resumed.iterations_done(now_s) for now_s in times] == [1, 1, 1, 2, 2, 2, 2]
    assert [waiting.iterations_done(now_s) for now_s in times] == [1] * 7
    assert (job.began_s(12.0), waiting.began_s(12.0)) == (10.0, 12.0)


def partition(*gpus: int, kinds: str = "", closed: str = "") -> list[SlurmNode]:
    """Return nodes n0, n1 and so on, of kinds by letter; of ``closed`` nobody may start there."""
    return [
        SlurmNode(
            name=f"n{number}",
            num_gpus=count,
            gpu_kind=kinds[number : number + 1],
            partitions=("gpus",),
            is_usable=str(number) not in closed,
        )
        for number, count in enumerate(gpus)
    ]


@dataclass(eq=False)
class Free:
    """Places nothing, and notes which GPUs are free for which job, by its number; may want to be woken."""

    woken_s: float | None = None
    seen: list[tuple[int, list[int]]] = field(default_factory=list)

    def place(self, job: Any, cluster: Any) -> None:
        self.seen.append((job.number, list(cluster.eligible_gpus(job))))

    def wake_s(self, now_s: float) -> float | None:
        return self.woken_s


def board_of(policy: Any, nodes: list[SlurmNode], order: Any = "fifo", **more: Any) -> Board:
    return Board(dict(placement=policy, order=order, **more), nodes)


@pytest.mark.parametrize(
    ("closed", "others", "holders", "free"),
    [
        ("", {}, {}, [0, 1, 2, 3, 4, 5]),
        ("", {"n0": 1}, {}, [0, 1, 2, 4, 5]),
        ("", {"n0": 4, "n1": 1}, {}, [4]),
        ("", {"n0": 5}, {}, [4, 5]),  # more than there are
        ("0", {}, {}, [4, 5]),
        ("1", {"n1": 1}, {}, [0, 1, 2, 3]),
        ("", {}, {"n0": [1], "n1": [1]}, [0, 2, 3, 4]),
        ("", {"n0": 2}, {"n0": [1]}, [0, 4, 5]),
        ("", {"n0": 4}, {"n0": [1]}, [4, 5]),
        ("", {}, {"gone": [0], "n1": [0]}, [0, 1, 2, 3, 5]),
    ],
)
def test_gpus_are_free_that_no_job_no_other_and_no_closed_node_has(closed, others, holders, free) -> None:
    """Of nodes with four and two GPUs; which of its GPUs another has Slurm does not say, so the last count."""
    policy = Free()
    board = board_of(policy, partition(4, 2, closed=closed))
    holding = [Holder(BoardJob(training("has", 7), 5, start_s=1.0), holders)] if holders else []
    decision = board.decide(holding, [BoardJob(training("waits", 1), 7)], others, 9.0)
    assert policy.seen == [(7, free)]
    assert decision == BoardDecision([], [])


def test_policies_are_told_of_jobs_that_run_once_and_again_if_their_gpus_change() -> None:
    policy = Free()
    board = board_of(policy, partition(4, 2))
    late, early = BoardJob(training("late", 1), 3, start_s=5.0), BoardJob(training("early", 2), 4, start_s=2.0)
    part, starts = BoardJob(training("part", 2), 1, start_s=1.0), BoardJob(training("starts", 1), 2)

    def asked(*holders: Holder) -> list[tuple[int, list[int]]]:
        policy.seen.clear()
        board.decide(holders, [], {}, 9.0)
        return list(policy.seen)

    running = Holder(late, {"n0": [3]}), Holder(early, {"n1": [0, 1]}), Holder(starts, {"n0": [1]}, may_stop=False)
    assert asked(*running, Holder(part, {"gone": [0], "n0": [0]})) == [(4, [4, 5]), (3, [3]), (2, [1])]
    assert asked(*running, Holder(part, {"gone": [0], "n0": [0]})) == []
    assert asked(*running) == []
    assert asked(Holder(late, {"n0": [2]}), *running[1:]) == [(4, [4, 5]), (3, [2]), (2, [1])]


@pytest.mark.parametrize(
    ("placement_s", "order_s", "woken_s"),
    [(None, None, None), (7.5, None, 7.5), (None, 6.0, 6.0), (7.5, 6.0, 6.0), (7.0, 8.0, 7.0), (5.0, 6.0, 6.0)],
)
def test_a_board_is_woken_when_the_first_of_its_policies_wants(placement_s, order_s, woken_s) -> None:
    class Order:
        def key(self, job: Any, now_s: float) -> int:
            return 0

        def wake_s(self, now_s: float) -> float | None:
            return order_s

    assert board_of(Free(placement_s), partition(1), Order()).wake_s(5.0) == woken_s


def test_a_board_is_for_its_nodes_whether_jobs_may_start_there_or_not() -> None:
    board = board_of(Free(), partition(4, 2, kinds="ab"))
    others = (
        partition(4, 2, kinds="ab", closed="01"),
        partition(4, 2, kinds="aa"),
        partition(4, 3, kinds="ab"),
        partition(4, kinds="ab"),
        partition(4, 2, kinds="ab")[::-1],
        [replace(node, name=f"{node.name}x") for node in partition(4, 2, kinds="ab")],
    )
    assert [board.has_nodes(nodes) for nodes in others] == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("each", "kind", "most"),
    [
        (0, "", 20),
        (0, "a", 12),
        (0, "c", 0),
        (4, "", 12),
        (5, "", 10),
        (8, "", 16),
        (9, "", 0),
        (4, "a", 8),
        (5, "a", 5),
    ],
)
def test_jobs_fit_up_to_the_gpus_of_their_kind_so_many_on_a_node(each: int, kind: str, most: int) -> None:
    """Nodes have 8, 8 and 4 GPUs."""
    board = board_of(Free(), partition(8, 8, 4, kinds="aba"))
    found = [board.fits(training("a", num_gpus), Demand(each, kind)) for num_gpus in (max(most, 1), most + 1)]
    assert found == [most > 0, False]


def test_what_is_left_of_a_job_counts_down_with_its_iterations() -> None:
    """Nine iterations of 0.3 s on two GPUs; at 10.7 s, two have ended of those since 10 s."""
    board = board_of(Free(), partition(2))
    job = BoardJob(training("a", 2), 0, 4, 10.0)
    assert (job.view.iterations_left, job.view.remaining_service_ns) == (5, 3_000_000_000)
    board.decide([Holder(job, {"n0": [0, 1]})], [], {}, 10.7)
    assert (job.view.iterations_left, job.ends_left(0), job.ends_left(1)) == (3, 3, 3)
    assert job.view.remaining_service_ns == 1_800_000_000
    assert job.compute_left_ns == {0: 900_000_000, 1: 900_000_000}


def test_only_jobs_that_run_on_nodes_that_are_there_may_be_stopped() -> None:
    """The order would stop all three, as the job that waits is first by far."""
    board = board_of("first-fit", partition(1, 1), "stopping-srtf")
    runs, starts, gone = (
        BoardJob(replace(training(name, 1), iterations=10_000), number, start_s=1.0)
        for number, name in enumerate(("runs", "starts", "gone"))
    )
    holders = Holder(runs, {"n0": [0]}), Holder(starts, {"n1": [0]}, may_stop=False), Holder(gone, {"n9": [0]})
    short = BoardJob(training("short", 1), 3)
    assert board.decide(holders, [short], {}, 2.0) == BoardDecision([runs], [(short, {"n0": [0]})])


def test_jobs_start_in_seats_counted_on_each_node() -> None:
    board = board_of("first-fit", partition(2, 3))
    one, two = BoardJob(training("one", 1), 0), BoardJob(training("two", 3), 1)
    decision = board.decide([], [one, two], {}, 2.0)
    assert decision == BoardDecision([], [(one, {"n0": [0]}), (two, {"n0": [1], "n1": [0, 1]})])
    assert board.decide([Holder(one, {"n0": [0]}), Holder(two, decision.starts[1][1])], [], {}, 3.0) == BoardDecision(
        [], []
    )


def test_names_of_policies_and_demands_have_these_defaults() -> None:
    board = Board({}, NODES)
    assert (board.cluster.topology, board.cluster.gpu_memory_bytes.tolist()) == ("star", [32768 * 10**6] * sum(GPUS))
    chosen = board._settings
    given = {"scheduler": DEFAULT_BUNDLE, "contention": DEFAULT_CONTENTION, "seed": 0}
    other = Board(given, NODES)._settings
    kinds = ("placement", "order", "communication", "seed")
    assert [getattr(chosen, kind) for kind in kinds] == [getattr(other, kind) for kind in kinds]
    assert chosen.costs.model == other.costs.model
