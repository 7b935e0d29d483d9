"""Which ready transfers start, in many runs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.loop.layout import State
from ddlsched.engine.loop.transfer_steps import (
    MET,
    STEPPED_RUN,
    Standing,
    decide,
    loop_address,
)
from ddlsched.envs.communication_env import CommunicationEnv
from ddlsched.envs.scheduling_env import NO_DECISION, Observation
from ddlsched.envs.stepping import Stepped
from ddlsched.errors import InputError
from ddlsched.policies.doors import PlacementPolicy
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.units import is_whole
from ddlsched.workload.job import Workload

__all__ = ["CommunicationVectorEnv"]


class CommunicationVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """Many runs of :class:`~ddlsched.envs.communication_env.CommunicationEnv` in one process, stepped by compiled code.

    Decisions, observations, rewards and seeds are those of as many single environments. A run that has ended begins
    anew at the next step, whose action does not count for it and whose reward is 0 (Gymnasium's ``NEXT_STEP``).
    ``infos`` have ``now_s``, and ``average_jct_s`` of the runs that have just ended.

    Parameters
    ----------
    num_envs
        How many runs.
    workload, cluster, settings, unit_s, placement
        As of :class:`~ddlsched.envs.communication_env.CommunicationEnv`, the same for all.

    Raises
    ------
    InputError
        An argument that cannot be, no run with a decision, or ``NUMBA_DISABLE_JIT=1``.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        num_envs: int,
        workload: Workload | str | Path,
        *,
        cluster: Cluster | None = None,
        settings: Mapping[str, Any] | None = None,
        unit_s: float = 3600.0,
        placement: PlacementPolicy | str = "lwf",
    ) -> None:
        if not is_whole(num_envs, 1):
            raise InputError(f"num_envs is {num_envs!r}; expected a whole number from 1")
        if not hasattr(decide, "compile"):
            raise InputError("CommunicationVectorEnv is compiled; expected a process without NUMBA_DISABLE_JIT=1")
        self._envs = [
            CommunicationEnv(workload, cluster=cluster, settings=settings, unit_s=unit_s, placement=placement)
            for _ in range(num_envs)
        ]
        first = self._envs[0]
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.results: list[Result | None] = [None] * num_envs
        """Of the last episode of each run that has ended."""
        self._unit_s = unit_s
        self._episodes: list[Stepped[State] | None] = [None] * num_envs
        self._states: list[State | None] = [None] * num_envs
        self._runs = np.zeros(num_envs, STEPPED_RUN)
        self._transfers = np.zeros((num_envs, 1 + MET, 4), np.float32)
        self._most = np.zeros((num_envs, 1), np.float32)
        self._rewarded = np.zeros(num_envs)
        self._average_jct_s = np.zeros(num_envs)
        self._ended = np.zeros(num_envs, bool)
        self._draws_left = [0] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin all runs anew; the runs after the first get the seeds after ``seed``, unless it has one for each."""
        seeds = self._seeds(seed)
        if len(seeds) != self.num_envs:
            raise InputError(f"seed has {len(seeds)} numbers; expected one for each of {self.num_envs} runs")
        for number, own in enumerate(seeds):
            self._begin(number, own, options)
        self._go_on(list(range(self.num_envs)))
        self._rewarded[:] = 0.0
        return self._observed(), self._infos()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        return [*range(seed, seed + self.num_envs)] if isinstance(seed, int | np.integer) else [*seed]

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a decision in each run and go on to the next one."""
        if None in self._episodes:
            raise InputError("there is no episode under way; expected reset() first")
        again: list[int] = np.flatnonzero(self._ended).tolist()
        self._runs["action"] = actions
        if self._runs["action"].view(np.uint64).max() > 1:  # as a whole number from 0 also what is below
            raise InputError(f"actions are {actions!r}; expected 0 or 1 for each of {self.num_envs} runs")
        self._runs["standing"][~self._ended] = Standing.ACTION.value
        decide(self._runs, self._transfers, self._most, loop_address())
        stopped = self._stopped()
        for number in again:
            self._begin(number, None, None)
        self._go_on(stopped + again)
        job_seconds = self._runs["job_seconds"].copy()
        rewards = (self._rewarded - job_seconds) / (self._runs["num_jobs"] * self._unit_s)
        rewards[again] = job_seconds[again] = 0.0  # what has passed before the first decision counts for that
        self._rewarded = job_seconds
        return self._observed(), rewards, self._ended.copy(), np.zeros(self.num_envs, bool), self._infos()

    def _begin(self, number: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin an episode in a place."""
        self._draws_left[number] = self._envs[number].draws(options)
        self._draw(number, seed, options)

    def _draw(self, number: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """Put a new run in a place; it stands before its first event."""
        self._draws_left[number] -= 1
        env = self._envs[number]
        jobs, of_run = env.drawn_run(seed, options)
        self._end(number)

        def run(wait: Wait) -> Result:
            policies: dict[str, Any] = {"communication": _DecidedInBatches(wait), "placement": env.placement}
            return simulate(jobs, env.cluster, seed=of_run, **(env.settings | policies))

        self._episodes[number], self._ended[number] = Stepped(run), False
        self._runs[number] = np.zeros((), STEPPED_RUN)
        self._runs["num_jobs"][number] = len(jobs)
        self._runs["standing"][number] = Standing.QUESTION.value

    def _stopped(self) -> list[int]:
        """Return the runs that have a question for Python."""
        numbers: list[int] = np.flatnonzero((self._runs["standing"] == Standing.QUESTION.value) & ~self._ended).tolist()
        return numbers

    def _go_on(self, numbers: list[int]) -> None:
        """Let Python answer the questions of some runs, until all stand at a decision or have ended."""
        while numbers:
            for number in numbers:
                self._answer(number)
            decide(self._runs, self._transfers, self._most, loop_address())
            numbers = self._stopped()

    def _answer(self, number: int) -> None:
        """Let Python answer a run's question."""
        episode, run = self._episodes[number], self._runs[number]
        assert episode is not None
        found = episode.advance(int(run["question"])) if self._states[number] is not None else episode.advance()
        if isinstance(found, Result):
            self._note_end(number, found)
            return
        self._states[number] = found
        run["state"], run["standing"] = found.address, Standing.EVENTS.value

    def _note_end(self, number: int, result: Result) -> None:
        if not self._runs["num_decisions"][number]:
            if not self._draws_left[number]:
                raise InputError(NO_DECISION)
            self._draw(number, None, None)
            return
        self.results[number], self._ended[number] = result, True
        jct_s = result.jobs["jct_s"].to_numpy()
        self._average_jct_s[number], self._runs["job_seconds"][number] = jct_s.mean(), jct_s.sum()
        self._runs["now_s"][number] = result.jobs["finish_s"].max()

    def _observed(self) -> Observation:
        mask = np.ones((self.num_envs, 2), np.int8)
        return {"action_mask": mask, "most": self._most.copy(), "transfers": self._transfers.copy()}

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {"now_s": self._runs["now_s"].copy(), "_now_s": np.ones(self.num_envs, bool)}
        if self._ended.any():
            infos |= {"average_jct_s": self._average_jct_s.copy(), "_average_jct_s": self._ended.copy()}
        return infos

    def _end(self, number: int) -> None:
        """End the run in a place."""
        episode = self._episodes[number]
        if episode is not None:
            episode.close()
        self._episodes[number] = self._states[number] = None

    def close_extras(self, **_: Any) -> None:
        """End the runs that are under way."""
        for number in range(self.num_envs):
            self._end(number)


Wait: TypeAlias = Callable[[State], int]
"""What a run calls to have the loop go on: from its state to the question that Python has to answer."""


class _DecidedInBatches:
    """A communication policy whose run is taken on from outside."""

    compiled: ClassVar[bool] = False

    def __init__(self, wait: Wait) -> None:
        self.advance_run = wait

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Fail: the loop asks outside."""
        raise NotImplementedError
