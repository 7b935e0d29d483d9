"""Environments of many runs, whose decisions are taken in compiled code, for any of the doors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ddlsched.engine.batched_runs import BatchedRun
from ddlsched.engine.driver import Simulation
from ddlsched.engine.field_values import Question
from ddlsched.engine.loop.advance import advance
from ddlsched.engine.loop.batch.runs import BATCHED_RUN, Standing, StepsOfADoor
from ddlsched.envs.scheduling_env import NO_DECISION, Observation, SchedulingEnv, Stepped, checked_actions
from ddlsched.errors import InputError
from ddlsched.ranges import check_arguments
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.units import NS_PER_S
from ddlsched.workload.job import Workload

Wait: TypeAlias = Callable[[Simulation], int]
"""What a run calls to have the loop go on: from the run to the question that Python has to answer."""


class SchedulingVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """Many runs of a single environment in one process, stepped by compiled code.

    Decisions, observations, rewards and seeds are those of as many single environments. A run that has ended begins
    anew at the next step, whose action does not count for it and whose reward is 0 (Gymnasium's ``NEXT_STEP``); until
    then its mask allows everything. An action that is not allowed is replaced by the first that is. ``infos`` have
    ``now_s``, ``replaced``, and of the runs that have just ended ``average_jct_s`` and ``final_info``: of each the
    ``average_jct_s``, and ``episode`` with the return ``r`` and the decisions ``l``. Runs that are masked in
    ``reset(options={"reset_mask": ...})`` begin anew, the others go on.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, given
        As of the single environment of one, the same for all.

    Raises
    ------
    InputError
        An argument that cannot be, no run with a decision, or ``NUMBA_DISABLE_JIT=1``.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium has it
    single: ClassVar[type[SchedulingEnv]]
    """The environment of one run."""
    steps: ClassVar[StepsOfADoor]
    """What compiled code does."""

    def __init__(self, num_envs: int, workload: Workload | str | Path, **given: Any) -> None:
        check_arguments(type(self).__name__, num_envs=(num_envs, 1))
        if not hasattr(advance, "compile"):
            raise InputError(f"{type(self).__name__} is compiled; expected a process without NUMBA_DISABLE_JIT=1")
        self._envs: list[Any] = [self.single(workload, **given) for _ in range(num_envs)]
        first = self._envs[0]
        self.num_envs, self._unit_s = num_envs, first.unit_s
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mask = np.ones((num_envs, first.action_space.n), np.int8)
        self._runs = np.zeros(num_envs, BATCHED_RUN)
        self._seen = [name for name in first.observation_space if name != "action_mask"]
        self._arrays = self._new_arrays(first)
        self._take_on = self.steps.compiled(self._arrays)
        self._episodes: list[Stepped[Simulation] | None] = [None] * num_envs
        self._simulations: list[Simulation | None] = [None] * num_envs
        self._outside: list[BatchedRun | None] = [None] * num_envs
        self.results: list[Result | None] = [None] * num_envs
        """Of the last episode of each run that has ended, as far as it was made: see :meth:`result`."""
        self._rewarded, self._average_jct_s = np.zeros(num_envs), np.zeros(num_envs)
        self._ended, self._begun = np.zeros(num_envs, bool), False
        self._draws_left = [0] * num_envs

    @abstractmethod
    def _new_arrays(self, env: Any) -> Any:
        """Return what compiled code writes, among it what is observed, by name."""

    def _observed_arrays(self) -> dict[str, np.ndarray]:
        """Return a new array for everything that is observed, by name, without the mask."""
        shapes = {name: self._envs[0].observation_space[name].shape for name in self._seen}
        return {name: np.zeros((self.num_envs, *shape), np.float32) for name, shape in shapes.items()}

    @abstractmethod
    def _policies(self, env: Any, wait: Wait) -> dict[str, Any]:
        """Return the policies of a run, by argument of ``simulate``; one has ``wait`` as its ``advance_run``."""

    def _adopt(self, number: int, simulation: Simulation) -> BatchedRun | None:
        """Look at a run that stands before its first event; return what does some work in its driver's stead."""
        return None

    def _answers(self, number: int, outside: Any) -> bool:
        """Answer a run's question in its driver's stead, unless that is to do so."""
        return False

    def _decide(self) -> None:
        """Take each run whose events or action come next to its next decision or question."""
        self._take_on(self._runs, self._arrays)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin runs anew; the runs after the first get the seeds after ``seed``, unless it has one for each.

        ``options`` may have ``seed``, of all runs, and ``reset_mask``: which runs begin anew, the others go on.
        """
        seeds, of_run = self._seeds(seed), dict(options or {})
        if len(seeds) != self.num_envs:
            raise InputError(f"seed has {len(seeds)} numbers; expected one for each of {self.num_envs} runs")
        again = self._masked(of_run.pop("reset_mask", None))
        for number in again:
            self._begin(number, seeds[number], of_run)
        self._go_on(again)
        self._rewarded[again] = 0.0
        self._begun = True
        return self._observed(), self._infos(np.zeros(self.num_envs, bool))

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        return [*range(seed, seed + self.num_envs)] if isinstance(seed, int | np.integer) else [*seed]

    def _masked(self, mask: Any) -> list[int]:
        """Return the runs that a mask has begin anew."""
        if mask is None:
            return [*range(self.num_envs)]
        given = np.asarray(mask)
        if given.shape != (self.num_envs,) or given.dtype != bool or not given.any():
            raise InputError(f"reset_mask is {mask!r}; expected True or False for each of {self.num_envs} runs")
        if not self._begun and not given.all():
            raise InputError(f"reset_mask is {mask!r}; expected all runs at the first reset")
        return np.flatnonzero(given).tolist()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a decision in each run and go on to the next one."""
        if not self._begun:
            raise InputError("there is no episode under way; expected reset() first")
        again: list[int] = np.flatnonzero(self._ended).tolist()
        replaced = self._act(checked_actions(actions, self._mask.shape[1], self.num_envs))
        self._decide()
        stopped = self._stopped()
        for number in again:
            self._begin(number, None, None)
        self._go_on(stopped + again)
        job_seconds = self._runs["job_seconds"].copy()
        rewards = (self._rewarded - job_seconds) / (self._runs["num_jobs"] * self._unit_s)
        rewards[again] = job_seconds[again] = 0.0  # what has passed before the first decision counts for that
        self._rewarded = job_seconds
        return self._observed(), rewards, self._ended.copy(), np.zeros(self.num_envs, bool), self._infos(replaced)

    def _act(self, actions: np.ndarray) -> np.ndarray:
        """Write down the actions of the runs that stand at a decision; return which were replaced."""
        replaced: np.ndarray = (self._mask[np.arange(self.num_envs), actions] == 0) & ~self._ended
        self._runs["action"] = np.where(replaced, self._mask.argmax(axis=1), actions) if replaced.any() else actions
        self._runs["standing"][~self._ended] = Standing.ACTION.value
        return replaced

    def _begin(self, number: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin an episode in a place."""
        self._draws_left[number] = self._envs[number]._draws(options)
        self._draw(number, seed, options)

    def _draw(self, number: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Put a new run in a place, or the same again; it stands before its first event."""
        self._draws_left[number] -= 1
        env, outside = self._envs[number], self._outside[number]
        jobs, of_run = env.drawn_run(seed, options)
        self._ended[number] = False
        self._runs[number] = np.zeros((), BATCHED_RUN)
        self._runs["num_jobs"][number] = len(jobs)
        if outside is not None and outside.may_begin_again and env.workload is jobs:
            self._runs["state"][number] = outside.begin_again().address
            return
        self._end(number)

        def run(wait: Wait) -> Result:
            return simulate(jobs, env.cluster, seed=of_run, **(env.settings | self._policies(env, wait)))

        self._episodes[number] = Stepped(run)
        self._runs["standing"][number] = Standing.QUESTION.value

    def _stopped(self) -> list[int]:
        """Return the runs that have a question for Python."""
        return np.flatnonzero((self._runs["standing"] == Standing.QUESTION.value) & ~self._ended).tolist()

    def _go_on(self, numbers: list[int]) -> None:
        """Let Python answer the questions of some runs, until all stand at a decision or have ended."""
        while numbers:
            for number in numbers:
                if self._runs["standing"][number] == Standing.QUESTION.value:
                    self._answer(number)
            self._decide()
            numbers = self._stopped()

    def _answer(self, number: int) -> None:
        """Let Python answer a run's question."""
        simulation, outside, run = self._simulations[number], self._outside[number], self._runs[number]
        if simulation is not None and outside is not None:
            if self._answers(number, outside):
                run["state"], run["standing"] = simulation.parts.state.arrays.address, Standing.EVENTS.value
                return
            if run["question"] == Question.DONE and outside.may_begin_again:
                self._note_end(number, None)
                return
        found = self._advanced(number)
        if isinstance(found, Result):
            self._note_end(number, found)
            return
        if found is not simulation:
            self._simulations[number] = found
            self._outside[number] = self._adopt(number, found)
        run["state"], run["standing"] = found.parts.state.arrays.address, Standing.EVENTS.value

    def _advanced(self, number: int) -> Simulation | Result:
        """Have the driver of a run answer its question; return the run, or what it ended with."""
        episode, outside = self._episodes[number], self._outside[number]
        assert episode is not None
        if self._simulations[number] is None:
            return episode.advance()
        if outside is not None:
            outside.note()
        return episode.advance(int(self._runs["question"][number]))

    def _note_end(self, number: int, result: Result | None) -> None:
        if not self._runs["num_decisions"][number]:
            if not self._draws_left[number]:
                raise InputError(NO_DECISION)
            self._draw(number, None, None)
            return
        self.results[number], self._ended[number] = result, True
        self._mask[number] = 1  # the next action does not count
        simulation = self._simulations[number]
        assert simulation is not None
        jobs = simulation.parts.state.jobs
        jct_s = (jobs.finish_ns - jobs.arrival_ns) / NS_PER_S
        self._average_jct_s[number], self._runs["job_seconds"][number] = jct_s.mean(), jct_s.sum()
        self._runs["now_s"][number] = (jobs.finish_ns / NS_PER_S).max()

    def result(self, number: int) -> Result:
        """Return what the last run in a place ended with; to be asked before the next step, with which it begins anew.

        Raises
        ------
        InputError
            The run in that place has not ended.
        """
        if not self._ended[number]:
            raise InputError(f"the run in place {number} is under way; expected to be asked for a run that has ended")
        found = self.results[number]
        if found is None:
            ended = self._advanced(number)
            assert isinstance(ended, Result)
            found = self.results[number] = ended
            self._outside[number] = None  # it cannot begin again
        return found

    def _observed(self) -> Observation:
        return {"action_mask": self._mask.copy()} | {name: getattr(self._arrays, name).copy() for name in self._seen}

    def _infos(self, replaced: np.ndarray) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, bool)
        infos: dict[str, Any] = {"now_s": self._runs["now_s"].copy(), "_now_s": everywhere}
        infos |= {"replaced": replaced, "_replaced": everywhere}
        if self._ended.any():
            infos |= {"average_jct_s": self._average_jct_s.copy(), "_average_jct_s": self._ended.copy()}
            final = np.array([self._final(number) for number in range(self.num_envs)], object)
            infos |= {"final_info": final, "_final_info": self._ended.copy()}
        return infos

    def _final(self, number: int) -> dict[str, Any] | None:
        """Return what is told of an episode that has just ended, as Gymnasium's wrappers tell it; None of others."""
        if not self._ended[number]:
            return None
        average_jct_s = float(self._average_jct_s[number])
        episode = {"r": -average_jct_s / self._unit_s, "l": int(self._runs["num_decisions"][number])}
        return {"average_jct_s": average_jct_s, "now_s": float(self._runs["now_s"][number]), "episode": episode}

    def _end(self, number: int) -> None:
        """End the run in a place."""
        episode = self._episodes[number]
        if episode is not None:
            episode.close()
        self._episodes[number] = self._simulations[number] = self._outside[number] = None

    def close_extras(self, **_: Any) -> None:
        """End the runs that are under way."""
        for number in range(self.num_envs):
            self._end(number)
        self._begun = False
