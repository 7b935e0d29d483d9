"""The environments: Gymnasium's contract, seeds, masks, and that what they simulate is what ``simulate`` does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ddlsched import Cluster, DataParallelIteration, Job, Workload, errors, simulate
from ddlsched.envs import AllocationEnv, CommunicationEnv, OrderEnv, PlacementEnv, SchedulingEnv, single_envs
from ddlsched.errors import InputError

STREAM = "stream:load=0.9,num_jobs=30,scale=0.01"
EXCLUSIVE = Cluster(exclusive=True)
MAKERS: dict[str, Callable[[], SchedulingEnv]] = {
    "order": lambda: OrderEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "srsf"}, slots=8),
    "placement": lambda: PlacementEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "srsf"}),
    "communication": lambda: CommunicationEnv("microsoft-160:scale=0.002", settings={"order": "srsf"}),
    "allocation": lambda: AllocationEnv("elastic-mix:hours=0.2", cluster=Cluster(num_servers=4)),
}


def alone(num_gpus: int = 1) -> Workload:
    """Return one job."""
    iteration = DataParallelIteration(forward_s=1.0, backward_s=1.0, message_bytes=1e6)
    job = Job(job_id="a", arrival_s=0.0, num_gpus=num_gpus, iterations=1, iteration=iteration, gpu_memory_mb=1.0)
    return Workload.of([job])


@pytest.fixture(params=MAKERS)
def env(request: pytest.FixtureRequest) -> Iterator[SchedulingEnv]:
    made = MAKERS[request.param]()
    yield made
    made.close()


def first_allowed(observation: dict[str, Any]) -> int:
    return int(np.argmax(observation["action_mask"]))


def last_allowed(observation: dict[str, Any]) -> int:
    return int(np.flatnonzero(observation["action_mask"])[-1])


def episode(
    env: gymnasium.Env[Any, Any], choose: Callable[[dict[str, Any]], int], **reset: Any
) -> list[tuple[dict[str, Any], float, dict[str, Any]]]:
    """Return observation, reward and info of all steps."""
    observation, _ = env.reset(**reset)
    found, ended = [], False
    while not ended:
        observation, reward, ended, _, info = env.step(choose(observation))
        found.append((observation, reward, info))
    return found


@pytest.mark.long
def test_gymnasium_finds_nothing_to_complain_of(env: SchedulingEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def test_item_3_what_an_environment_remembers_of_a_run_is_no_leak(
    env: SchedulingEnv, capsys: pytest.CaptureFixture[str]
) -> None:
    errors.say_once.cache_clear()  # what other tests were told
    episode(env, last_allowed, seed=3)
    assert "changed during the run" not in capsys.readouterr().err


def test_item_20_a_reward_of_1_is_the_mean_time_for_which_a_job_computes() -> None:
    short = alone()[0]
    jobs = Workload.of([short, replace(short, job_id="b", iterations=5)])
    assert OrderEnv(jobs).unit_s == (2 + 10) / 2
    assert OrderEnv(jobs, unit_s=60.0).unit_s == 60.0


def test_item_20_an_episode_returns_at_most_hundreds_whatever_the_jobs(env: SchedulingEnv) -> None:
    returned = sum(reward for _, reward, _ in episode(env, first_allowed, seed=3))
    assert -1000 < returned < -0.1


@pytest.mark.parametrize("choose", [first_allowed, last_allowed])
def test_the_return_is_minus_the_average_jct(env: SchedulingEnv, choose: Callable[[dict[str, Any]], int]) -> None:
    """Whatever is chosen, also to wait whenever that is allowed, all jobs end."""
    steps = episode(env, choose, seed=3)
    assert env.result is not None
    average_jct_s = env.result.summary()["average_jct_s"]
    assert sum(reward for _, reward, _ in steps) == pytest.approx(-average_jct_s / env.unit_s, rel=1e-9)
    assert steps[-1][2]["average_jct_s"] == pytest.approx(average_jct_s)
    assert env.result.summary()["unfinished_jobs"] == 0


@pytest.mark.long
def test_a_seed_repeats_an_episode_to_the_bit(env: SchedulingEnv) -> None:
    def drawn(seed: int) -> list[bytes]:
        rng = np.random.default_rng(5)
        steps = episode(env, lambda seen: int(rng.choice(np.flatnonzero(seen["action_mask"]))), seed=seed)
        return [b"".join(np.asarray(part).tobytes() for part in (*seen.values(), reward)) for seen, reward, _ in steps]

    first = drawn(7)
    assert drawn(7) == first
    assert drawn(8) != first


def test_what_is_observed_lies_in_its_space_and_something_is_always_allowed(env: SchedulingEnv) -> None:
    for observation, _, _ in episode(env, last_allowed, seed=2):
        assert env.observation_space.contains(observation)
        assert observation["action_mask"].any()


@pytest.mark.parametrize("name", ["order", "placement", "allocation"])
def test_a_forbidden_action_is_replaced_and_said(name: str) -> None:
    env = MAKERS[name]()
    observation, _ = env.reset(seed=4)
    forbidden = int(np.argmin(observation["action_mask"]))
    replaced, *_, info = env.step(forbidden)
    assert info["replaced"]
    env.reset(seed=4)
    taken, *_, info = env.step(first_allowed(observation))
    assert not info["replaced"]
    assert all(np.array_equal(replaced[key], taken[key]) for key in taken)
    env.close()


def test_an_action_that_is_none_is_refused_and_the_run_goes_on(env: SchedulingEnv) -> None:
    observation, _ = env.reset(seed=4)
    last = int(env.action_space.n) - 1
    expected = "0 or 1" if last == 1 else f"a whole number from 0 to {last}"
    for action in (last + 1, -1, 2.7, 0.0, None, "x", np.nan, 10**30, np.zeros(1, int), [[0], [0, 1]], True):
        with pytest.raises(InputError, match=f"action is .*; expected {expected}$"):
            env.step(action)
    after, *_ = env.step(np.array(first_allowed(observation)))
    env.reset(seed=4)
    same, *_ = env.step(np.uint8(first_allowed(observation)))
    assert all(np.array_equal(after[key], same[key]) for key in after)


def test_the_first_that_has_room_is_the_order_of_the_engine() -> None:
    env = OrderEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "srsf"}, placement="first-fit", slots=30)
    episode(env, first_allowed, options={"seed": 6})
    plain = simulate(STREAM, EXCLUSIVE, order="srsf", placement="first-fit", seed=6)
    assert env.result is not None
    assert env.result.jobs["finish_s"].tolist() == plain.jobs["finish_s"].tolist()


def test_a_placement_with_memory_and_a_clock_of_its_own_decides_where() -> None:
    env = OrderEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "srsf"}, placement="delay", slots=30)
    episode(env, first_allowed, options={"seed": 6})
    plain = simulate(STREAM, EXCLUSIVE, order="srsf", placement="delay", seed=6)
    assert env.result is not None
    assert env.result.jobs["finish_s"].tolist() == plain.jobs["finish_s"].tolist()


@pytest.mark.long
@pytest.mark.parametrize(("action", "limit"), [(0, 1), (1, 1000)])
def test_transfers_that_always_or_never_wait_are_bounded_overlap(action: int, limit: int) -> None:
    jobs = "microsoft-160:scale=0.002"
    env = CommunicationEnv(jobs, settings={"order": "srsf"}, placement="lwf")
    episode(env, lambda _: action, options={"seed": 6})
    plain = simulate(jobs, order="srsf", placement="lwf", communication=f"bounded-overlap:limit={limit}", seed=6)
    assert env.result is not None
    assert env.result.jobs["finish_s"].tolist() == plain.jobs["finish_s"].tolist()


@pytest.mark.long
def test_what_is_kept_of_a_transfer_for_an_instant_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> list[bytes]:
        rng = np.random.default_rng(5)
        steps = episode(MAKERS["communication"](), lambda _: int(rng.integers(2)), options={"seed": 6})
        return [observation["transfers"].tobytes() for observation, _, _ in steps]

    kept = seen()
    asked = single_envs._AskedAdmission
    admit = asked.admit

    def forgetful(self, transfer, network):
        self._rows_ns = -1
        return admit(self, transfer, network)

    monkeypatch.setattr(asked, "admit", forgetful)
    assert seen() == kept


def test_who_writes_into_a_mask_changes_no_other_decision(env: SchedulingEnv) -> None:
    seen, _ = env.reset(seed=4)
    allowed = seen["action_mask"].copy()
    env.action_masks()[:] = False
    seen["action_mask"][:] = 0
    assert (env.action_masks() == allowed).all()


@pytest.mark.long
def test_several_decisions_at_an_instant_cost_no_time() -> None:
    env = MAKERS["communication"]()
    env.reset(options={"seed": 6})
    now_s, ended, at_once = 0.0, False, 0
    while not ended:
        _, reward, ended, _, info = env.step(0)
        if info["now_s"] == now_s:
            at_once += 1
            assert reward == 0.0 or ended
        now_s = info["now_s"]
    assert at_once > 100


def test_a_job_gets_the_servers_that_were_chosen() -> None:
    env = PlacementEnv(alone(num_gpus=6))
    env.reset()
    observation, *_ = env.step(3)
    assert observation["servers"][3].tolist()[:2] == [0.0, 1.0]  # All of its 4 GPUs are taken, none is left.
    assert observation["action_mask"].tolist() == [1, 1, 1, 0] + [1] * 12 + [0]
    *_, ended, _, _ = env.step(5)
    assert ended
    assert env.result is not None
    assert np.flatnonzero(env.result.gpus["busy_s"] > 0).tolist() == [12, 13, 14, 15, 20, 21]


@pytest.mark.long
def test_vectorised_episodes_are_those_of_single_environments() -> None:
    vector = SyncVectorEnv([MAKERS["order"]] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    seen, _ = vector.reset(seed=[1, 2])
    singles = [MAKERS["order"](), MAKERS["order"]()]
    for number, single in enumerate(singles):
        single.reset(seed=number + 1)
    for _ in range(12):
        actions = seen["action_mask"].argmax(axis=1)
        seen, rewards, *_ = vector.step(actions)
        for number, single in enumerate(singles):
            observation, reward, *_ = single.step(int(actions[number]))
            assert np.array_equal(seen["queue"][number], observation["queue"])
            assert rewards[number] == reward
    vector.close()
    for single in singles:
        single.close()


def test_environments_are_registered() -> None:
    made = gymnasium.make("ddlsched/Order-v0", workload=STREAM, cluster=EXCLUSIVE)
    assert isinstance(made.unwrapped, OrderEnv)
    made.reset(seed=1)
    made.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OrderEnv(STREAM, unit_s=0.0), "unit_s is 0.0"),
        (lambda: OrderEnv(STREAM, unit_s=float("inf")), "unit_s is inf"),
        (lambda: OrderEnv(STREAM, slots=0), "slots is 0"),
        (lambda: OrderEnv(STREAM, placement="easy-backfill").reset(), "decides about the whole queue"),
        (lambda: OrderEnv(STREAM, settings={"placement": "lwf"}), "settings has placement; expected no argument"),
        (
            lambda: CommunicationEnv(STREAM, settings={"placement": "lwf"}),
            "settings has placement; expected no argument",
        ),
        (lambda: OrderEnv(STREAM, settings={"until_s": 5.0}), "settings has until_s.*none that cuts runs off"),
        (lambda: OrderEnv(STREAM).step(0), "expected reset"),
        (lambda: OrderEnv(STREAM).action_masks(), "expected reset"),
        (lambda: OrderEnv(STREAM).reset(options={"seed": -1}), "options has seed -1"),
        (lambda: AllocationEnv(alone()).reset(), "job 'a' is not elastic"),
        (lambda: OrderEnv(alone()).reset(), "no decision to take"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.long
def test_a_run_without_a_decision_is_drawn_again_unless_its_seed_is_given() -> None:
    env = CommunicationEnv("stream:num_jobs=20,load=1.5,scale=0.01")
    without = []
    for seed in range(8):
        try:
            env.reset(options={"seed": seed})
        except InputError:
            without.append(seed)
    assert 2 <= len(without) < 8
    for seed in range(8):
        assert env.reset(seed=seed)[0]["action_mask"].any()
    env.close()


def test_an_episode_is_stepped_by_the_thread_that_began_it() -> None:
    env = OrderEnv(STREAM, cluster=EXCLUSIVE)
    env.reset(seed=1)

    def elsewhere() -> tuple[float, float]:
        with pytest.raises(InputError, match="another thread; expected reset"):
            env.step(0)
        env.reset(seed=1)
        return env.step(0)[1], env.step(0)[1]

    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(elsewhere).result()
    env.reset(seed=1)
    assert there == (env.step(0)[1], env.step(0)[1])
    env.close()


def test_an_error_of_the_run_reaches_the_caller_of_step() -> None:
    env = OrderEnv(STREAM, cluster=EXCLUSIVE, settings={"order": "none"})
    with pytest.raises(InputError, match="none"):
        env.reset(seed=1)


def test_a_transfers_job_has_the_time_left_that_its_gpus_need() -> None:
    job = SimpleNamespace(remaining_service_ns=60_000_000_000, num_gpus=4)
    admission = single_envs._AskedAdmission(lambda _: 0, 8)
    row = admission._row(SimpleNamespace(number=0, job=job, bytes_left=3e6))  # type: ignore[arg-type]
    assert row == (single_envs.log_share(3.0), single_envs.log_share(15.0), 0.5, 1.0)
