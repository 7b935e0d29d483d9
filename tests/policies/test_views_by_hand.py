"""Queues, quotas, GPUs and stops as policies see them: small cases whose answers are worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ddlsched import Cluster, Queue, Quota, Tenants
from ddlsched.engine.records import Columns, make_records
from ddlsched.policies.cluster_view import jobs_on
from ddlsched.policies.elastic_views import CapacityView, best_fit, free_by_server, on_one_server, take_nearest
from ddlsched.policies.network_views import FlowView, TransferState, TransferView, hash_of_flow
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.policies.stopping import StopsByKey
from ddlsched.policies.tenants_view import HeldQuota, LevelRoom, PendingJobs, RunningJobs, kind_code, size_of
from ddlsched.policies.view_parts import View, view
from ddlsched.policies.views import JobView
from ddlsched.testing import cluster_view, job_view

GPU_MB = 32768.0


def tree_of_two_levels() -> QuotaTree:
    """Return a root (1 GPU of its own) above a group (2 of its own) above a and b; and c, which is below the root."""
    return QuotaTree(
        Tenants(
            queues=(
                Queue(name="root", quotas={"any": Quota(gpus=1)}),
                Queue(name="group", parent="root", quotas={"any": Quota(gpus=2, lending_limit=5, borrowing_limit=3)}),
                Queue(name="a", parent="group", quotas={"any": Quota(gpus=4, lending_limit=1, borrowing_limit=2)}),
                Queue(name="b", parent="group", quotas={"any": Quota(gpus=6)}, weight=2.0),
                Queue(name="c", parent="root", quotas={"any": Quota(gpus=3)}, weight=0.0),
            )
        )
    )


def test_quotas_of_a_tree_of_two_levels() -> None:
    tree = tree_of_two_levels()
    nodes = [tree[name] for name in ("root", "group", "a", "b", "c")]
    # a keeps 4 - 1; the group counts 2 + (4 - 3) + 6 and keeps 9 - 5; the root counts 1 + (9 - 4) + 3.
    assert [(node.quota, node.kept, node.height) for node in nodes] == [
        ({"any": 9}, {}, 2),
        ({"any": 9}, {"any": 4}, 1),
        ({"any": 4}, {"any": 3}, 0),
        ({"any": 6}, {}, 0),
        ({"any": 3}, {}, 0),
    ]
    assert [node.is_leaf for node in nodes] == [False, False, True, True, True]
    assert [node.name for node in tree.leaves] == ["a", "b", "c"]
    assert [[leaf.name for leaf in node.leaves()] for node in nodes] == [
        ["a", "b", "c"], ["a", "b"], ["a"], ["b"], ["c"],
    ]  # fmt: skip
    assert [above.name for above in tree["a"].above()] == ["group", "root"]
    assert {node.root.name for node in nodes} == {"root"}
    assert [node.name for node in tree.roots] == ["root"]
    # The group: its quota and 3 borrowed, or what it keeps and all of the root's. a: its quota and 2 borrowed.
    assert [node.most("any") for node in nodes] == [9, 12, 6, 12, 9]
    assert [node.most("of no quota") for node in nodes] == [0] * 5
    # The group: 4 kept, and of the root's 9 no more than the 5 it lends and 3 borrowed. a: 3 kept, and 1 + 2.
    assert [node.available("any") for node in nodes] == [9, 12, 6, 12, 9]


def test_what_queues_use_counts_above_them_beyond_what_each_keeps() -> None:
    tree = tree_of_two_levels()
    nodes = root, group, a, b, c = [tree[name] for name in ("root", "group", "a", "b", "c")]
    a.add("any", 2)
    assert [node.used["any"] for node in nodes] == [0, 0, 2, 0, 0]
    assert a.free_here("any") == 1
    b.add("any", 3)
    assert [node.used["any"] for node in nodes] == [0, 3, 2, 3, 0]
    a.add("any", 4)  # one more is kept, three count in the group, of which one is kept
    assert [node.used["any"] for node in nodes] == [2, 6, 6, 3, 0]
    assert [node.borrowed("any") for node in nodes] == [0, 0, 2, 0, 0]
    assert [node.above_limit("any") for node in nodes] == [False] * 5
    # a has borrowed its 2; the group may take 8 - 2 more, for b; the root has 9 - 2.
    assert [node.available("any") for node in nodes] == [7, 6, 0, 6, 7]
    assert [tree.borrows(node) for node in nodes] == [False, False, True, False, False]
    assert [node.lacks("any", 1) for node in nodes] == [False, False, True, False, False]
    assert [node.lacks("any", 3) for node in nodes] == [False, False, True, False, False]
    assert (b.lacks("any", 4), group.lacks("any", 4), root.lacks("any", 7), root.lacks("any", 8)) == (
        True, True, False, True,
    )  # fmt: skip
    c.add("any", 4)
    assert tree.share(a) == (False, 2 / 12)  # its group could use 12
    assert tree.share(c) == (True, 1 / 9)  # a weight of 0
    assert tree.share(b) == (False, 0.0)
    assert tree.share(root) == (False, 0.0)
    b.add("any", 6)
    assert tree.share(b) == (False, 3 / 12 / 2.0)
    assert tree.share(group) == (False, 3 / 9)
    assert root.used["any"] == 12
    assert not tree.borrows(root)  # from whom?
    a.add("any", 1)
    assert [node.above_limit("any") for node in nodes] == [False, True, True, False, False]
    a.remove("any", 5)  # 4 of its 7 count above it
    assert [node.used["any"] for node in nodes] == [9, 9, 2, 9, 4]
    b.remove("any", 9)
    assert [node.used["any"] for node in nodes] == [4, 0, 2, 0, 4]
    assert repr(c) == "<queue c: uses {'any': 4} of {'any': 3}>"


def test_shares_are_of_the_resource_that_is_borrowed_most() -> None:
    quotas = {"a100": Quota(gpus=1), "v100": Quota(gpus=2), "cpu": Quota(gpus=10)}
    queues = (Queue(name="all"), *(Queue(name=name, parent="all", quotas=quotas) for name in "ab"))
    tree = QuotaTree(Tenants(queues=queues), lambda kind: "CPU" if kind == "cpu" else "GPU")
    a = tree["a"]
    for kind, gpus in (("a100", 2), ("v100", 3), ("cpu", 12)):
        a.add(kind, gpus)
    assert tree.share(a) == (False, 2 / 6)  # 1 + 1 of 6 GPUs are more than 2 of 20 CPUs
    a.add("cpu", 6)
    assert tree.share(a) == (False, 8 / 20)
    assert QuotaTree(Tenants(queues=queues)).share(a) == (False, 10 / 26)  # all are of one resource


def held(number: int, priority: int = 0, since_ns: int = 0, **others: Any) -> HeldQuota:
    return HeldQuota.of(job_view(number=number, priority=priority, queue="q", **others), "a100", since_ns)


def test_running_jobs_give_way_by_priority_and_then_who_started_last() -> None:
    jobs = RunningJobs()
    for holding in (
        held(0, 1, 10, num_gpus=4, arrival_s=2.0), held(1, 0, 10), held(2, 0, 30), held(3, 1, 20), held(4, 0, 10),
    ):  # fmt: skip
        jobs[holding.job.number] = holding
    assert list(jobs) == [0, 1, 2, 3, 4]
    assert [holding.job.number for _, holding in jobs.ordered] == [2, 1, 4, 3, 0]
    code = kind_code("a100")
    assert jobs.rows.tolist() == [
        [0, -30, 2, 1, 0, code],
        [0, -10, 1, 1, 0, code],
        [0, -10, 4, 1, 0, code],
        [1, -20, 3, 1, 0, code],
        [1, -10, 0, 4, 2_000_000_000, code],
    ]
    assert jobs.changes == 5
    del jobs[1]
    assert jobs.changes == 6
    assert jobs.rows[:, 2].tolist() == [2, 4, 3, 0]
    assert [holding.job.number for _, holding in jobs.ordered] == [2, 4, 3, 0]
    assert jobs[0].queue == "q"


@pytest.mark.parametrize("number", [16, 17, 33])
def test_rows_of_running_jobs_grow_with_them(number: int) -> None:
    jobs = RunningJobs()
    for each in range(number):
        jobs[each] = held(each)
    assert jobs.rows[:, 2].tolist() == list(range(number))
    for each in range(0, number, 2):
        del jobs[each]
    assert jobs.rows[:, 2].tolist() == list(range(1, number, 2))


def test_heads_are_the_first_of_each_size() -> None:
    pending = PendingJobs(["q", "r"])
    jobs = [
        job_view(number=number, num_gpus=gpus, priority=priority, arrival_s=arrival_s, queue="q")
        for number, (gpus, priority, arrival_s) in enumerate([(2, 0, 5.0), (2, 0, 4.0), (1, 3, 9.0), (1, 3, 8.0)])
    ]
    other = job_view(number=4, num_gpus=8, queue="r")
    for job in (*jobs, other):
        pending.add(job)
    assert len(pending) == 5
    assert [4 in pending, 5 in pending] == [True, False]
    assert pending.job(2) is jobs[2]
    assert pending.size(0) == size_of(jobs[0]) == (2, 1_000_000_000, None, None, None)
    assert [job.number for job in pending.jobs("q")] == [3, 2, 1, 0]
    heads = pending.first("q")
    assert [job.number for job in heads.jobs] == [3, 1]
    assert heads.asked.tolist() == [[1, 3, 3], [2, 0, 1]]
    assert pending.first("q") is heads
    assert [job.number for job in pending.heads("q")] == [3, 1]
    firsts = pending.firsts()
    assert [len(each.jobs) for each in firsts] == [2, 1]
    assert pending.firsts() is firsts
    # Of lower priority than 3 are those of 0 only, than 4 all, than 0 none.
    below = [[job.number for job in pending.heads("q", priority)] for priority in (4, 3, 1, 0)]
    assert below == [[3, 1], [1], [1], []]
    pending.remove(jobs[3])
    assert 3 not in pending
    assert [job.number for job in pending.first("q").jobs] == [2, 1]
    assert pending.firsts() is not firsts
    pending.remove(jobs[2])
    assert [job.number for job in pending.first("q").jobs] == [1]
    assert pending.first("r").asked.tolist() == [[8, 0, 4]]
    pending.remove(other)
    assert pending.first("r").asked.shape == (0, 3)
    assert (len(pending), pending.first("r").jobs) == (2, [])


def test_of_negative_priorities_those_below_are_heads_too() -> None:
    pending = PendingJobs(["q"])
    for number, priority in enumerate((-1, -2, -3)):
        pending.add(job_view(number=number, priority=priority, queue="q"))
    heads = {priority: [job.number for job in pending.heads("q", priority)] for priority in (0, -1, -2, -3)}
    assert heads == {0: [0], -1: [1], -2: [2], -3: []}


def test_a_job_that_shrinks_keeps_its_place_among_the_parts_of_level_room() -> None:
    cluster = cluster_view(num_servers=3, gpus_per_server=2)
    room = LevelRoom(cluster, 3)
    assert room.note(0, [0, 1, 4])
    assert room.spans.tolist() == [[0, 2], [0, 0], [0, 0]]
    assert room.parts[:2].tolist() == [[0, 2], [4, 1]]
    assert not room.note(0, [0, 1, 5])  # as many on the same servers
    assert room.note(1, [3])
    assert room.spans[1].tolist() == [2, 3]
    assert room.note(0, [2])  # fewer parts than before: in their place
    assert room.spans[0].tolist() == [0, 1]
    assert room.note(0, [0, 2, 4])  # more: behind all others
    assert room.spans.tolist() == [[3, 6], [2, 3], [0, 0]]
    assert room.parts[2:6].tolist() == [[2, 1], [0, 1], [2, 1], [4, 1]]
    assert len(room.parts) == 1024


def test_parts_of_level_room_grow() -> None:
    room = LevelRoom(cluster_view(num_servers=600, gpus_per_server=1), 2)
    for number in range(2):
        assert room.note(number, range(600))
    assert len(room.parts) == 2048
    assert room.spans.tolist() == [[0, 600], [600, 1200]]
    assert room.parts[600:1200].tolist() == [[gpu, 1] for gpu in range(600)]


def test_a_unit_of_the_level_has_room_if_enough_of_its_gpus_are_eligible() -> None:
    gone = job_view(number=7, num_gpus=2, gpu_memory_mb=GPU_MB, servers=(1,), gpus=(2, 3))
    free_mb = [GPU_MB, 0.0, 0.0, 0.0, 0.0, GPU_MB]
    cluster = cluster_view(num_servers=3, gpus_per_server=2, free_memory_mb=free_mb)
    room = LevelRoom(cluster, 1)
    of = {
        (gpus, level): job_view(num_gpus=gpus, gpu_memory_mb=GPU_MB, required_levels=level)
        for gpus in (1, 2, 3, 4)
        for level in (None, "server")
    }
    assert room.level_of(of[1, None]) is None
    assert room.level_of(of[1, "server"]) == "server"
    assert room.level_of(job_view(preferred_levels="server")) == ""
    assert [room.suffices(of[gpus, "server"]) for gpus in (1, 2)] == [True, False]
    assert [room.suffices(of[gpus, "server"], [gone]) for gpus in (2, 3)] == [True, False]
    assert room.suffices(of[4, None])  # it requires nothing
    preferring = [job_view(num_gpus=gpus, gpu_memory_mb=GPU_MB, preferred_levels="server") for gpus in (2, 3, 4, 5)]
    assert [room.suffices(job) for job in preferring] == [True, False, False, False]
    assert [room.suffices(job, [gone]) for job in preferring] == [True, True, True, False]
    units, free = room.of(of[1, "server"])
    assert (units.tolist(), free.tolist()) == ([0, 0, 1, 1, 2, 2], [1, 0, 1])
    room.look_at(cluster_view(num_servers=3, gpus_per_server=2))
    assert room.of(of[1, "server"])[1].tolist() == [2, 2, 2]


class ShorterFirst(StopsByKey):
    def key(self, job: JobView, now_s: float) -> Any:
        return job.iterations


def stopped(running: Sequence[tuple[int, tuple[int, ...]]], queue: Sequence[tuple[int, int]]) -> list[int]:
    """Return who stops of (iterations, GPUs) for (iterations, number of GPUs), on 4 GPUs, by numbers from 0."""
    runs = [
        job_view(number=n, num_gpus=len(gpus), iterations=iterations, gpu_memory_mb=GPU_MB, servers=(0,), gpus=gpus)
        for n, (iterations, gpus) in enumerate(running)
    ]
    waits = [
        job_view(number=10 + n, num_gpus=gpus, iterations=iterations, gpu_memory_mb=GPU_MB)
        for n, (iterations, gpus) in enumerate(queue)
    ]
    taken = {gpu for _, gpus in running for gpu in gpus}
    free_mb = [0.0 if gpu in taken else GPU_MB for gpu in range(4)]
    cluster = cluster_view(num_servers=1, gpus_per_server=4, free_memory_mb=free_mb)
    return [job.number for job in ShorterFirst().stops(runs, waits, cluster)]


@pytest.mark.parametrize(
    ("running", "queue", "expected"),
    [
        ([], [(1, 1)], []),
        ([(5, (0, 1))], [(1, 2)], []),  # two are free
        ([(5, (0, 1))], [(1, 3)], [0]),
        ([(5, (0, 1))], [(5, 3)], []),  # equal keys: by number
        ([(5, (0, 1))], [(9, 3)], []),
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 1)], [1]),
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 2)], [2, 1]),
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 4)], []),  # too few even so
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 4), (4, 3)], [0, 2, 1]),
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 1), (4, 1)], [1, 2]),
        ([(5, (0,)), (9, (1,)), (7, (2,)), (1, (3,))], [(3, 1), (8, 1)], [1]),
        ([(5, (0, 1))], [(3, 2), (4, 1)], [0]),  # the two that are free are promised
        ([(5, (0, 1, 2, 3))], [(3, 1), (4, 3)], [0]),  # what stopped for the first is enough for both
    ],
)
def test_those_with_the_largest_keys_stop_until_there_are_enough_gpus(
    running: list[Any], queue: list[Any], expected: list[int]
) -> None:
    assert stopped(running, queue) == expected


def test_an_order_without_a_key_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"^give the order a key\(job, now_s\)$"):
        StopsByKey().key(job_view(), 0.0)


@pytest.mark.parametrize(("needed", "server"), [(0, 3), (1, 3), (2, 1), (3, 2), (4, 4), (5, 4), (6, 4)])
def test_best_fit_is_the_least_that_suffices_or_the_most(needed: int, server: int) -> None:
    assert best_fit({2: 3, 4: 5, 1: 2, 3: 1, 5: 5, 0: 3}, needed) == server


def test_gpus_on_one_server_are_of_the_one_with_the_fewest_that_suffice() -> None:
    free = {0: [0, 1, 2, 3], 1: [4, 5], 2: [8, 9]}
    assert [on_one_server(free, count) for count in (1, 2, 3, 5)] == [[4], [4, 5], [0, 1, 2], []]
    assert free_by_server([9, 4, 0, 8, 5], lambda gpu: gpu // 4) == {0: [0], 1: [4, 5], 2: [8, 9]}


@pytest.mark.parametrize(
    ("count", "mine", "taken", "left"),
    [
        (0, [], [], {0: [0, 1, 2], 1: [4], 2: [8, 9]}),
        (1, [], [4], {0: [0, 1, 2], 2: [8, 9]}),
        (2, [], [8, 9], {0: [0, 1, 2], 1: [4]}),
        (4, [], [0, 1, 2, 4], {2: [8, 9]}),
        (9, [], [0, 1, 2, 8, 9, 4], {}),
        (1, [10], [8], {0: [0, 1, 2], 1: [4], 2: [9]}),
        (3, [3, 10, 11], [8, 9, 0], {0: [1, 2], 1: [4]}),  # most of its GPUs are on server 2
        (2, [3, 10], [0, 1], {0: [2], 1: [4], 2: [8, 9]}),  # as many: the lower
        (3, [13, 5], [4, 8, 9], {0: [0, 1, 2]}),
    ],
)
def test_the_nearest_gpus_are_taken_out_of_the_pool(
    count: int, mine: list[int], taken: list[int], left: dict[int, list[int]]
) -> None:
    pool = {0: [0, 1, 2], 1: [4], 2: [8, 9]}
    assert take_nearest(pool, count, mine, lambda gpu: gpu // 4) == taken
    assert pool == left


def test_an_all_reduce_of_an_allocation_takes_time_between_servers_only() -> None:
    cluster = Cluster(num_servers=3, gpus_per_server=2)
    view = CapacityView(num_gpus=6, free_gpus=(), cluster=cluster, all_reduce=lambda size, servers: size * servers)
    assert [view.all_reduce_s(10.0, servers) for servers in (0, 1, 2, 3, 4)] == [0.0, 0.0, 20.0, 30.0, 30.0]
    assert view.all_reduce_s(0, 2) == 0.0
    assert CapacityView(num_gpus=6, free_gpus=(), cluster=cluster).all_reduce_s(10.0, 2) == 0.0
    assert [view.server_of(gpu) for gpu in range(6)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("count", "gpus"),
    [(1, [1]), (2, [1, 4]), (3, [1, 4, 0]), (4, [1, 4, 0, 3]), (5, [1, 4, 0, 3, 5]), (6, [1, 4, 0, 3, 5, 2])],
)
def test_the_least_loaded_come_first_and_of_equal_loads_the_lower(count: int, gpus: list[int]) -> None:
    cluster = cluster_view(num_servers=2, gpus_per_server=3, load_s=[2.0, 1.0, 4.0, 2.0, 1.0, 3.0])
    assert cluster.least_loaded(np.arange(6), count) == gpus


def test_loads_and_ranks_of_servers() -> None:
    cluster = cluster_view(num_servers=3, gpus_per_server=2, load_s=[2.0, 1.0, 4.0, 2.0, 0.0, 3.0])
    assert cluster.loads_ns() == [2 * 10**9, 10**9, 4 * 10**9, 2 * 10**9, 0, 3 * 10**9]
    assert [cluster.load_ns(gpu) for gpu in (1, 4)] == [10**9, 0]
    first, second, third = cluster.server_loads_ns()
    assert first == third == second / 2
    assert cluster.server_ranks(np.array([0, 0, 1, 2, 2])).tolist() == [0, 0, 2, 0, 0]
    assert cluster.server_ranks(np.array([1, 2])).tolist() == [1, 0]


def test_room_for_amounts_of_memory() -> None:
    cluster = cluster_view(num_servers=2, gpus_per_server=3, free_memory_mb=[1.0, 2.0, 3.0, 3.0, 3.0, 0.0])
    total, best = cluster.room_for(np.array([1_000_000, 2_000_000, 2_000_001, 3_000_001]))
    assert (total.tolist(), best.tolist()) == ([5, 4, 3, 0], [3, 2, 2, 0])


def test_a_cluster_without_some_jobs_has_their_memory() -> None:
    first = job_view(number=1, num_gpus=2, gpu_memory_mb=20.0, servers=(0,), gpus=(0, 1))
    second = job_view(number=2, num_gpus=1, gpu_memory_mb=5.0, servers=(0,), gpus=(1,))
    waits = job_view(number=3)  # holds nothing
    residents = {0: [first], 1: [first, second]}
    cluster = cluster_view(num_servers=1, free_memory_mb=[10.0, 5.0, 30.0, 0.0], residents=residents)
    asks = {mb: job_view(number=4, gpu_memory_mb=mb) for mb in (5.0, 10.0, 25.0, 30.0, 31.0)}
    without = cluster.without([first, waits])
    assert [without.free_memory_mb(gpu) for gpu in range(4)] == [30.0, 25.0, 30.0, 0.0]
    assert [without.num_residents(gpu) for gpu in range(4)] == [0, 1, 0, 0]
    eligible = {mb: (cluster.eligible_gpus(job), without.eligible_gpus(job)) for mb, job in asks.items()}
    assert eligible == {
        5.0: ([0, 1, 2], [0, 1, 2]),
        10.0: ([0, 2], [0, 1, 2]),
        25.0: ([2], [0, 1, 2]),
        30.0: ([2], [0, 2]),
        31.0: ([], []),
    }
    assert without.free(asks[5.0]).tolist() == [0, 2]
    assert without.fits(asks[30.0], 0)
    assert not without.fits(asks[30.0], 1)
    assert cluster.without([first, second]).free_memory_mb(1) == 30.0
    assert [cluster.is_idle, cluster_view().is_idle] == [False, True]
    assert list(jobs_on(cluster, [2, 0, 1])) == [1]
    assert list(jobs_on(cluster, [1, 0])) == [1, 2]
    assert jobs_on(cluster, [2, 3]) == {}


def test_an_exclusive_cluster_without_a_job_has_its_gpus() -> None:
    runs = job_view(number=1, num_gpus=2, gpu_memory_mb=20.0, servers=(0,), gpus=(1, 3))
    cluster = cluster_view(num_servers=1, residents={1: [runs], 3: [runs]}, exclusive=True)
    asks, asks_all, asks_more = (job_view(number=2, gpu_memory_mb=mb) for mb in (1.0, GPU_MB, GPU_MB + 1))
    assert cluster.eligible_gpus(asks) == [0, 2]
    assert [cluster.is_up(gpu) for gpu in range(4)] == [True] * 4
    assert [cluster.free_memory_mb(gpu) for gpu in range(2)] == [GPU_MB, 0.0]
    without = cluster.without([runs])
    assert without.free(asks).tolist() == [0, 1, 2, 3]
    assert without.eligible_gpus(asks_more) == []
    assert [without.num_residents(gpu) for gpu in range(4)] == [0] * 4
    assert cluster.restricted_to(np.array([3, 2])).eligible_gpus(asks) == [2]
    assert [list(cluster.gpus_of(0)), cluster.num_gpus, cluster.num_servers] == [[0, 1, 2, 3], 4, 1]
    assert cluster.eligible_gpus(asks_all) == [0, 2]


def sending(state: TransferState = TransferState.ACTIVE, **fields: float) -> TransferView:
    """Return the transfer of 100 bytes over links 0 and 1, of which 60 were left at 10 ns, seen at 50 ns."""
    records, run = make_records("transfer", 1), make_records("run", 1)
    values = {"bytes": 100.0, "bytes_left": 60.0, "since_ns": 10, "ns_per_byte": 0.5, "rate": 2.0, "state": state}
    for name, value in (values | fields).items():
        setattr(records, name, value)
    run.now_ns = 50
    return TransferView(3, job_view(number=7), (0, 1), Columns(records), 0, Columns(run))


@pytest.mark.parametrize("state", TransferState)
def test_only_a_transfer_that_runs_is_active(state: TransferState) -> None:
    assert sending(state).is_active is (state is TransferState.ACTIVE)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"ns_per_byte": 1.0}, 20.0),  # 40 ns have passed
        ({"ns_per_byte": 0.5}, 0.0),
        ({"ns_per_byte": 1.0, "latency_left_ns": 15}, 35.0),
        ({"ns_per_byte": 1.0, "latency_left_ns": 40}, 60.0),
        ({"ns_per_byte": 1.0, "latency_left_ns": 41}, 60.0),
        ({"ns_per_byte": 1.0, "rate": 0.0}, 60.0),
        ({"ns_per_byte": 2.0, "rate": 0.25}, 40.0),
    ],
)
def test_the_bytes_left_of_a_transfer_are_those_of_this_instant(fields: dict[str, float], left: float) -> None:
    transfer = sending(**fields)
    assert (transfer.bytes_left, transfer.bytes_sent) == (left, 100.0 - left)
    assert repr(transfer) == f"<transfer 3 of job job-7, {left:.0f} bytes left>"


def test_a_transfer_moves_all_its_bytes_over_each_link_unless_told() -> None:
    assert (sending().shares, sending().message_bytes) == ((1.0, 1.0), 100.0)


def mixed(bits: int) -> int:
    """The rounds of a 32-bit hash, with numpy's unsigned numbers, which drop what is beyond."""
    value = np.array([bits], np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x45D9F3B), (16, 1)):
        value = (value ^ (value >> np.uint32(shift))) * np.uint32(factor)
    return int(value[0])


