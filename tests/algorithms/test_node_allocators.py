from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from algorithms.allocation.count_programme import CountProgramme, best_counts
from algorithms.allocation.node_milp import SOLVERS, NodeMilp, _add_trainer, best_map, breakpoints
from algorithms.allocation.sharing import NodeEqualShare
from ddlsched.errors import InputError, SimulationError
from ddlsched.workload.trainers import Trainer, gains, objective, rates_at


@st.composite
def problems(draw, most_jobs: int = 3, most_nodes: int = 5):
    """Trainers, the map of nodes to them, and the look-ahead; rates of any shape, also falling ones."""
    num_jobs = draw(st.integers(1, most_jobs))
    owner = draw(st.lists(st.sampled_from([None, *range(num_jobs)]), min_size=1, max_size=most_nodes))
    trainers = []
    for j in range(num_jobs):
        nodes = owner.count(j)
        min_nodes = draw(st.integers(1, nodes or 3))
        max_nodes = draw(st.integers(max(nodes, min_nodes), most_nodes + 1))
        steps = draw(st.lists(st.integers(0, 9), min_size=max_nodes, max_size=max_nodes))
        least = draw(st.integers(0, 1)) if nodes else 0
        trainers.append(
            Trainer(
                nodes=nodes,
                rates=np.array([0.0, *steps]),
                min_nodes=min_nodes,
                scale_up_s=draw(st.sampled_from([0.0, 4.5, 18.0])),
                scale_down_s=draw(st.sampled_from([0.0, 4.5, 12.0])),
                least=least,
                most=draw(st.sampled_from([None, max(nodes, 1)])),
            )
        )
    return trainers, owner, draw(st.sampled_from([0.5, 10.0, 120.0]))


def best_by_trying(trainers, owner, lookahead_s: float) -> float:
    """The best objective over all maps of nodes to trainers in which each trainer only adds or only loses nodes."""
    best = -np.inf
    for new in product([None, *range(len(trainers))], repeat=len(owner)):
        migrates = False
        for j in range(len(trainers)):
            added = any(a == j and b != j for a, b in zip(new, owner, strict=True))
            lost = any(a != j and b == j for a, b in zip(new, owner, strict=True))
            migrates |= added and lost
        counts = [new.count(j) for j in range(len(trainers))]
        fits = all(n <= trainer.max_nodes for n, trainer in zip(counts, trainers, strict=True))
        if not migrates and fits:
            best = max(best, objective(trainers, counts, lookahead_s))
    return best


@pytest.mark.long
@given(problems())
def test_the_programme_finds_the_best_of_all_maps_without_migration(problem) -> None:
    trainers, owner, lookahead_s = problem
    counts = CountProgramme(lookahead_s=lookahead_s).counts(trainers, len(owner))
    assert sum(counts) <= len(owner)
    assert objective(trainers, counts, lookahead_s) == pytest.approx(best_by_trying(trainers, owner, lookahead_s))


@pytest.mark.long
@settings(max_examples=examples(25, by_default=8))
@given(problems(most_jobs=4, most_nodes=9), st.sampled_from(sorted(SOLVERS)))
def test_the_programme_equals_the_node_level_milp(problem, solver) -> None:
    trainers, owner, lookahead_s = problem
    counts = CountProgramme(lookahead_s=lookahead_s).counts(trainers, len(owner))
    found = best_map(trainers, owner, lookahead_s=lookahead_s, solver=solver)
    best = objective(trainers, counts, lookahead_s)
    of_map = objective(trainers, [found.count(j) for j in range(len(trainers))], lookahead_s)
    assert of_map == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_the_milp_moves_no_node_from_job_to_job_for_nothing() -> None:
    rates = np.array([0.0, 4.0, 6.0, 7.0])
    trainers = [Trainer(nodes=2, rates=rates, scale_up_s=1.0), Trainer(nodes=1, rates=rates, scale_up_s=1.0)]
    found = best_map(trainers, [0, 0, 1, None], lookahead_s=100.0)
    assert found == [0, 0, 1, 1]


def test_of_equally_good_sizes_those_with_the_fewest_changes_are_taken() -> None:
    linear = np.arange(9.0)
    for now in ([4, 4], [8, 0], [0, 8], [3, 5]):
        assert best_counts([linear, linear], 8, now) == now


def test_ties_are_real_ties_whatever_the_order_of_additions() -> None:
    tenths = np.array([0.0, 0.1, 0.2, 0.30000000000000004])
    assert best_counts([tenths] * 3, 3, [0, 3, 0]) == [0, 3, 0]
    assert best_counts([tenths] * 3, 3, [1, 1, 1]) == [1, 1, 1]


@pytest.mark.long
@given(problems(), st.randoms())
def test_the_order_of_jobs_does_not_change_the_optimum(problem, random) -> None:
    trainers, owner, lookahead_s = problem
    shuffled = random.sample(trainers, len(trainers))
    first, second = (
        CountProgramme(lookahead_s=lookahead_s).counts(order, len(owner)) for order in (trainers, shuffled)
    )
    assert objective(trainers, first, lookahead_s) == pytest.approx(objective(shuffled, second, lookahead_s))


