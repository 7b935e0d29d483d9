"""What all environments have in common: a run that stands still at decisions, its steps, masks, rewards and seeds."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import greenlet
import gymnasium
import numpy as np
from gymnasium import spaces

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.policies.job_view import JobsTogether
from ddlsched.policies.views import JobView
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.units import is_whole, s_from_ns
from ddlsched.workload.job import Workload
from ddlsched.workload.workload_files import workload_of


class JobSeconds:
    """Counts job-seconds from decision to decision.

    A job that has ended counts up to the first decision after its end; :meth:`rest` puts that right at the end of the
    run.

    Parameters
    ----------
    workload
        Whose jobs arrive.
    """

    def __init__(self, workload: Workload) -> None:
        self._arrivals_s = np.sort([s_from_ns(job.arrival_ns) for job in workload])  # as the clock has them
        self._num_arrived = self._num_ended = 0
        self._num_there: int | None = None
        self._running: dict[int, JobView] = {}
        self._together: JobsTogether | None = None
        self._counted_s, self._now_s = 0.0, -1.0

    def started(self, job: JobView) -> None:
        """Note a job that runs from now on."""
        self._running[job.number], self._together = job, None

    def there(self, num_jobs: int) -> None:
        """Note how many jobs are there, of those that have arrived by the next call of :meth:`since`."""
        self._num_there = num_jobs

    def since(self, now_s: float) -> float:
        """Return the job-seconds since the last call."""
        if now_s == self._now_s:  # One of several decisions at an instant: nobody has arrived since the first.
            self._count_ended()
            return 0.0
        before = self._num_arrived
        self._num_arrived = int(np.searchsorted(self._arrivals_s, now_s, side="right"))
        new_s = float((now_s - self._arrivals_s[before : self._num_arrived]).sum())
        passed_s = (now_s - self._now_s) * (before - self._num_ended) + new_s
        self._count_ended()
        self._now_s = now_s
        self._counted_s += passed_s
        return passed_s

    def rest(self, sum_of_jct_s: float) -> float:
        """Return what is left to count of a run that has ended, negative if too much was counted."""
        return sum_of_jct_s - self._counted_s

    def _count_ended(self) -> None:
        if self._num_there is not None:
            self._num_ended = self._num_arrived - self._num_there
        elif self._running:
            if self._together is None:
                self._together = JobsTogether(self._running.values())
            left = self._together.column("iterations_left")  # of all at once: each decision asks
            if not left.all():
                self._running = {
                    number: job for (number, job), more in zip(self._running.items(), left, strict=True) if more
                }
                self._num_ended += int((left == 0).sum())
                self._together = None


Observation = dict[str, Any]
NO_DECISION = "the run has no decision to take; expected jobs among which something can be chosen"
_MOST_SEEDS = 1 << 31
_MOST_DRAWS = 100


class Decision(NamedTuple):
    """What has to be decided now.

    Attributes
    ----------
    now_s
        Simulated time, seconds.
    observation
        Of the environment's observation space, without the mask.
    mask
        Which actions are allowed, at least one of them.
    """

    now_s: float
    observation: dict[str, Any]
    mask: Any


Ask = Callable[[Decision], int]
"""What a policy calls to have something decided: from the decision to the action."""


class AskedPolicy:
    """A policy that an environment makes for one run, so that what it remembers ends with that run."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Self:
        """Return a copy, which alone remembers."""
        return copy.copy(self)


Asked = TypeVar("Asked")
"""What a simulation stands still with."""


class Stepped(Generic[Asked]):
    """A simulation in a greenlet of its own, so that a policy deep in the engine can wait for an answer.

    Parameters
    ----------
    run
        Simulates, with policies that call what they are given for each decision.
    """

    def __init__(self, run: Callable[[Callable[[Asked], int]], Result]) -> None:
        self._outside = greenlet.getcurrent()
        self._inside = greenlet.greenlet(lambda: run(self._outside.switch))

    def advance(self, action: int | None = None) -> Asked | Result:
        """Go on to the next decision, or to the end; ``action`` is the answer to the last one, None at the start.

        Raises
        ------
        DdlschedError
            As :func:`ddlsched.simulate`, and in another thread than that in which it began.
        """
        self._outside = greenlet.getcurrent()
        try:
            found: Asked | Result = self._inside.switch() if action is None else self._inside.switch(action)
        except greenlet.error:
            raise InputError("step: the episode began in another thread; expected reset in this one") from None
        return found

    def close(self) -> None:
        """End a simulation that stands still; what it has done is lost."""
        if self._inside and not self._inside.dead:
            with suppress(greenlet.error):  # one of another thread ends there, once nobody refers to it
                self._inside.throw(greenlet.GreenletExit)


