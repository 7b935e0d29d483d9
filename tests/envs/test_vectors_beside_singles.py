"""Many runs whose jobs are started from outside: as single environments, and as ``simulate`` with the same starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tiers import tried

from algorithms.placement.first_fit import FirstFit
from ddlsched import Cluster, DataParallelIteration, Disturbances, Job, Server, Workload, simulate
from ddlsched.engine import build
from ddlsched.engine.field_values import Question
from ddlsched.engine.loop.batch.starts import room_of
from ddlsched.engine.records import example_state, make_records
from ddlsched.envs import (
    AllocationEnv,
    AllocationVectorEnv,
    OrderEnv,
    OrderVectorEnv,
    PlacementEnv,
    PlacementVectorEnv,
    vector_envs,
)
from ddlsched.envs.vector_envs import MOST_KEYS, NO_ORDER
from ddlsched.errors import InputError
from ddlsched.policies.cluster_view import is_gpu_order
from ddlsched.policies.views import ClusterView, GpuId, JobView
from ddlsched.results.result import Result
from ddlsched.workload.dag import ComputeTask, IterationDag
from ddlsched.workload.workload_files import workload_of

STREAM = "stream:load=1.3,num_jobs=25,scale=0.01"
EXCLUSIVE = Cluster(num_servers=8, exclusive=True)
SHARED = Cluster(num_servers=8)
UNEVEN = Cluster(
    servers=tuple(Server(gpus=count, relative_speed=1 + count / 8) for count in (4, 2, 3, 8, 1, 6, 8)), exclusive=True
)
LEAFS = Cluster(num_servers=8, topology="leaf-spine:servers_per_leaf=2,spines=2")
ELASTIC = "elastic-mix:hours=0.2"
SMALL = Cluster(num_servers=4)
FAILING = Disturbances(server_mtbf_s=2e5, server_repair_s=600.0)
NUM_ENVS = 2


def durations(count: int = 60, scale: float = 1.0) -> Workload:
    """Return jobs of one task each, without communication."""
    rng = np.random.default_rng(3)
    arrivals_s = np.cumsum(rng.exponential(20.0, count))
    jobs = []
    for number, arrival_s in enumerate(arrivals_s.tolist()):
        run = IterationDag((ComputeTask(name="run", duration_ns=int(scale * 1e9 * rng.lognormal(5, 1))),))
        gpus = int(rng.choice([1, 2, 4, 6]))
        jobs.append(
            Job(
                job_id=f"j{number}",
                arrival_s=arrival_s,
                num_gpus=gpus,
                iterations=1,
                iteration=run,
                gpu_memory_mb=float(rng.choice([1000.0, 6000.0])),
            )
        )
    return Workload.of(jobs)


GIVEN = durations()
IN_BUCKETS = Workload.of(
    replace(
        job,
        iterations=50,
        iteration=DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=1e8, buckets=1 + number % 3),
    )
    for number, job in enumerate(GIVEN)
)
CENTURIES = durations(30, scale=1e6)
"""Whose loads, added up for a server, are beyond what compiled code compares."""


class LastFit:
    """A placement in Python, which lets jobs of 4 GPUs wait while less than 8 are free."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        gpus = cluster.eligible_gpus(job)
        if job.num_gpus == 4 and len(gpus) < 8 and not cluster.is_idle:
            return None
        return gpus[::-1][: job.num_gpus]


