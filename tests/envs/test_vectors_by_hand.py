"""Environments of many runs, stepped by a script in place of compiled code: what they begin, reward, tell and end."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ddlsched import Cluster
from ddlsched.engine.field_values import Question
from ddlsched.engine.loop.batch.runs import Standing
from ddlsched.envs import vector_env
from ddlsched.envs.vector_env import SchedulingVectorEnv
from ddlsched.envs.vector_envs import (
    AllocationVectorEnv,
    OrderVectorEnv,
    PlacementVectorEnv,
    _DecidedOutside,
    _orders,
    _PlacedByAnother,
)
from ddlsched.errors import InputError
from ddlsched.policies.cluster_view import GpuKey, TakesGpusInOrder
from ddlsched.results.result import Result

JOBS = ["a", "b"]
"""Two jobs, which arrive at 0 s and 1 s and end at 5 s and 9 s, so that the average JCT is 6.5 s."""
UNIT_S = 10.0
DRAWS = 3


class Env:
    """A single environment, whose runs are only counted."""

    def __init__(self, workload: Any, **given: Any) -> None:
        self.workload, self.given, self.cluster, self.settings = workload, given, "cluster", {"order": "srsf"}
        self.unit_s = UNIT_S
        self.action_space = spaces.Discrete(3)
        boxes = {"seen": spaces.Box(0, 1, (2,), np.float32), "action_mask": spaces.Box(0, 1, (3,), np.int8)}
        self.observation_space = spaces.Dict(boxes)
        self.drawn: list[tuple[int | None, dict[str, Any] | None]] = []

    def _draws(self, options: dict[str, Any] | None) -> int:
        return 1 if options else DRAWS

    def drawn_run(self, seed: int | None, options: dict[str, Any] | None) -> tuple[list[str], int]:
        self.drawn.append((seed, options))
        return JOBS, len(self.drawn)


class Outside(SimpleNamespace):
    """What does some work in the driver's stead."""

    may_begin_again = False
    noted = 0

    def note(self) -> None:
        self.noted += 1

    def begin_again(self) -> Any:
        return SimpleNamespace(address=77)


class Vector(SchedulingVectorEnv):
    """Runs of ``lengths`` decisions each, 1 s from one to the next; 2 s x jobs have passed at the first one."""

    single: Any = Env
    steps: Any = SimpleNamespace(compiled=lambda arrays: lambda runs, arrays: None)
    lengths: Sequence[int] = (2,)
    allowed: Sequence[int] = (0, 1, 1)

    def __init__(self, num_envs: int, **given: Any) -> None:
        self.acted: list[list[int]] = []
        self.asked: list[tuple[int, Any]] = []
        self.outsides: list[Outside] = []
        super().__init__(num_envs, JOBS, **given)  # type: ignore[arg-type]

    def _new_arrays(self, env: Any) -> Any:
        return SimpleNamespace(**self._observed_arrays())

    def _policies(self, env: Any, wait: Any) -> dict[str, Any]:
        return {"placement": SimpleNamespace(advance_run=wait)}

    def _adopt(self, number: int, simulation: Any) -> Any:
        self.outsides.append(Outside(number=number))
        return self.outsides[-1]

    def _decide(self) -> None:
        length = self.lengths[min(len(self._envs[0].drawn), len(self.lengths)) - 1]
        for number, run in enumerate(self._runs):
            if run["standing"] == Standing.ACTION.value:
                self.acted.append([number, int(run["action"])])
            elif run["standing"] != Standing.EVENTS.value:
                continue
            if run["num_decisions"] == length:
                run["standing"], run["question"] = Standing.QUESTION.value, Question.DONE.value
                continue
            run["standing"] = Standing.DECISION.value
            run["num_decisions"] += 1
            run["now_s"] = run["num_decisions"]
            run["job_seconds"] = 1 + 3 * run["num_decisions"]
            self._mask[number] = self.allowed
            self._arrays.seen[number] = number, run["num_decisions"] / 10


