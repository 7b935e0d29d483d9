"""Programmes that policies solve: a time limit, and the best found if it is over.

A run in which no programme meets its limit is repeated to the bit by its seed; the limit is real time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

_FOUND_IN_TIME = "the time limit was over, the best found is used"
_NOTHING_IN_TIME = "the time limit was over and nothing was found, so that all stays as it is"
_IMPOSSIBLE = "the programme has no solution, so that all stays as it is"


@dataclass
class Solver:
    """Solves the programmes of one policy in one run; what keeps one from its optimum is told once on stderr.

    Parameters
    ----------
    policy
        Its name, for what is told.
    time_limit_s
        Of one programme, seconds of real time.
    """

    policy: str
    time_limit_s: float
    told: set[str] = field(default_factory=set)

    def solve(self, model: Any, now_s: float, jobs: str, *, is_whole: bool) -> Mapping[Any, float] | None:
        """Return what each variable is in the best solution found, or None without one.

        Parameters
        ----------
        model
            A ``mathopt.Model``.
        now_s, jobs
            When it was asked for, simulated seconds, and whose it is, or how many jobs are in it, for what is told.
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
        reason, reasons = result.termination.reason, mathopt.TerminationReason
        found = result.has_primal_feasible_solution()
        if reason != reasons.OPTIMAL:
            nothing = _NOTHING_IN_TIME if reason == reasons.NO_SOLUTION_FOUND else _IMPOSSIBLE
            self._tell(now_s, jobs, _FOUND_IN_TIME if found else nothing)
        return result.variable_values() if found else None

    def _tell(self, now_s: float, jobs: str, what: str) -> None:
        if what not in self.told:
            print(f"ddlsched: {self.policy} at {now_s} s, {jobs}: {what}; told once", file=sys.stderr, flush=True)
        self.told.add(what)