def checked_actions(given: Any, num_actions: int, *num_runs: int) -> np.ndarray:
    """Return an action, or one for each of ``num_runs`` runs; raise InputError for all that is none."""
    try:
        actions = np.asarray(given)
    except ValueError:  # lists of unlike lengths
        actions = np.array(None)
    if actions.shape != num_runs or actions.dtype.kind not in "iu" or ((actions < 0) | (actions >= num_actions)).any():
        expected = "0 or 1" if num_actions == 2 else f"a whole number from 0 to {num_actions - 1}"
        begin, end = ("actions are", f" for each of {num_runs[0]} runs") if num_runs else ("action is", "")
        raise InputError(f"{begin} {given!r}; expected {expected}{end}")
    return actions


class SchedulingEnv(gymnasium.Env[Observation, Any]):
    """A run of the simulator, an episode; each step is a decision that somebody has to take.

    Observations are dictionaries of numbers from 0 to 1, with ``action_mask``, which is 1 where an action is allowed.
    An action that is not allowed is replaced by the first that is, and ``info["replaced"]`` is True. The reward of a
    step is minus the time that passed x the jobs that were there, / (jobs x ``unit_s``), so that an episode's return is
    exactly minus the average JCT / ``unit_s``.

    Parameters
    ----------
    workload
        Jobs; or a file, or a generator such as ``"stream:load=0.9,num_jobs=100"``, whose jobs each episode's seed
        makes.
    cluster
        By default the 64-GPU experiment's.
    settings
        Further arguments of :func:`ddlsched.simulate`, such as ``order="srsf"`` or ``exclusive=True``.
    unit_s
        Seconds that are a reward of -1; by default the mean time for which a job computes, so that an episode's return
        is of a like size whatever the jobs.

    Raises
    ------
    InputError
        An argument that cannot be, or no run with a decision.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        workload: Workload | str | Path,
        *,
        cluster: Cluster | None = None,
        settings: Mapping[str, Any] | None = None,
        unit_s: float | None = None,
    ) -> None:
        if unit_s is not None and not 0 < unit_s < math.inf:
            raise InputError(f"unit_s is {unit_s}; expected finite seconds above 0")
        self.workload, self.cluster, self.settings = workload, cluster or Cluster(), dict(settings or {})
        if taken := set(self.settings) & {"workload", "cluster", "seed", "until_s", *self.doors}:
            text = f"settings has {', '.join(sorted(taken))}; expected no argument that the environment gives itself"
            raise InputError(f"{text}, and none that cuts runs off")
        if unit_s is not None:
            self.unit_s = unit_s
        self.result: Result | None = None
        """Of the last episode that has ended."""
        self._stepped: Stepped[Decision] | None = None
        self._decision: Decision | None = None
        observed, num_actions = self._spaces()
        self.action_space = spaces.Discrete(num_actions)
        mask = spaces.Box(0, 1, (num_actions,), np.int8)
        boxes = {name: spaces.Box(0, 1, shape, np.float32) for name, shape in observed.items()}
        self.observation_space = spaces.Dict({**boxes, "action_mask": mask})

    @cached_property
    def unit_s(self) -> float:
        """Seconds that are a reward of -1."""
        jobs = self.workload if isinstance(self.workload, Workload) else workload_of(str(self.workload), 0)
        computing_ns = [job.iterations * job.compute_ns for job in jobs]
        return s_from_ns(round(sum(computing_ns) / len(computing_ns))) or 1.0

    action_space: spaces.Discrete
    doors: ClassVar[frozenset[str]]
    """The arguments of :func:`ddlsched.simulate` that the environment gives."""

    @abstractmethod
    def policies(self, ask: Ask, seconds: JobSeconds) -> dict[str, Any]:
        """Return the policies of a run that take their decisions from ``ask``, by argument of ``simulate``."""

    @abstractmethod
    def _spaces(self) -> tuple[dict[str, tuple[int, ...]], int]:
        """Return the shapes of what is observed, beside the mask, and how many actions there are."""

    def _check(self, jobs: Workload) -> None:
        """Raise InputError about jobs that the environment has no decisions for; by default none."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; its jobs' seed is drawn, or is ``options["seed"]``, as in ``simulate(seed=...)``.

        A run without any decision is no episode: another is drawn, up to 100 times, unless its seed or its jobs are
        given.
        """
        for draw in range(self._draws(options)):
            first = self._begun(seed if draw == 0 else None, options)
            if not isinstance(first, Result):
                self._decision = first
                self._before_s = self._seconds.since(first.now_s)
                return self._observed(first), {"now_s": first.now_s}
        raise InputError(NO_DECISION)

    def _begun(self, seed: int | None, options: dict[str, Any] | None) -> Decision | Result:
        """Begin a run; return its first decision, or what it ended with."""
        jobs, of_run = self.drawn_run(seed, options)
        self._seconds = JobSeconds(jobs)

        def run(ask: Ask) -> Result:
            policies = self.policies(ask, self._seconds)
            return simulate(jobs, self.cluster, seed=of_run, **(self.settings | policies))

        self._stepped = Stepped(run)
        return self._stepped.advance()

    def _draws(self, options: dict[str, Any] | None) -> int:
        """Return how many runs may be drawn until one has a decision: one if its seed is given or jobs are the same."""
        fixed = isinstance(self.workload, Workload) or "seed" in (options or {})
        return 1 if fixed else _MOST_DRAWS

    def drawn_run(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Workload, int]:
        """End the episode under way, and return the next one's jobs and the seed of its run."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(_MOST_SEEDS))
        of_run = (options or {}).get("seed", drawn)
        if not is_whole(of_run, 0):
            raise InputError(f"options has seed {of_run!r}; expected a whole number >= 0")
        self.close()
        jobs = self.workload
        jobs = jobs if isinstance(jobs, Workload) else workload_of(str(jobs), of_run)
        self._check(jobs)
        self.num_jobs = len(jobs)
        return jobs, of_run

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take a decision and go on to the next one.

        Raises
        ------
        InputError
            The action is no whole number of the action space, or no episode is under way; what is stays as it is.
        """
        if self._decision is None or self._stepped is None:
            raise InputError("there is no episode under way; expected reset() first")
        before, chosen = self._decision, int(checked_actions(action, len(self._decision.mask)))
        allowed = bool(before.mask[chosen])
        found = self._stepped.advance(chosen if allowed else int(np.argmax(before.mask)))
        info: dict[str, Any] = {"replaced": not allowed}
        if isinstance(found, Result):
            return self._ended(found, before, info)
        self._decision = found
        reward = self._reward(self._seconds.since(found.now_s))
        return self._observed(found), reward, False, False, info | {"now_s": found.now_s}

    def _ended(
        self, result: Result, before: Decision, info: dict[str, Any]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.result, self._decision = result, None
        jct_s = result.jobs["jct_s"].to_numpy()
        info |= {"now_s": float(result.jobs["finish_s"].max()), "average_jct_s": float(jct_s.mean())}
        return self._observed(before), self._reward(self._seconds.rest(float(jct_s.sum()))), True, False, info

    def _reward(self, job_seconds: float) -> float:
        """Return what a step earns; the first one has what had passed before."""
        job_seconds, self._before_s = job_seconds + self._before_s, 0.0
        return -job_seconds / (self.num_jobs * self.unit_s)

    def action_masks(self) -> np.ndarray:
        """Return which actions are allowed now, as sb3-contrib's MaskablePPO asks for it."""
        if self._decision is None:
            raise InputError("there is no episode under way; expected reset() first")
        return np.array(self._decision.mask, bool)

    @staticmethod
    def _observed(decision: Decision) -> Observation:
        return {**decision.observation, "action_mask": np.asarray(decision.mask, np.int8)}

    def close(self) -> None:
        """End an episode that is under way."""
        if self._stepped is not None:
            self._stepped.close()
        self._stepped = self._decision = None