class FromTheBack(FirstFit):
    """A subclass with a ``place`` of its own."""

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        gpus = cluster.eligible_gpus(job)
        return gpus[-job.num_gpus :] if len(gpus) >= job.num_gpus else None


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any, dict[str, Any]]] = {
    "placement": (PlacementEnv, PlacementVectorEnv, STREAM, {"cluster": EXCLUSIVE}),
    "placement of given jobs": (PlacementEnv, PlacementVectorEnv, GIVEN, {"cluster": EXCLUSIVE}),
    "placement on shared GPUs": (PlacementEnv, PlacementVectorEnv, STREAM, {"cluster": SHARED}),
    "placement of given jobs on shared GPUs": (PlacementEnv, PlacementVectorEnv, GIVEN, {"cluster": SHARED}),
    "placement on uneven servers": (PlacementEnv, PlacementVectorEnv, STREAM, {"cluster": UNEVEN}),
    "placement on leafs": (
        PlacementEnv,
        PlacementVectorEnv,
        STREAM,
        {"cluster": LEAFS, "settings": {"order": "fifo", "contention": "max-min", "path": "ecmp"}},
    ),
    "placement with predicted lengths": (
        PlacementEnv,
        PlacementVectorEnv,
        STREAM,
        {"cluster": SHARED, "settings": {"disturbances": Disturbances(prediction_error=0.5, jitter_cv=0.1)}},
    ),
    "placement beside a policy in Python": (
        PlacementEnv,
        PlacementVectorEnv,
        STREAM,
        {"cluster": SHARED, "settings": {"communication": "cassini"}},
    ),
    "order": (OrderEnv, OrderVectorEnv, STREAM, {"cluster": EXCLUSIVE, "slots": 5}),
    "order of given jobs": (OrderEnv, OrderVectorEnv, GIVEN, {"cluster": EXCLUSIVE}),
    "order on shared GPUs": (OrderEnv, OrderVectorEnv, STREAM, {"cluster": SHARED, "placement": "lwf:kappa=2"}),
    "order on uneven servers": (OrderEnv, OrderVectorEnv, STREAM, {"cluster": UNEVEN, "placement": "lwf:kappa=0"}),
    "order of jobs of centuries": (
        OrderEnv,
        OrderVectorEnv,
        CENTURIES,
        {"cluster": replace(UNEVEN, exclusive=False), "placement": "lwf:kappa=0"},
    ),
    "order with first-fit": (OrderEnv, OrderVectorEnv, GIVEN, {"cluster": SHARED, "placement": "first-fit"}),
    "order with a placement in Python": (
        OrderEnv,
        OrderVectorEnv,
        GIVEN,
        {"cluster": EXCLUSIVE, "placement": LastFit(), "slots": 4},
    ),
    "order with a random placement": (
        OrderEnv,
        OrderVectorEnv,
        GIVEN,
        {"cluster": SHARED, "placement": "random", "settings": {"order": "las"}},
    ),
    "allocation": (AllocationEnv, AllocationVectorEnv, ELASTIC, {"cluster": SMALL}),
    "allocation of given jobs": (
        AllocationEnv,
        AllocationVectorEnv,
        workload_of(ELASTIC, 3),
        {"cluster": SMALL, "settings": {"rescale_cost": "restart_s=30"}},
    ),
    "allocation with servers that fail": (
        AllocationEnv,
        AllocationVectorEnv,
        ELASTIC,
        {"cluster": SMALL, "settings": {"disturbances": FAILING, "rescale_cost": "up_s=18,down_s=12"}},
    ),
    "order with another place": (
        OrderEnv,
        OrderVectorEnv,
        STREAM,
        {"cluster": SHARED, "placement": FromTheBack()},
    ),
}


def outcome(result: Result) -> Any:
    """Return what must be the same to the bit."""
    stays = [(stay.job, stay.gpus, stay.from_ns, stay.to_ns, stay.links_of) for stay in result.finished.stays]
    stays.append(result.finished.rescales)
    return result.jobs.to_csv(), result.gpus.to_csv(), result.links.to_csv(), sorted(stays, key=str)


@pytest.mark.long
@pytest.mark.parametrize("case", tried(CASES, lambda place: place % 3 == 0))
def test_all_is_as_in_single_environments(case: str) -> None:
    """Through the ends of episodes, at which both begin anew at the next step."""
    single, vectors, jobs, arguments = CASES[case]
    vector = vectors(NUM_ENVS, jobs, **arguments)
    singles = [single(jobs, **arguments) for _ in range(NUM_ENVS)]
    seen, infos = vector.reset(seed=5)
    expected = [env.reset(seed=5 + number) for number, env in enumerate(singles)]
    ended, num_ended, rng = [False] * NUM_ENVS, 0, np.random.default_rng(1)
    while num_ended < 2 * NUM_ENVS + 1:
        assert vector.observation_space.contains(seen)
        for number, (observation, info) in enumerate(expected):
            assert infos["now_s"][number] == pytest.approx(info["now_s"], rel=1e-12)
            if not ended[number]:
                for name in observation:
                    np.testing.assert_allclose(seen[name][number], observation[name], 5e-7, 5e-8, err_msg=name)
        actions = rng.integers(0, vector.single_action_space.n, NUM_ENVS)
        seen, rewards, terminated, truncated, infos = vector.step(actions)
        for number, env in enumerate(singles):
            reward, replaced = 0.0, False
            if ended[number]:
                expected[number], ended[number] = env.reset(), False
            else:
                observation, reward, ended[number], _, info = env.step(int(actions[number]))
                expected[number], replaced = (observation, info), info["replaced"]
            assert infos["replaced"][number] == replaced
            assert rewards[number] == pytest.approx(reward, rel=1e-6, abs=1e-12)
            if ended[number]:
                num_ended += 1
                assert infos["average_jct_s"][number] == info["average_jct_s"]
                if num_ended % 2:
                    assert outcome(vector.result(number)) == outcome(env.result)
        assert terminated.tolist() == ended
        assert not truncated.any()
    vector.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("placement", "jobs"),
    [("lwf", GIVEN), ("first-fit", GIVEN), ("lwf:kappa=3", GIVEN), ("lwf:kappa=0", IN_BUCKETS)],
    ids=["lwf", "first-fit", "lwf:kappa=3", "jobs of several transfers"],
)
def test_the_first_of_the_queue_each_time_is_what_simulate_does(placement: str, jobs: Workload) -> None:
    """Whoever is first and has room starts: as a run without decisions."""
    arguments: dict[str, Any] = {"cluster": SHARED, "settings": {"order": "srsf"}}
    vector = OrderVectorEnv(2, jobs, placement=placement, slots=len(jobs), **arguments)
    seen, _ = vector.reset(seed=1)
    ended = np.zeros(2, bool)
    while not ended.all():
        seen, _, ended, _, _ = vector.step(seen["action_mask"].argmax(axis=1))
    unasked = simulate(jobs, SHARED, placement=placement, order="srsf", seed=1)
    assert [outcome(vector.result(number)) for number in (0, 1)] == [outcome(unasked)] * 2