def done_run() -> Result:
    return object.__new__(Result)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have runs answer each question but DONE with nothing; return the arguments of ``simulate`` of each."""
    calls: list[dict[str, Any]] = []

    def simulate(jobs: Any, cluster: Any, **given: Any) -> Result:
        calls.append({"jobs": jobs, "cluster": cluster, **given})
        times = SimpleNamespace(arrival_ns=np.array([0, 10**9]), finish_ns=np.array([5 * 10**9, 9 * 10**9]))
        state = SimpleNamespace(arrays=SimpleNamespace(address=40 + len(calls)), jobs=times)
        simulation = SimpleNamespace(parts=SimpleNamespace(state=state))
        while given["placement"].advance_run(simulation) != Question.DONE:
            pass
        return done_run()

    monkeypatch.setattr(vector_env, "simulate", simulate)
    return calls


def test_an_episode_is_rewarded_by_what_passes_and_told_at_its_end(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(2)
    seen, infos = vector.reset(seed=5)
    assert seen["action_mask"].tolist() == [[0, 1, 1]] * 2
    assert seen["seen"].tolist() == np.array([[0, 0.1], [1, 0.1]], np.float32).tolist()
    assert {name: array.tolist() for name, array in infos.items()} == {
        "now_s": [1.0, 1.0], "_now_s": [True] * 2, "replaced": [False] * 2, "_replaced": [True] * 2,
    }  # fmt: skip
    seen, rewards, ended, cut, infos = vector.step(np.array([2, 0]))
    assert vector.acted == [[0, 2], [1, 1]]  # 0 is not allowed: the first that is
    assert infos["replaced"].tolist() == [False, True]
    assert rewards == pytest.approx([-7 / (2 * UNIT_S)] * 2)  # what passed before the first decision counts, too
    assert (ended.tolist(), cut.tolist()) == ([False] * 2, [False] * 2)
    assert "average_jct_s" not in infos
    seen, rewards, ended, cut, infos = vector.step(np.array([1, 2]))
    assert rewards == pytest.approx([-(13 - 7) / (2 * UNIT_S)] * 2)  # the JCTs are 5 s and 8 s
    assert (ended.tolist(), cut.tolist()) == ([True] * 2, [False] * 2)
    assert seen["action_mask"].tolist() == [[1, 1, 1]] * 2
    assert infos["average_jct_s"].tolist() == [6.5] * 2
    assert infos["_average_jct_s"].tolist() == infos["_final_info"].tolist() == [True] * 2
    final = {"average_jct_s": 6.5, "now_s": 9.0, "episode": {"r": -0.65, "l": 2}}
    assert infos["final_info"].tolist() == [final] * 2
    assert all(isinstance(vector.result(number), Result) for number in (0, 1))


def test_a_run_that_has_ended_begins_anew_at_the_next_step_which_earns_nothing(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(1)
    vector.reset(seed=5)
    for _ in range(2):
        vector.step(np.array([1]))
    _, rewards, ended, _, infos = vector.step(np.array([0]))
    assert (rewards.tolist(), ended.tolist(), infos["replaced"].tolist()) == ([0.0], [False], [False])
    assert infos["now_s"].tolist() == [1.0]
    assert vector.acted == [[0, 1], [0, 1]]
    assert vector._envs[0].drawn == [(5, {}), (None, None)]
    _, rewards, *_ = vector.step(np.array([1]))
    assert rewards == pytest.approx([-7 / (2 * UNIT_S)])  # with what passed before the first decision
    with pytest.raises(InputError, match="the run in place 0 is under way"):
        vector.result(0)


def test_runs_get_the_settings_of_their_environment_and_its_policies(simulated: list[dict[str, Any]]) -> None:
    Vector(1, order="srsf").reset(seed=5)
    (given,) = simulated
    assert (given["jobs"], given["cluster"], given["seed"], given["order"]) == (JOBS, "cluster", 1, "srsf")
    assert set(given) == {"jobs", "cluster", "seed", "order", "placement"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [None] * 3),
        (5, [5, 6, 7]),
        (np.int64(5), [5, 6, 7]),
        ([4, None, 9], [4, None, 9]),
        ((1, 2, 3), [1, 2, 3]),
    ],
)
def test_each_run_has_the_seed_after_that_of_the_one_before_or_its_own(
    given: Any, expected: list[int | None], simulated: list[dict[str, Any]]
) -> None:
    vector = Vector(3)
    vector.reset(seed=given)
    assert [env.drawn for env in vector._envs] == [[(seed, {})] for seed in expected]


def test_runs_that_are_masked_begin_anew_and_the_others_go_on(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(2)
    vector.reset(seed=5)
    vector.step(np.array([1, 1]))
    _, infos = vector.reset(seed=8, options={"reset_mask": np.array([False, True]), "seed": 4})
    assert infos["now_s"].tolist() == [2.0, 1.0]
    assert [env.drawn[1:] for env in vector._envs] == [[], [(9, {"seed": 4})]]
    _, rewards, ended, *_ = vector.step(np.array([1, 1]))
    assert ended.tolist() == [True, False]
    assert rewards == pytest.approx([-(13 - 7) / 20, -7 / 20])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True], "expected True or False for each of 2 runs"),
        ([1, 0], "expected True or False for each of 2 runs"),
        ([False, False], "expected True or False for each of 2 runs"),
        ([[True, True]], "expected True or False for each of 2 runs"),
        ([True, False], "expected all runs at the first reset"),
    ],
)
def test_a_mask_that_cannot_be_is_refused(mask: Any, message: str, simulated: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match=message):
        Vector(2).reset(options={"reset_mask": mask})


def test_a_mask_of_all_runs_may_be_of_the_first_reset(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(2)
    with pytest.raises(InputError, match="seed has 1 numbers; expected one for each of 2 runs"):
        vector.reset(seed=[1])
    vector.reset(options={"reset_mask": [True, True]})
    assert [len(env.drawn) for env in vector._envs] == [1, 1]


def test_a_run_without_a_decision_is_drawn_again_as_often_as_its_environment_says(
    simulated: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vector, "lengths", (0, 0, 1))
    vector = Vector(1)
    vector.reset(seed=5)
    assert vector._envs[0].drawn == [(5, {}), (None, None), (None, None)]
    monkeypatch.setattr(Vector, "lengths", (0,))
    with pytest.raises(InputError, match="no decision to take"):
        (vector := Vector(1)).reset(seed=5)
    assert len(simulated) == 3 + DRAWS
    with pytest.raises(InputError, match="no decision to take"):
        Vector(1).reset(options={"seed": 1})
    assert len(simulated) == 3 + DRAWS + 1


def test_jobs_that_are_the_same_begin_again_without_a_driver(
    simulated: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their result is made when it is asked for, and then they cannot begin again."""
    monkeypatch.setattr(Outside, "may_begin_again", True)
    vector = Vector(1)
    for env in vector._envs:
        env.workload = JOBS
    vector.reset(seed=5)
    assert vector._runs["state"].tolist() == [41]
    for _ in range(3):
        vector.step(np.array([1]))
    assert (len(simulated), vector.results, vector._runs["state"].tolist()) == (1, [None], [77])
    for _ in range(2):
        vector.step(np.array([1]))
    assert isinstance(vector.result(0), Result)
    assert vector.result(0) is vector.results[0]
    assert vector.outsides[0].noted == 1
    vector.step(np.array([1]))
    assert (len(simulated), vector._runs["state"].tolist()) == (2, [42])


