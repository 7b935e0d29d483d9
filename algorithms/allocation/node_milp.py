"""The full allocation model of BFTrainer and MalleTrain: which node to which job, as a mixed-integer programme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from algorithms.allocation.sharing import Sharing, SharingPolicy
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, SimulationError
from ddlsched.ranges import ranged
from ddlsched.workload.trainers import Trainer

SOLVERS = {"highs": "HIGHS", "scip": "GSCIP", "cp-sat": "CP_SAT"}
"""Solvers by name, as OR-Tools' MathOpt calls them."""

_UNLIMITED_S = 1e9


@dataclass(frozen=True, kw_only=True)
class NodeMilp(SharingPolicy):
    """The same optimum as :class:`~algorithms.allocation.count_programme.CountProgramme`, by a solver: a cross-check.

    Parameters
    ----------
    lookahead_s
        T_fwd, for how long an allocation is thought to last, seconds.
    solver
        Whose: HiGHS, SCIP or CP-SAT.
    time_limit_s
        Of one decision; the best map found by then is taken.
    """

    lookahead_s: float = ranged(10.0, 0.0)
    solver: Literal["highs", "scip", "cp-sat"] = "highs"
    time_limit_s: float = ranged(60.0, 0.0)

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> Sharing:
        """Return what is asked during a run."""
        return Sharing(self, self)

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return the sizes of the best map found in time."""
        owner: list[int | None] = [j for j, trainer in enumerate(trainers) for _ in range(trainer.nodes)]
        owner += [None] * (num_nodes - len(owner))
        found = best_map(
            trainers, owner, lookahead_s=self.lookahead_s, solver=self.solver, time_limit_s=self.time_limit_s
        )
        return [found.count(j) for j in range(len(trainers))]


def best_map(
    trainers: Sequence[Trainer],
    owner: Sequence[int | None],
    *,
    lookahead_s: float,
    solver: str = "highs",
    time_limit_s: float = _UNLIMITED_S,
) -> list[int | None]:
    """Return the place of the trainer that gets each node, or None, in the best map of nodes without migration.

    A job only adds or only loses nodes.

    Binary x[j, i] says that trainer j has node i; its size is their sum. Throughput is piecewise linear, with
    a binary for the piece that the size is on. Binary up[j] and down[j] charge for a change, and hold the
    nodes of a growing job and keep others' from a shrinking one.

    Parameters
    ----------
    trainers, owner
        The jobs, and which of them has each node now (a place in ``trainers``, or None).
    lookahead_s
        T_fwd.
    solver
        One of :data:`SOLVERS`.
    time_limit_s
        After which the best map found so far is returned.

    Raises
    ------
    InputError
        An unknown solver, or a trainer whose size is not the number of its nodes.
    SimulationError
        The solver found no map in time.
    """
    from ortools.math_opt.python import mathopt

    if solver not in SOLVERS:
        raise InputError(f"malleable-milp: solver is {solver!r}; expected one of {', '.join(SOLVERS)}")
    for j, trainer in enumerate(trainers):
        if trainer.nodes != (count := sum(o == j for o in owner)):
            raise InputError(f"malleable-milp: trainer {j} has {trainer.nodes} nodes and the map gives it {count}")
    if not trainers or not owner:
        return list(owner)
    model = mathopt.Model(name="nodes")
    has = [[model.add_binary_variable(name=f"x{j},{i}") for i in range(len(owner))] for j in range(len(trainers))]
    for i in range(len(owner)):
        model.add_linear_constraint(sum(row[i] for row in has) <= 1)
    terms = [
        _add_trainer(model, trainer, has[j], [o == j for o in owner], lookahead_s) for j, trainer in enumerate(trainers)
    ]
    model.maximize(sum(terms))
    hint = {has[j][i]: float(o == j) for j in range(len(trainers)) for i, o in enumerate(owner)}
    result = mathopt.solve(
        model,
        getattr(mathopt.SolverType, SOLVERS[solver]),
        params=mathopt.SolveParameters(
            time_limit=timedelta(seconds=time_limit_s), relative_gap_tolerance=0.0, absolute_gap_tolerance=0.0
        ),
        model_params=mathopt.ModelSolveParameters(solution_hints=[mathopt.SolutionHint(variable_values=hint)]),
    )
    if not result.has_primal_feasible_solution():
        raise SimulationError(f"malleable-milp: no map ({result.termination.reason.name.lower().replace('_', ' ')})")
    values = result.variable_values()
    return [next((j for j, row in enumerate(has) if values[row[i]] > 0.5), None) for i in range(len(owner))]


def breakpoints(trainer: Trainer) -> list[int]:
    """Return the sizes at which a trainer's rates bend, with its least, its most, and 0."""
    rates, ends = trainer.rates, {0, trainer.min_nodes, trainer.max_nodes}
    bends = {n for n in range(1, trainer.max_nodes) if rates[n + 1] - rates[n] != rates[n] - rates[n - 1]}
    return sorted(ends | {n for n in bends if n > trainer.min_nodes})


def _add_trainer(model: Any, trainer: Trainer, has: Sequence[Any], held: Sequence[bool], lookahead_s: float) -> Any:
    """Add the constraints of one trainer and return its term of the objective."""
    size, now, most = sum(has), trainer.nodes, len(has)
    runs, up, down = (model.add_binary_variable() for _ in range(3))
    model.add_linear_constraint(size >= trainer.min_nodes * runs)
    model.add_linear_constraint(size <= trainer.max_nodes * runs)
    model.add_linear_constraint(size >= trainer.least)
    if trainer.most is not None:
        model.add_linear_constraint(size <= trainer.most)
    model.add_linear_constraint(size - now <= most * up)
    model.add_linear_constraint(now - size <= most * down)
    model.add_linear_constraint(up + down <= 1)
    for node, is_held in zip(has, held, strict=True):
        model.add_linear_constraint(node >= 1 - down if is_held else node <= up)
    cost = trainer.rate * (trainer.scale_up_s * up + trainer.scale_down_s * down)
    return lookahead_s * _throughput(model, trainer, size, runs) - cost


def _throughput(model: Any, trainer: Trainer, size: Any, runs: Any) -> Any:
    """Return the rate at a size: on the one piece that is chosen, its beginning and how far beyond the size is.

    How far is a whole number, as the size is, which suits solvers that know no other (CP-SAT).
    """
    rates, points = trainer.rates, [n for n in breakpoints(trainer) if n]
    pieces = list(pairwise(points)) or [(points[0], points[0])]
    chosen = [model.add_binary_variable() for _ in pieces]
    beyond = [model.add_integer_variable(lb=0, ub=end - start) for start, end in pieces]
    model.add_linear_constraint(sum(chosen) == runs)
    model.add_linear_constraint(
        sum(start * z + d for (start, _), z, d in zip(pieces, chosen, beyond, strict=True)) == size
    )
    rate = 0.0
    for (start, end), z, d in zip(pieces, chosen, beyond, strict=True):
        model.add_linear_constraint(d <= (end - start) * z)
        slope = float(rates[end] - rates[start]) / max(end - start, 1)
        rate += float(rates[start]) * z + slope * d
    return rate