def test_a_costly_change_is_not_made_within_a_short_look_ahead() -> None:
    trainer = Trainer(nodes=4, rates=np.arange(9.0), scale_up_s=18.0, scale_down_s=12.0)
    assert CountProgramme(lookahead_s=10).counts([trainer], 8) == [4]  # 10 x 4 more samples, 18 x 4 lost
    assert CountProgramme(lookahead_s=19).counts([trainer], 8) == [8]


def test_a_start_from_nothing_is_free() -> None:
    trainer = Trainer(nodes=0, rates=np.arange(9.0), scale_up_s=1e9)
    assert CountProgramme(lookahead_s=1).counts([trainer], 8) == [8]


def test_least_sizes_that_do_not_fit_are_refused() -> None:
    pinned = Trainer(nodes=0, rates=np.arange(5.0), least=4)
    with pytest.raises(InputError, match="more than the 3 nodes"):
        CountProgramme().counts([pinned], 3)


def test_no_jobs_get_nothing() -> None:
    assert CountProgramme().counts([], 5) == []
    assert NodeEqualShare().counts([], 5) == []
    assert NodeMilp().counts([], 5) == []


def test_no_nodes_are_shared_out_to_nobody() -> None:
    trainers = [Trainer(nodes=0, rates=np.arange(9.0))] * 2
    for allocator in (CountProgramme(), NodeEqualShare(), NodeMilp()):
        assert allocator.counts(trainers, 0) == [0, 0]


def test_equal_share_gives_what_is_left_over_to_the_first_that_have_room() -> None:
    trainers = [Trainer(nodes=0, rates=np.arange(most + 1.0)) for most in (4, 8, 8)]
    assert NodeEqualShare().counts(trainers, 11) == [4, 4, 3]
    assert NodeEqualShare().counts(trainers, 2) == [2, 0, 0]
    assert NodeEqualShare().counts(trainers, 40) == [4, 8, 8]


@pytest.mark.long
@given(problems())
def test_equal_share_gives_allowed_sizes_that_fit(problem) -> None:
    trainers, owner, _ = problem
    counts = NodeEqualShare().counts(trainers, len(owner))
    assert sum(counts) <= len(owner)
    assert all(trainer.allowed()[n] or n == 0 for n, trainer in zip(counts, trainers, strict=True))


@pytest.mark.long
def test_the_milp_answers_within_its_time_limit_or_says_so() -> None:
    rng = np.random.default_rng(1)
    trainers = [Trainer(nodes=0, rates=np.append(0.0, rng.uniform(0, 9, 64).cumsum())) for _ in range(10)]
    with pytest.raises(SimulationError, match=r"no solution found|time limit"):
        best_map(trainers, [None] * 60, lookahead_s=10, time_limit_s=0.001)


def test_breakpoints_are_where_the_rates_bend() -> None:
    trainer = Trainer(nodes=0, rates=rates_at([(1, 2.0), (4, 8.0), (8, 10.0)], 10), min_nodes=2)
    assert breakpoints(trainer) == [0, 2, 4, 8, 10]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CountProgramme(lookahead_s=-1), "lookahead_s is -1"),
        (lambda: CountProgramme(most_jobs=0), "most_jobs is 0"),
        (lambda: NodeMilp(solver="simplex"), "expected one of highs, scip, cp-sat"),
        (lambda: NodeMilp(scale_up_s=float("nan")), "scale_up_s is nan"),
        (lambda: NodeEqualShare(most_jobs=1.5), "most_jobs is 1.5"),
        (lambda: Trainer(nodes=3, rates=np.arange(3.0)), "nodes is 3"),
        (lambda: Trainer(nodes=0, rates=np.array([1.0, 2.0])), "rates are"),
        (lambda: best_map([Trainer(nodes=1, rates=np.arange(3.0))], [None], lookahead_s=1), "the map gives it 0"),
    ],
)
def test_what_cannot_be_is_refused(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_gains_are_those_of_the_papers_objective() -> None:
    trainer = Trainer(nodes=2, rates=np.array([0.0, 3.0, 5.0, 6.0]), scale_up_s=2.0, scale_down_s=1.0)
    np.testing.assert_allclose(gains(trainer, 10.0), [-5.0, 30.0 - 5.0, 50.0, 60.0 - 10.0])


def test_on_a_piece_the_rate_grows_from_its_begin_to_its_end() -> None:
    steep, flat = (Trainer(nodes=nodes, rates=np.arange(9.0) * slope) for nodes, slope in ((1, 1.0), (0, 0.9)))
    assert best_map([steep, flat], [0, *[None] * 7], lookahead_s=100.0) == [0] * 8


@pytest.mark.parametrize(("has", "is_possible"), [((1, 0), True), ((1, 1), True), ((0, 0), True), ((0, 1), False)])
def test_no_job_gives_a_node_and_takes_another(has: tuple[int, int], is_possible: bool) -> None:
    mathopt = pytest.importorskip("ortools.math_opt.python.mathopt")
    model = mathopt.Model()
    nodes = [model.add_integer_variable(lb=value, ub=value) for value in has]
    _add_trainer(model, Trainer(nodes=1, rates=np.arange(3.0)), nodes, [True, False], 1.0)
    result = mathopt.solve(model, mathopt.SolverType.HIGHS)
    assert result.has_primal_feasible_solution() == is_possible