@pytest.mark.long
def test_given_jobs_begin_again_as_they_did_first() -> None:
    """The second and third episode of a place are the first to the bit, also after a result was asked for."""
    vector = PlacementVectorEnv(1, GIVEN, cluster=SHARED)
    seen, _ = vector.reset(seed=1)
    episodes: list[list[Any]] = [[]]
    while len(episodes) < 4:
        seen, reward, ended, _, infos = vector.step(seen["action_mask"].argmax(axis=1))
        episodes[-1].append((seen["servers"].tobytes(), float(reward[0]), float(infos["now_s"][0])))
        if ended[0]:
            if len(episodes) == 2:
                vector.result(0)
            episodes.append([])
            seen, *_ = vector.step(np.zeros(1, int))
    assert episodes[0] == episodes[1] == episodes[2]


@pytest.mark.long
def test_more_jobs_on_a_gpu_than_its_list_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FIRST_RESIDENTS", 1)
    env, vector = PlacementEnv(GIVEN, cluster=SHARED), PlacementVectorEnv(2, GIVEN, cluster=SHARED)
    observation, _ = env.reset(seed=1)
    vector.reset(seed=1)
    ended = False
    while not ended:
        action = int(observation["action_mask"].argmax())
        observation, _, ended, _, _ = env.step(action)
        _, _, together, _, _ = vector.step(np.full(2, action))
    assert together.all()
    assert [outcome(vector.result(number)) for number in (0, 1)] == [outcome(env.result)] * 2


@pytest.mark.long
def test_the_spaces_are_those_of_the_single_environment() -> None:
    for single, vectors, jobs, arguments in CASES.values():
        vector, env = vectors(2, jobs, **arguments), single(jobs, **arguments)
        assert vector.single_observation_space == env.observation_space
        assert vector.single_action_space == env.action_space
        assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_only_an_order_of_gpus_is_taken_for_one() -> None:
    assert is_gpu_order(FirstFit())
    assert not is_gpu_order(FromTheBack())
    assert not is_gpu_order(LastFit())


