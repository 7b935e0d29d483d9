"""Programmes that policies solve: a time limit, the best found if it is over, and a count of both.

A run in which no programme meets its limit is repeated to the bit by its seed; the limit is real time.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

_FOUND_IN_TIME = "the time limit was over, the best found is used"
_NOTHING_IN_TIME = "the time limit was over and nothing was found, so that all stays as it is"
_IMPOSSIBLE = "the programme has no solution, so that all stays as it is"


@dataclass(frozen=True, slots=True)
class SolverEvent:
    """A programme that was not solved to its optimum.

    Parameters
    ----------
    policy, now_s
        Which policy asked for it, and when, simulated seconds.
    jobs
        Whose programme it was, or how many jobs were in it.
    what
        What happened, and what is done instead.
    """

    policy: str
    now_s: float
    jobs: str
    what: str


@dataclass
class Solver:
    """Solves the programmes of one policy in one run.

    Parameters
    ----------
    policy
        Its name, for events.
    time_limit_s
        Of one programme, seconds of real time.

    Attributes
    ----------
    events
        Every programme that was not solved to its optimum, in order of time. Of each kind the first is told on stderr.
    """

    policy: str
    time_limit_s: float
    events: list[SolverEvent] = field(default_factory=list)

    def solve(self, model: Any, now_s: float, jobs: str, *, is_whole: bool) -> Any | None:
        """Return MathOpt's result with at least a feasible solution, or None.

        Parameters
        ----------
        model
            A ``mathopt.Model``.
        now_s, jobs
            For events.
        is_whole
            Whether all its variables are whole, with bounds: CP-SAT solves it then, GLOP otherwise.
        """
        from ortools.math_opt.python import mathopt

        result = mathopt.solve(
            model,
            mathopt.SolverType.CP_SAT if is_whole else mathopt.SolverType.GLOP,
            params=mathopt.SolveParameters(
                time_limit=timedelta(seconds=self.time_limit_s),
                threads=1 if is_whole else None,  # several threads of CP-SAT may find another of equally good solutions
            ),
        )
        reasons = mathopt.TerminationReason
        if result.termination.reason == reasons.OPTIMAL:
            return result
        if result.has_primal_feasible_solution():
            self._count(now_s, jobs, _FOUND_IN_TIME)
            return result
        over = result.termination.reason == reasons.NO_SOLUTION_FOUND
        self._count(now_s, jobs, _NOTHING_IN_TIME if over else _IMPOSSIBLE)
        return None

    def _count(self, now_s: float, jobs: str, what: str) -> None:
        if what not in self.counts():
            print(f"ddlsched: {self.policy} at {now_s} s, {jobs}: {what}; told once", file=sys.stderr, flush=True)
        self.events.append(SolverEvent(self.policy, now_s, jobs, what))

    def counts(self) -> Counter[str]:
        """Return how often what happened."""
        return Counter(event.what for event in self.events)
