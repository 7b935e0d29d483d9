"""Many runs at once: the same decisions, observations and rewards as single environments, and Gymnasium's contract."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tiers import tried

from ddlsched import Disturbances
from ddlsched.envs import CommunicationEnv, CommunicationVectorEnv, scheduling_env
from ddlsched.errors import InputError

pytestmark = pytest.mark.long

JOBS = "microsoft-160:scale=0.002"
FEW = "stream:num_jobs=40,load=1.5,scale=0.01"
SPARSE = "stream:num_jobs=20,load=1.5,scale=0.01"
"""Of which most runs have no decision: no two transfers meet."""
NUM_ENVS = 3


@pytest.fixture
def vector() -> Iterator[CommunicationVectorEnv]:
    made = CommunicationVectorEnv(NUM_ENVS, JOBS, settings={"order": "srsf"})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("jobs", "settings"),
    tried(
        [
            (JOBS, {"order": "srsf"}),
            (FEW, {"contention": "max-min", "order": "fifo", "disturbances": Disturbances(prediction_error=0.5)}),
            (SPARSE, {}),
        ],
        lambda place: place == 1,
    ),
)
def test_all_is_as_in_single_environments(jobs: str, settings: dict[str, Any]) -> None:
    """Through the ends of episodes, at which both begin anew at the next step."""
    vector = CommunicationVectorEnv(NUM_ENVS, jobs, settings=settings)
    singles = [CommunicationEnv(jobs, settings=settings) for _ in range(NUM_ENVS)]
    seen, infos = vector.reset(seed=5)
    expected = [env.reset(seed=5 + number) for number, env in enumerate(singles)]
    ended, num_ended, rng = [False] * NUM_ENVS, 0, np.random.default_rng(1)
    while num_ended < NUM_ENVS + 1:
        for number, (observation, info) in enumerate(expected):
            assert all(np.array_equal(seen[key][number], observation[key]) for key in observation)
            assert infos["now_s"][number] == pytest.approx(info["now_s"], rel=1e-12)
        actions = rng.integers(0, 2, NUM_ENVS)
        seen, rewards, terminated, truncated, infos = vector.step(actions)
        for number, env in enumerate(singles):
            reward = 0.0
            if ended[number]:
                expected[number], ended[number] = env.reset(), False
            else:
                observation, reward, ended[number], _, info = env.step(int(actions[number]))
                expected[number] = observation, info
            assert rewards[number] == pytest.approx(reward, rel=1e-6, abs=1e-12)
            if ended[number]:
                num_ended += 1
                assert infos["average_jct_s"][number] == info["average_jct_s"]
        assert terminated.tolist() == ended
        assert not truncated.any()
    vector.close()


def test_the_return_is_minus_the_average_jct(vector: CommunicationVectorEnv) -> None:
    vector.reset(seed=2)
    returns, going = np.zeros(NUM_ENVS), np.ones(NUM_ENVS, bool)
    while going.any():
        _, rewards, terminated, *_ = vector.step(np.ones(NUM_ENVS, int))
        returns[going] += rewards[going]
        going &= ~terminated
    for number, result in enumerate(vector.results):
        assert result is not None
        assert returns[number] == pytest.approx(-result.summary()["average_jct_s"] / vector._unit_s, rel=1e-9)


def test_a_run_that_begins_by_itself_and_has_no_decision_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    draw = CommunicationEnv.drawn_run

    def noted(env: CommunicationEnv, seed: int | None, options: dict[str, Any] | None) -> Any:
        jobs, of_run = draw(env, seed, options)
        drawn.append(of_run)
        return jobs, of_run

    monkeypatch.setattr(CommunicationEnv, "drawn_run", noted)
    vector = CommunicationVectorEnv(1, SPARSE)
    vector.reset(seed=1)
    num_episodes, at_reset = 1, len(drawn)
    for _ in range(200):
        *_, ended, _, infos = vector.step(np.ones(1, int))
        assert "average_jct_s" not in infos or ended[0]
        num_episodes += int(ended[0])
    vector.close()
    assert num_episodes > 5
    assert len(drawn) - at_reset > 1.5 * num_episodes


def test_the_spaces_are_those_of_the_single_environment(vector: CommunicationVectorEnv) -> None:
    seen, _ = vector.reset(seed=1)
    assert vector.observation_space.contains(seen)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert vector.single_observation_space == CommunicationEnv(JOBS).observation_space


def test_what_is_observed_does_not_change_later(vector: CommunicationVectorEnv) -> None:
    seen, _ = vector.reset(seed=1)
    before = seen["transfers"].copy()
    vector.step(np.ones(NUM_ENVS, int))
    assert np.array_equal(seen["transfers"], before)


def test_a_seed_for_each_run_repeats_each(vector: CommunicationVectorEnv) -> None:
    first, _ = vector.reset(seed=[4, 7, 4])
    assert np.array_equal(first["transfers"][0], first["transfers"][2])
    assert not np.array_equal(first["transfers"][0], first["transfers"][1])
    again, _ = vector.reset(seed=[4, 7, 4])
    assert np.array_equal(first["transfers"], again["transfers"])


def test_an_action_that_is_none_is_refused_and_the_runs_go_on(vector: CommunicationVectorEnv) -> None:
    vector.reset(seed=np.int64(1))
    for actions in ([0, 2, 0], [0, 0, -1], [0.5] * 3, [np.nan] * 3, [0.0] * 3, [True] * 3, [0, 0], [[0], [0, 1]], None):
        with pytest.raises(InputError, match=r"actions are .*; expected 0 or 1 for each of 3 runs"):
            vector.step(actions)  # type: ignore[arg-type]
    refused = vector.step(np.ones(NUM_ENVS, int))[0]
    vector.reset(seed=1)
    assert np.array_equal(refused["transfers"], vector.step(np.ones(NUM_ENVS, int))[0]["transfers"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CommunicationVectorEnv(0, JOBS), "num_envs is 0"),
        (lambda: CommunicationVectorEnv(2, JOBS).step(np.zeros(2)), "expected reset"),
        (lambda: CommunicationVectorEnv(2, JOBS).reset(seed=[1]), "seed has 1 numbers"),
        (lambda: CommunicationVectorEnv(2, "stream:num_jobs=1,scale=0.01").reset(), "no decision to take"),
        (lambda: CommunicationVectorEnv(2, JOBS, settings={"order": "none"}).reset(), "none"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_env, "_MOST_DRAWS", 5)
    with pytest.raises(InputError, match=message):
        make()


def test_without_a_compiler_it_says_so() -> None:
    program = f"from ddlsched.envs import CommunicationVectorEnv; CommunicationVectorEnv(1, {JOBS!r})"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert "expected a process without NUMBA_DISABLE_JIT=1" in done.stderr