@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (1, 2, 3, 4), (2**40 + 5, 7, 0, 1), (3, 2**32 - 1, 9, 9, 4, 2)])
def test_the_hash_of_a_flow_mixes_all_its_numbers_one_after_the_other(numbers: tuple[int, ...]) -> None:
    seed, *rest = numbers
    expected = seed % 2**32
    for number in rest:
        expected = mixed((expected + number) % 2**32)
    assert hash_of_flow(*numbers) == expected
    job, source, target, *cards = rest
    flow = FlowView(0, job_view(number=job % 1000), source, target, (), 0, tuple(cards))
    assert flow.hash(seed) == hash_of_flow(seed, job % 1000, source, target, *cards)
    assert repr(flow) == f"<flow of job job-{job % 1000} from server {source} to {target}>"


def test_the_gpus_of_each_server_follow_those_of_the_one_before() -> None:
    cluster = cluster_view(num_servers=3, gpus_per_server=2)
    assert [list(cluster.gpus_of(server)) for server in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [cluster.server_of(gpu) for gpu in range(6)] == [0, 0, 1, 1, 2, 2]
    assert (cluster.num_gpus, cluster.num_servers, cluster.exclusive, cluster.is_idle) == (6, 3, False, True)
    assert [cluster.relative_speed(gpu) for gpu in (0, 5)] == [1.0, 1.0]
    assert cluster.kind_of(0) is None


def test_room_is_counted_on_all_servers_and_on_the_best() -> None:
    cluster = cluster_view(num_servers=2, gpus_per_server=3, free_memory_mb=[4.0, 2.0, 8.0, 4.0, 4.0, 4.0])
    everywhere, best = cluster.room_for(np.array([1, 4, 5, 9]) * 10**6)
    assert (everywhere.tolist(), best.tolist()) == ([6, 5, 1, 0], [3, 3, 1, 0])
    job = job_view(gpu_memory_mb=4.0)
    assert cluster.eligible_gpus(job) == [0, 2, 3, 4, 5]
    assert cluster.restricted_to(np.array([1, 2, 5])).eligible_gpus(job) == [2, 5]


@pytest.mark.parametrize(("exclusive", "free"), [(False, [0, 2]), (True, [0, 2])])
def test_free_gpus_have_no_job(exclusive: bool, free: list[int]) -> None:
    residents = {1: [job_view(number=1)], 3: [job_view(number=2)]}
    cluster = cluster_view(num_servers=2, gpus_per_server=2, residents=residents, exclusive=exclusive)
    assert cluster.free(job_view()).tolist() == free
    assert not cluster.is_idle


@view
class OwnView(View):
    """A view of two numbers."""

    one: int
    other: int = 2


def test_views_are_told_apart_by_what_they_are_and_shown_without_their_parts() -> None:
    first, second = OwnView(1), OwnView(1)
    assert first != second
    assert "one" not in repr(first)
    assert not hasattr(first, "__dict__")
    with pytest.raises(AttributeError, match="one of a view cannot be set"):
        first.one = 2


@pytest.mark.parametrize(
    ("lending", "kept"), [(None, {}), (0, {"any": 4}), (3, {"any": 1}), (4, {"any": 0}), (9, {"any": 0})]
)
def test_a_queue_keeps_what_it_does_not_lend(lending: int | None, kept: dict[str, int]) -> None:
    quota = Quota(gpus=4, lending_limit=lending)
    above, below = (
        Queue(name="above", quotas={"any": Quota(gpus=1)}),
        Queue(name="q", parent="above", quotas={"any": quota}),
    )
    tree = QuotaTree(Tenants(queues=(above, below)))
    assert tree["q"].kept == kept
    assert tree["above"].quota == {"any": 1 + 4 - kept.get("any", 0)}