def alone() -> Workload:
    """Return one job."""
    iteration = DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=1e6)
    job = Job(job_id="a", arrival_s=0.0, num_gpus=64, iterations=1, iteration=iteration, gpu_memory_mb=1.0)
    return Workload.of([job])


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlacementVectorEnv(0, STREAM), "num_envs is 0"),
        (lambda: PlacementVectorEnv(2, STREAM).step(np.zeros(2)), "expected reset"),
        (lambda: OrderVectorEnv(2, STREAM).reset(seed=[1]), "seed has 1 numbers"),
        (lambda: OrderVectorEnv(2, alone()).reset(), "no decision to take"),
        (lambda: OrderVectorEnv(2, STREAM, placement="delay").reset(), "asks to be woken"),
        (lambda: PlacementVectorEnv(2, STREAM, settings={"order": "stopping-srtf"}).reset(), "stopped or moved"),
        (
            lambda: PlacementVectorEnv(2, STREAM, settings={"disturbances": FAILING}).reset(),
            "servers come and go",
        ),
        (lambda: PlacementVectorEnv(2, STREAM, settings={"timeline": True}).reset(), "the run is recorded"),
        (lambda: run_of_one().result(0), "is under way"),
        (lambda: run_of_one().step(np.array([17])), "expected a whole number from 0 to 16 for each of 1 runs"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def run_of_one() -> OrderVectorEnv:
    vector = OrderVectorEnv(1, GIVEN, cluster=EXCLUSIVE)
    vector.reset(seed=1)
    return vector


@pytest.mark.long
@pytest.mark.parametrize("topology", ["rail-optimised:rails=2,nvlink_gbps=3600,rail_gbps=20", "star:nvlink_gbps=5"])
def test_jobs_on_servers_whose_inside_takes_time_start_as_in_simulate(topology: str) -> None:
    """Not as plain rings over their servers: Python plans what they send."""
    cluster = Cluster(num_servers=4, topology=topology)
    jobs = workload_of("stream:load=1.0,num_jobs=12,scale=0.01", 2)
    vector = OrderVectorEnv(2, jobs, cluster=cluster, slots=len(jobs), settings={"order": "fifo"})
    seen, _ = vector.reset(seed=1)
    ended = np.zeros(2, bool)
    while not ended.all():
        seen, _, ended, _, _ = vector.step(seen["action_mask"].argmax(axis=1))
    unasked = simulate(jobs, cluster, order="fifo", seed=1)
    assert [outcome(vector.result(number)) for number in (0, 1)] == [outcome(unasked)] * 2


def test_a_gpu_has_room_for_a_job_that_needs_all_that_is_free() -> None:
    gpus, jobs = make_records("gpu", 4), make_records("job", 1)
    gpus.free_bytes, jobs.memory_bytes = [7, 6, 7, 7], 7
    find_room = getattr(room_of, "py_func", room_of)
    assert find_room(example_state()._replace(gpus=gpus), jobs[0], [0, 3, 4]) == (3, 2)


def test_a_placement_orders_the_gpus_of_jobs_of_up_to_all_of_them() -> None:
    assert (vector_envs._orders(SimpleNamespace(), 4) == [[NO_ORDER] + [0] * (MOST_KEYS - 1)] * 5).all()


@pytest.mark.parametrize("num_jobs", [1, 3])
def test_what_is_known_of_elastic_jobs_has_arrays_of_its_own(num_jobs: int) -> None:
    vector: Any = SimpleNamespace(
        num_envs=2,
        _mask=np.ones((2, 3), np.int8),
        _observed_arrays=lambda: {name: np.zeros(2) for name in ("job", "cluster")},
    )
    vector._arrays = AllocationVectorEnv._new_arrays(vector, None)  # type: ignore[arg-type]
    AllocationVectorEnv._make_room(vector, num_jobs)
    vector._arrays.least[1, 0] = 5
    AllocationVectorEnv._make_room(vector, num_jobs)
    AllocationVectorEnv._make_room(vector, num_jobs + 1)
    assert vector._arrays.least.tolist() == [[0] * (num_jobs + 1), [5] + [0] * num_jobs]
    assert vector._arrays.most.tolist() == [[0] * (num_jobs + 1)] * 2


def test_item_27_a_round_of_sizes_is_closed_once_and_the_next_question_opens_another() -> None:
    run: dict[str, Any] = {"question": Question.ALLOCATION, "in_round": 0}
    called: list[str] = []
    outside = SimpleNamespace(
        open_round=lambda: called.append("open") or ([], [], [], 0), close_round=lambda _: called.append("close")
    )
    arrays = SimpleNamespace(**dict.fromkeys(("there", "held", "hold_until_ns", "given"), np.zeros((1, 0), np.int64)))
    vector: Any = SimpleNamespace(_runs=[run], _arrays=arrays)
    assert all(AllocationVectorEnv._answers(vector, 0, outside) for _ in range(3))  # type: ignore[arg-type]
    assert called == ["open", "close", "open"]


@pytest.mark.parametrize(
    ("question", "gpus", "placed", "started"),
    [
        (Question.PLACEMENT, [2, 3, 9], None, [(5, [2, 3])]),
        (Question.PLACEMENT, [-1, 3, 9], [7, 8], [(5, [7, 8])]),
        (Question.PLACEMENT, [-1, 3, 9], None, []),
        (Question.KEYS, [2, 3, 9], None, None),
    ],
)
def test_a_job_starts_where_compiled_code_puts_it_or_else_the_placement(
    question: Question, gpus: list[int], placed: list[int] | None, started: list[tuple[int, list[int]]] | None
) -> None:
    """Job 5 stands second in the order; None: the question is for others."""
    run, begun = {"question": question, "job": 1, "num_started": 0}, list[tuple[int, list[int]]]()
    outside: Any = SimpleNamespace(
        num_gpus=lambda _: 2, place=lambda _: placed, start=lambda job, chosen: begun.append((job, chosen))
    )
    arrays = SimpleNamespace(seen=np.array([[4, 5]]), gpus=np.array([gpus]))
    vector: Any = SimpleNamespace(_runs=[run], _arrays=arrays)
    assert OrderVectorEnv._answers(vector, 0, outside) is (started is not None)
    assert begun == (started or [])
    assert run["num_started"] == len(begun)
