"""The steps of one environment whose run is a script: what is drawn, allowed, rewarded, told and closed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.envs import scheduling_env
from ddlsched.envs.scheduling_env import Decision, SchedulingEnv, Stepped
from ddlsched.errors import InputError
from ddlsched.results.result import Result
from ddlsched.workload.workload_files import workload_of

STREAM = "stream:num_jobs=5,scale=0.01"


def jobs(compute_s: float = 1.0) -> Workload:
    iteration = DataParallelIteration(forward_s=compute_s, backward_s=0.0, message_bytes=1e6)
    given: dict[str, Any] = {"num_gpus": 1, "iterations": 3, "iteration": iteration, "gpu_memory_mb": 1.0}
    return Workload.of(Job(job_id=f"j{at}", arrival_s=at, **given) for at in (0.0, 1.0))


class Env(SchedulingEnv):
    """Asks at 1 s and 4 s; both jobs end at 5 s."""

    doors = frozenset({"placement"})

    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        return {"seen": (1,)}, 3

    def policies(self, ask: Any, seconds: Any) -> dict[str, Any]:
        return {"ask": ask}


class Runs:
    """Stands in for ``simulate``; keeps its arguments and what was answered."""

    times_s: tuple[float, ...] = (1.0, 4.0)

    def __init__(self) -> None:
        self.calls, self.answers = list[Any](), list[int]()

    def __call__(self, workload: Workload, cluster: Cluster, *, ask: Any, **given: Any) -> Result:
        self.calls.append((workload, cluster, given))
        for now_s in self.times_s:
            decision = Decision(now_s, {"seen": np.array([now_s / 10], np.float32)}, np.array([False, True, True]))
            self.answers.append(ask(decision))
        result = object.__new__(Result)
        table = pd.DataFrame({"jct_s": [5.0, 4.0], "finish_s": [5.0, 5.0]})
        result.__dict__["jobs"] = table
        return result


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    made = Runs()
    monkeypatch.setattr(scheduling_env, "simulate", made)
    return made


def test_an_episode_from_its_first_decision_to_its_end(runs: Runs) -> None:
    env = Env(jobs(), unit_s=2.0, settings={"order": "srsf"})
    seen, info = env.reset(seed=3)
    assert (seen["seen"].tolist(), seen["action_mask"].tolist(), info) == ([np.float32(0.1)], [0, 1, 1], {"now_s": 1.0})
    assert env.action_masks().tolist() == [False, True, True]
    seen, reward, ended, cut, info = env.step(2)
    # One job from 0 s, the other from 1 s: 1 s before the first decision, 6 s from there to 4 s.
    assert (reward, ended, cut, info) == (-7 / (2 * 2.0), False, False, {"replaced": False, "now_s": 4.0})
    seen, reward, ended, cut, info = env.step(0)
    assert (reward, ended, cut) == (-2 / (2 * 2.0), True, False)
    assert info == {"replaced": True, "now_s": 5.0, "average_jct_s": 4.5}
    assert seen["seen"].tolist() == [np.float32(0.4)]
    assert runs.answers == [2, 1]  # the first that is allowed
    assert env.result is not None
    with pytest.raises(InputError, match="no episode under way"):
        env.step(1)
    with pytest.raises(InputError, match="no episode under way"):
        env.action_masks()
    ((workload, cluster, given),) = runs.calls
    assert (workload, cluster) == (env.workload, Cluster())
    assert given == {"seed": given["seed"], "order": "srsf"}


def test_seeds_of_runs_are_those_of_gymnasiums_generator(runs: Runs) -> None:
    env = Env(jobs())
    drawn = np.random.default_rng(np.random.SeedSequence(3)).integers(1 << 31, size=2).tolist()
    env.reset(seed=3)
    env.reset()
    env.reset(options={"seed": 0})
    assert [given["seed"] for _, _, given in runs.calls] == [*drawn, 0]
    for seed in (-1, 1.5, None, True):
        with pytest.raises(InputError, match=r"options has seed .*; expected a whole number >= 0"):
            env.reset(options={"seed": seed})


def test_a_generators_jobs_are_of_the_runs_seed(runs: Runs) -> None:
    env = Env(STREAM)
    env.reset(options={"seed": 4})
    assert runs.calls[0][0] == workload_of(STREAM, 4)
    assert env.num_jobs == 5


@pytest.mark.parametrize(
    ("workload", "options", "draws"),
    [(jobs(), None, 1), (jobs(), {"seed": 1}, 1), (STREAM, None, 7), (STREAM, {}, 7), (STREAM, {"seed": 1}, 1)],
)
def test_a_run_without_a_decision_is_drawn_again_unless_its_seed_or_jobs_are_given(
    workload: Any, options: dict[str, Any] | None, draws: int, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling_env, "_MOST_DRAWS", 7)
    monkeypatch.setattr(runs, "times_s", ())
    with pytest.raises(InputError, match="no decision to take"):
        Env(workload).reset(seed=3, options=options)
    assert len(runs.calls) == draws


def test_a_later_draw_has_another_seed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_env, "_MOST_DRAWS", 2)
    monkeypatch.setattr(runs, "times_s", ())
    with pytest.raises(InputError, match="no decision to take"):
        Env(STREAM).reset(seed=3)
    drawn = np.random.default_rng(np.random.SeedSequence(3)).integers(1 << 31, size=2).tolist()
    assert [given["seed"] for _, _, given in runs.calls] == drawn


def test_an_episode_under_way_ends_where_another_begins_and_at_close(runs: Runs) -> None:
    env = Env(jobs())
    env.reset()
    first: Any = env._stepped
    env.reset()
    second: Any = env._stepped
    assert (first._inside.dead, second._inside.dead) == (True, False)
    env.close()
    env.close()
    assert second._inside.dead
    assert env._stepped is env._decision is None
    with pytest.raises(InputError, match="no episode under way"):
        env.step(1)


def test_a_simulation_that_never_began_may_be_closed() -> None:
    stepped: Stepped[Any] = Stepped(lambda wait: None)  # type: ignore[arg-type,return-value]
    stepped.close()
    assert not stepped._inside


@pytest.mark.parametrize("unit_s", [0.5, 1, 1e9])
def test_a_unit_is_any_time_above_0(unit_s: float) -> None:
    assert Env(jobs(), unit_s=unit_s).unit_s == unit_s


@pytest.mark.parametrize("unit_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_unit_that_is_no_time_is_refused(unit_s: float) -> None:
    with pytest.raises(InputError, match=r"unit_s is .*; expected finite seconds above 0"):
        Env(jobs(), unit_s=unit_s)


def test_the_unit_is_the_mean_time_for_which_a_job_computes() -> None:
    """Of a generator the jobs of seed 0; 1 s if they compute nothing."""
    assert Env(jobs(2.0)).unit_s == 6.0
    assert Env(jobs(0.0)).unit_s == 1.0
    computing_s = [job.iterations * job.compute_ns / 1e9 for job in workload_of(STREAM, 0)]
    assert Env(STREAM).unit_s == pytest.approx(np.mean(computing_s), rel=1e-9)


@pytest.mark.parametrize("name", ["workload", "cluster", "seed", "until_s", "placement"])
def test_what_the_environment_gives_is_no_setting(name: str) -> None:
    with pytest.raises(InputError, match=f"settings has {name}; expected no argument that the environment gives"):
        Env(jobs(), settings={name: SimpleNamespace(), "order": "srsf"})


def test_what_is_seen_is_from_0_to_1() -> None:
    space = Env(jobs()).observation_space
    boxes = {name: (box.shape, box.dtype, box.low.min(), box.high.max()) for name, box in space.items()}  # type: ignore[attr-defined]
    assert boxes == {"seen": ((1,), np.float32, 0.0, 1.0), "action_mask": ((3,), np.int8, 0, 1)}
