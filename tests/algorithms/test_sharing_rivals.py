"""Muri, Lucid and Arnold: groups, pairs and pods worked out by hand."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.placement.arnold import Arnold, pods_of_servers
from algorithms.placement.lucid import Lucid
from algorithms.placement.muri import Muri, efficiency, grouped, period_s
from algorithms.solving import Solver
from ddlsched.errors import InputError
from ddlsched.testing import cluster_view, job_queue, job_view
from ddlsched.workload.groups import Groups

ONE_SERVER = ddlsched.Cluster(num_servers=1, gpus_per_server=4)


def begun(policy: Any, cluster: ddlsched.Cluster = ONE_SERVER) -> Any:
    return policy.begin(cluster, np.random.default_rng(0))


# --- Muri


def test_jobs_that_complement_each_other_hide_each_other() -> None:
    """(3, 1) and (1, 3): 3 s of one beside 3 s of the other, then 1 beside 1: 4 s. (3, 1) twice: 3 + 3 s."""
    assert period_s([(3, 1), (1, 3)]) == 4
    assert period_s([(3, 1), (3, 1)]) == 6
    assert period_s([(3, 1)]) == 4
    assert efficiency([(3, 1), (1, 3)]) == 1.0
    assert efficiency([(3, 1), (3, 1)]) == pytest.approx(8 / 12)


def test_the_best_order_of_four_resources_is_taken() -> None:
    """By the paper's formula, over all orders: T is the least sum of each stage's longest."""
    times = [(1, 2, 3, 4), (4, 1, 2, 3), (3, 3, 1, 1)]
    by_hand = min(
        sum(max(times[j][(i - place) % 4] for place, j in enumerate(order)) for i in range(4))
        for order in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    )
    assert period_s(times) == by_hand


def test_the_matching_pairs_those_that_complement() -> None:
    """Two of compute, two of network, on 2 GPUs: each pair is one of both, though they are not neighbours."""
    times = [(3.0, 1.0), (3.0, 1.0), (1.0, 3.0), (1.0, 3.0)]
    groups = grouped(times, [1, 1, 1, 1], free=2)
    assert len(groups) == 2
    assert all({times[j] for j in group} == {(3.0, 1.0), (1.0, 3.0)} for group in groups)


def test_jobs_do_not_share_while_there_is_room() -> None:
    assert grouped([(1.0, 1.0)] * 3, [1, 1, 1], free=3) == [(0,), (1,), (2,)]
    assert len(grouped([(1.0, 1.0)] * 3, [1, 1, 1], free=2)) == 2


def test_only_jobs_of_equally_many_gpus_are_grouped() -> None:
    assert grouped([(1.0, 1.0)] * 2, [1, 2], free=2) == [(0,), (1,)]


def test_a_group_as_slow_as_its_jobs_in_turn_is_taken_apart() -> None:
    assert grouped([(2.0, 0.0), (2.0, 0.0)], [1, 1], free=1) == [(0,), (1,)]


def test_a_group_holds_at_most_so_many() -> None:
    groups = grouped([(1.0, 1.0)] * 8, [1] * 8, free=1, most=2)
    assert max(map(len, groups)) == 2


def test_grouped_jobs_start_on_the_same_gpus() -> None:
    compute = job_view(number=0, num_gpus=8, compute_s=0.3, message_bytes=0.1 * 1.25e9)
    network = job_view(number=1, num_gpus=8, compute_s=0.1, message_bytes=0.3 * 1.25e9)
    starts = list(begun(Muri()).place_round(job_queue(compute, network), cluster_view(num_servers=2)))
    assert [(job.number, sorted(gpus)) for job, gpus in starts] == [(0, list(range(8))), (1, list(range(8)))]


def test_what_memory_does_not_hold_waits() -> None:
    jobs = [
        job_view(number=n, num_gpus=8, compute_s=c, message_bytes=m * 1.25e9, gpu_memory_mb=20000)
        for n, (c, m) in enumerate([(0.3, 0.1), (0.1, 0.3)])
    ]
    starts = list(begun(Muri()).place_round(job_queue(*jobs), cluster_view(num_servers=2)))
    assert [job.number for job, _ in starts] == [0]


def two_stages(job_id: str, compute_s: float, message_bytes: float) -> ddlsched.Job:
    compute = ddlsched.ComputeTask(name="compute", duration_ns=round(compute_s * 1e9))
    reduce = ddlsched.AllReduceTask(name="all-reduce", message_bytes=message_bytes, after=("compute",))
    iteration = ddlsched.IterationDag((compute, reduce))
    return ddlsched.Job(job_id=job_id, arrival_s=0.0, num_gpus=2, iterations=20, iteration=iteration, gpu_memory_mb=1.0)


def test_interleaving_in_a_run() -> None:
    """4 s an iteration each: one after the other 160 s. Interleaved, b begins its 20 at 3 s and never waits."""
    jobs = [two_stages("a", 3.0, 1e9), two_stages("b", 1.0, 3e9)]
    given: dict[str, Any] = {"order": "fifo", "contention": "max-min:per_byte_s=1e-9"}
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=1)
    together = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, placement="muri", **given)
    apart = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, placement="first-fit", exclusive=True, **given)
    assert apart.jobs["finish_s"].tolist() == pytest.approx([80.0, 160.0])
    assert together.jobs["finish_s"].tolist() == pytest.approx([80.0, 83.0])


# --- Lucid


def pair(number: int, **given: Any) -> Any:
    return job_view(**{"number": number, "num_gpus": 2, "compute_s": 0.1} | given)


def test_a_small_job_joins_a_small_one_and_a_large_one_does_not() -> None:
    lucid = begun(Lucid(scores="tiny=0+jumbo=2+medium=1", few_arrivals=-1))
    for model, other, joins in product(["tiny", "medium", "jumbo"], ["tiny", "medium", "jumbo"], [None]):
        running = pair(0, model=other, gpus=(0, 1), servers=(0,))
        view = cluster_view(num_servers=1, residents={0: [running], 1: [running]})
        ((_, gpus),) = lucid.place_round(job_queue(pair(1, model=model)), view)
        joins = {"tiny": 0, "medium": 1, "jumbo": 2}[model] + {"tiny": 0, "medium": 1, "jumbo": 2}[other] <= 2
        assert (tuple(gpus) == (0, 1)) == joins, (model, other)


def test_nobody_joins_one_that_ends_much_sooner_or_is_shared() -> None:
    lucid = begun(Lucid(scores="m=0", few_arrivals=-1))
    soon = pair(0, model="m", gpus=(0, 1), servers=(0,), iterations_left=49)
    view = cluster_view(num_servers=1, residents={0: [soon], 1: [soon]})
    assert [list(gpus) for _, gpus in lucid.place_round(job_queue(pair(2, model="m")), view)] == [[2, 3]]
    later = pair(0, model="m", gpus=(0, 1), servers=(0,), iterations_left=50)
    view = cluster_view(num_servers=1, residents={0: [later], 1: [later]})
    assert [tuple(gpus) for _, gpus in lucid.place_round(job_queue(pair(2, model="m")), view)] == [(0, 1)]
    other = pair(1, model="m", gpus=(0, 1), servers=(0,))
    view = cluster_view(num_servers=1, residents={0: [later, other], 1: [later, other]})
    assert [list(gpus) for _, gpus in lucid.place_round(job_queue(pair(2, model="m")), view)] == [[2, 3]]


def test_with_few_arrivals_nobody_shares_and_the_first_blocks() -> None:
    """Two jobs in 100 s are few; a third one lets all of them share again, and skips the one that does not fit."""
    running = pair(9, model="m", gpus=(0, 1), servers=(0,))
    view = cluster_view(num_servers=1, residents={0: [running], 1: [running]}, free_memory_mb=32768.0)
    wide, small, more = (pair(n, num_gpus=gpus, model="m") for n, gpus in enumerate([4, 2, 2]))
    lucid = begun(Lucid(scores="m=0"))
    assert list(lucid.place_round(job_queue(wide, small), view)) == []
    started = list(lucid.place_round(job_queue(wide, small, more), view))
    assert [(job.number, list(gpus)) for job, gpus in started[:1]] == [(1, [0, 1])]


def test_a_large_job_gets_whole_servers() -> None:
    lucid, held = begun(Lucid()), pair(9, num_gpus=1, gpus=(0,), servers=(0,))
    view = cluster_view(num_servers=3, residents={0: [held]})
    assert [gpus for _, gpus in lucid.place_round(job_queue(pair(0, num_gpus=6)), view)] == [[4, 5, 6, 7, 8, 9]]


def test_a_model_without_a_score_is_told() -> None:
    jobs = [data_parallel_job(name, 4, forward_s=1.0, iterations=9, model="bert") for name in ("a", "b")]
    with pytest.raises(InputError, match=r"Lucid.* at 0.0 s.*job 'b': scores has none of its model 'bert'"):
        ddlsched.simulate(
            ddlsched.Workload.of(jobs), ONE_SERVER, placement="lucid:scores=resnet=0,few_arrivals=-1", order="srsf"
        )


# --- Arnold


def spreads(pods: list[int], groups: tuple[list[set[int]], list[set[int]]]) -> tuple[int, int]:
    rows, columns = ([len({pods[server] for server in members}) for members in of_kind] for of_kind in groups)
    return max(rows, default=0), max(columns, default=0)


MATRIX: tuple[list[set[int]], list[set[int]]] = ([{0, 1}, {2, 3}], [{0, 2}, {1, 3}])


@pytest.mark.parametrize(("alpha", "expected"), [(0.9, (1, 2)), (0.1, (2, 1))])
def test_the_weightier_groups_stay_in_a_pod(alpha: float, expected: tuple[int, int]) -> None:
    """2 x 2 servers on pods with room for two each: either rows or columns can be whole."""
    pods = pods_of_servers(MATRIX, 4, [2, 2], alpha, Solver("arnold", 10.0))
    assert pods is not None
    assert spreads(pods, MATRIX) == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_is_the_best_of_all_placements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    room, alpha = rng.integers(1, 4, 3).tolist(), float(rng.uniform(0.1, 0.9))
    room[0] += max(4 - sum(room), 0)

    def price(pods: tuple[int, ...]) -> float:
        data, pipeline = spreads(list(pods), MATRIX)
        return alpha * data + (1 - alpha) * pipeline

    found = pods_of_servers(MATRIX, 4, room, alpha, Solver("arnold", 10.0))
    assert found is not None
    every = [pods for pods in product(range(3), repeat=4) if all(pods.count(pod) <= room[pod] for pod in range(3))]
    assert tuple(found) in every
    assert price(tuple(found)) == pytest.approx(min(map(price, every)))


def test_a_job_goes_into_one_pod_that_has_room() -> None:
    """Pods of two servers of four GPUs; server 0 is in use, so that two whole servers of one pod are 2 and 3."""
    arnold = begun(Arnold(servers_per_pod=2))
    view = cluster_view(residents={0: [pair(9, num_gpus=1, gpus=(0,), servers=(0,))]})
    assert arnold.place(job_view(num_gpus=8), view) == list(range(8, 16))
    assert arnold.place(job_view(num_gpus=2), view) == [1, 2]
    assert arnold.place(job_view(num_gpus=16), view) is None


@pytest.mark.long
def test_groups_are_read_from_the_job() -> None:
    """8 workers, 2 a server: pipelines of workers {0, 4}, ... are servers {0, 2} and {1, 3}, and stay in their pods."""
    groups: Groups = {
        "data": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "pipeline": ((0, 4), (1, 5), (2, 6), (3, 7)),
    }
    tasks = (
        ddlsched.ComputeTask(name="compute", duration_ns=10),
        ddlsched.CollectiveTask(name="data", kind="all-reduce", message_bytes=1.0, after=("compute",), group="data"),
        ddlsched.CollectiveTask(name="send", kind="send", message_bytes=1.0, after=("compute",), group="pipeline"),
    )
    job = ddlsched.Job(
        job_id="a",
        arrival_s=0.0,
        num_gpus=8,
        iterations=1,
        iteration=ddlsched.IterationDag(tasks, groups),
        gpu_memory_mb=1.0,
    )
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=2)
    given: dict[str, Any] = {"order": "fifo", "contention": "max-min"}
    by_pipeline = ddlsched.simulate(
        ddlsched.Workload.of([job]), cluster, placement="arnold:servers_per_pod=2,alpha=0.1", **given
    )
    (stay,) = by_pipeline.finished.stays
    pods = [gpu // 4 for gpu in stay.gpus]
    assert all(pods[first] == pods[second] for first, second in groups["pipeline"])


@pytest.mark.parametrize(
    ("policy", "given", "said"),
    [
        (Muri, {"most": 5}, "muri: most is 5; expected a whole number from 1 to 4"),
        (Muri, {"rounds": -1}, "muri: rounds is -1; expected a whole number from 0"),
        (Lucid, {"scores": "bert"}, "lucid: scores has 'bert'; expected model=0, 1 or 2"),
        (Lucid, {"scores": "bert=3"}, "lucid: scores has 'bert=3'; expected model=0, 1 or 2"),
        (Lucid, {"tiny": 0.8}, "lucid: tiny is 0.8 and medium 0.7; expected 0 <= tiny <= medium <= 1"),
        (Lucid, {"few_arrivals": -2}, "lucid: few_arrivals is -2; expected a whole number from -1"),
        (Lucid, {"window_s": 0.0}, "lucid: window_s is 0.0; expected seconds > 0"),
        (Arnold, {"servers_per_pod": 0}, "arnold: servers_per_pod is 0; expected a whole number from 1"),
        (Arnold, {"alpha": 1.5}, "arnold: alpha is 1.5; expected a number from 0 to 1"),
        (Arnold, {"time_limit_s": 0.0}, "arnold: time_limit_s is 0.0; expected seconds > 0"),
    ],
)
def test_bad_parameters_are_refused(policy: Any, given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy(**given)


@pytest.mark.parametrize(("policy", "name"), [(Muri(), "muri"), (Lucid(), "lucid")])
def test_sharing_needs_a_cluster_that_lets_jobs_share(policy: Any, name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: the cluster is exclusive"):
        begun(policy, ddlsched.Cluster(exclusive=True))