def test_a_question_that_is_answered_outside_does_not_reach_the_driver(
    simulated: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []

    def answers(self: Vector, number: int, outside: Outside) -> bool:
        answered.append(number)
        self._runs["num_decisions"][number] = 0
        return len(answered) < 3

    monkeypatch.setattr(Vector, "_answers", answers)
    monkeypatch.setattr(Vector, "lengths", (1,))
    vector = Vector(1)
    vector.reset(seed=5)
    ended = [bool(vector.step(np.array([1]))[2][0]) for _ in range(2)]
    assert ended == [False, False]
    assert (answered, vector.outsides[0].noted, vector._runs["state"].tolist()) == ([0, 0], 0, [41])


def test_what_is_closed_is_begun_with_reset(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(2)
    with pytest.raises(InputError, match="no episode under way"):
        vector.step(np.array([1, 1]))
    vector.reset()
    episodes: list[Any] = [*vector._episodes]
    vector.close()
    assert [episode._inside.dead for episode in episodes] == [True] * 2
    assert vector._episodes == vector._simulations == vector._outside == [None, None]
    with pytest.raises(InputError, match="no episode under way"):
        vector.step(np.array([1, 1]))


@pytest.mark.parametrize(
    ("action", "message"), [(3, "a whole number from 0 to 2 for each of 2 runs"), (-1, "a whole number from 0 to 2")]
)
def test_actions_are_those_of_the_space(action: int, message: str, simulated: list[dict[str, Any]]) -> None:
    vector = Vector(2)
    vector.reset()
    with pytest.raises(InputError, match=message):
        vector.step(np.array([1, action]))


def test_what_is_told_is_not_written_into_later(simulated: list[dict[str, Any]]) -> None:
    vector = Vector(1)
    seen, infos = vector.reset()
    before = [seen["seen"].tolist(), seen["action_mask"].tolist(), infos["now_s"].tolist()]
    _, _, ended, _, _ = vector.step(np.array([1]))
    vector.step(np.array([1]))
    assert [seen["seen"].tolist(), seen["action_mask"].tolist(), infos["now_s"].tolist()] == before
    assert ended.tolist() == [False]


class ByWanted(TakesGpusInOrder):
    """An order of GPUs that depends on how many are wanted."""

    def gpu_order(self, num_gpus: int) -> tuple[GpuKey, ...]:
        keys: tuple[GpuKey, ...] = ("load", "server", "server_load")
        return keys[:num_gpus]


def test_orders_of_gpus_are_numbers_by_how_many_are_wanted() -> None:
    assert _orders(ByWanted(), 3).tolist() == [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]]


def test_what_is_decided_outside_is_not_asked() -> None:
    decided = _DecidedOutside(lambda _: 0)
    assert decided.compiled is False
    for door in (decided.place, decided.admit, decided.allocate):
        with pytest.raises(NotImplementedError):
            door(None, None)


@pytest.mark.parametrize("wakes", [False, True])
def test_a_placement_beside_compiled_code_may_not_ask_to_be_woken(wakes: bool) -> None:
    placement: Any = SimpleNamespace(place=lambda job, cluster: [3])
    if wakes:
        placement.wake_s = lambda now_s: now_s
        with pytest.raises(InputError, match="asks to be woken; expected OrderEnv for it"):
            _PlacedByAnother(lambda _: 0, placement).begin(Cluster(), np.random.default_rng(0))
        return
    begun = _PlacedByAnother(lambda _: 5, placement).begin(Cluster(), np.random.default_rng(0))
    assert (begun.advance_run(None), begun.place(None, None)) == (5, [3])


def test_a_job_starts_on_gpus_from_the_first_on() -> None:
    """GPU 0 is one like any other: only -1 has the placement asked."""
    run, begun = {"question": Question.PLACEMENT, "job": 0, "num_started": 0}, []
    outside: Any = SimpleNamespace(num_gpus=lambda _: 2, start=lambda *started: begun.append(started))
    arrays = SimpleNamespace(seen=np.array([[4]]), gpus=np.array([[0, 1, 2]]))
    assert OrderVectorEnv._answers(SimpleNamespace(_runs=[run], _arrays=arrays), 0, outside)  # type: ignore[arg-type]
    assert begun == [(4, [0, 1])]


@pytest.mark.parametrize("question", [Question.PLACEMENT, Question.KEYS])
def test_a_placed_job_starts_and_the_next_one_is_placed(question: Question) -> None:
    run, begun = {"question": question, "job": 4, "place": 2, "num_started": 5, "num_chosen": 2}, []
    outside: Any = SimpleNamespace(start=lambda *started: begun.append(started))
    vector: Any = SimpleNamespace(_runs=[None, run], _arrays=SimpleNamespace(gpus=np.array([[0, 1, 2], [6, 7, 8]])))
    is_placed = question == Question.PLACEMENT
    assert PlacementVectorEnv._answers(vector, 1, outside) is is_placed  # type: ignore[arg-type]
    assert begun == [(4, [6, 7])] * is_placed
    after = {"job": -1, "place": 3, "num_started": 6} if is_placed else {"job": 4, "place": 2, "num_started": 5}
    assert run == {"question": question, "num_chosen": 2} | after


def test_a_round_of_sizes_says_who_is_there_and_gives_what_was_decided() -> None:
    run = {"question": Question.ALLOCATION, "in_round": 0, "place": 7, "count": 9, "num_started": 0, "num_chosen": 0}
    given: list[list[int]] = []
    outside: Any = SimpleNamespace(open_round=lambda: ([3, 5], [1, 0], [10, 20], 8), close_round=given.append)
    names = ("there", "held", "hold_until_ns", "given")
    arrays = SimpleNamespace(**{name: np.zeros((1, 3), np.int64) for name in names})
    vector: Any = SimpleNamespace(_runs=[run], _arrays=arrays)
    assert AllocationVectorEnv._answers(vector, 0, outside)  # type: ignore[arg-type]
    assert run == {
        "question": Question.ALLOCATION, "in_round": 1, "place": 0, "count": 2, "num_started": 8, "num_chosen": 8,
    }  # fmt: skip
    assert [getattr(arrays, name).tolist() for name in names] == [[[3, 5, 0]], [[1, 0, 0]], [[10, 20, 0]], [[0, 0, 0]]]
    arrays.given[0] = 4, 0, 6
    assert AllocationVectorEnv._answers(vector, 0, outside)  # type: ignore[arg-type]
    assert (given, run["in_round"]) == ([[4, 0]], 0)
    run["question"] = Question.KEYS
    assert not AllocationVectorEnv._answers(vector, 0, outside)  # type: ignore[arg-type]
    assert len(given) == 1


@pytest.mark.parametrize("num_envs", [0, -1])
def test_there_is_one_run_at_least(num_envs: int) -> None:
    with pytest.raises(InputError, match=f"num_envs is {num_envs}"):
        Vector(num_envs)


def test_without_compiled_code_there_are_no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_env, "advance", lambda: None)
    with pytest.raises(InputError, match="Vector is compiled; expected a process without NUMBA_DISABLE_JIT=1"):
        Vector(1)


def test_runs_are_taken_on_with_the_arrays() -> None:
    taken: list[Any] = []
    vector: Any = SimpleNamespace(_runs=1, _arrays=2, _take_on=lambda *given: taken.append(given))
    SchedulingVectorEnv._decide(vector)
    assert taken == [(1, 2)]


def test_what_is_not_answered_outside_is_for_the_driver() -> None:
    vector: Any = SimpleNamespace()
    assert SchedulingVectorEnv._answers(vector, 0, None) is False
    assert SchedulingVectorEnv._adopt(vector, 0, vector) is None
