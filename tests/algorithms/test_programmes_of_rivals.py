"""Gavel, Sia and Rubick: decisions worked out by hand, shares met over time, programmes at their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from jobs_by_hand import elastic_job

import ddlsched
from algorithms.allocation.gavel import Gavel, max_min_shares
from algorithms.allocation.kinds import Kinds
from algorithms.allocation.rubick import Curve, Rubick, shared
from algorithms.allocation.sia import Configuration, Sia, best_configurations, configurations, placed, restart_factor
from algorithms.solving import Solver
from ddlsched.cluster.cluster import Server, Throughputs
from ddlsched.errors import InputError
from ddlsched.testing import capacity_view, elastic_job_view
from ddlsched.workload.elastic_job import LinearCurve


def solver(time_limit_s: float = 10.0) -> Solver:
    return Solver("allocation test", time_limit_s)


# --- Gavel: the programme


def test_each_job_goes_where_it_is_relatively_fastest() -> None:
    """Job 0 is twice as fast on kind 0, job 1 alike on both: 0 has kind 0 for itself and 1 kind 1."""
    shares = max_min_shares(np.array([[2.0, 1.0], [1.0, 1.0]]), [1, 1], [1, 1], solver())
    assert shares is not None
    assert shares == pytest.approx(np.eye(2))


def test_shares_are_of_gpus_and_not_of_jobs() -> None:
    """Two GPUs; x1 = x2 = 2 x3 (size x share) and x1 + x2 + 2 x3 = 2, so that x is 2/3, 2/3 and 1/3."""
    shares = max_min_shares(np.ones((3, 1)), [1, 1, 2], [2], solver())
    assert shares is not None
    assert shares[:, 0] == pytest.approx([2 / 3, 2 / 3, 1 / 3])


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds, sizes, workers = rng.uniform(0.1, 3, (9, 3)), rng.integers(1, 5, 9).tolist(), [4, 3, 6]
    shares = max_min_shares(speeds, sizes, workers, solver())
    assert shares is not None
    assert (shares >= -1e-9).all()
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (np.array(sizes) @ shares <= np.array(workers) + 1e-9).all()
    assert all(shares[m, k] == 0 for m, size in enumerate(sizes) for k in range(3) if size > workers[k])


@pytest.mark.long
@pytest.mark.parametrize("policy", [Gavel(round_s=10.0), Sia(round_s=10.0), Rubick(round_s=10.0)])
def test_item_15_while_no_gpu_is_left_all_jobs_wait(policy: Any) -> None:
    """All servers are away from 15 s to 40 s, and a job of 20 s comes while they are."""
    away = ddlsched.Disturbances(outages=tuple(ddlsched.Outage(server=n, from_s=15.0, to_s=40.0) for n in range(2)))
    jobs = [fixed_job("a", 1, 20), fixed_job("b", 1, 20), fixed_job("c", 1, 20, arrival_s=20.0)]
    result = run(policy, jobs, ddlsched.Cluster(num_servers=2, gpus_per_server=1), disturbances=away)
    assert (result.jobs["finish_s"] >= 45.0 - 1e-9).all()


def test_there_are_no_shares_of_no_gpus() -> None:
    shares = max_min_shares(np.ones((2, 2)), [1, 1], [0, 0], solver())
    assert shares is not None
    assert shares.tolist() == [[0.0, 0.0], [0.0, 0.0]]


# --- Gavel: rounds


def fixed_job(job_id: str, gpus: int, seconds: float, **given: Any) -> Any:
    """A job of a fixed size that takes so many seconds, in iterations of 1 s."""
    fields = {"min_gpus": gpus, "max_gpus": gpus, "gpu_batch": 1, "samples": round(seconds) * gpus} | given
    return elastic_job(job_id, curve=LinearCurve(fixed_s=1.0, sample_s=0.0), **fields)


def run(allocation: Any, jobs: list[Any], cluster: ddlsched.Cluster, **given: Any) -> Any:
    return ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, allocation=allocation, **given)


def test_two_jobs_take_turns_on_one_gpu() -> None:
    """Rounds of 10 s: a 0-10, b 10-20, a 20-30, b 30-40 (each has 20 s to train)."""
    jobs = [fixed_job("a", 1, 20), fixed_job("b", 1, 20)]
    result = run(Gavel(round_s=10.0), jobs, ddlsched.Cluster(num_servers=1, gpus_per_server=1))
    assert result.jobs["finish_s"].tolist() == pytest.approx([30.0, 40.0])


def test_time_is_met_in_proportion_to_shares() -> None:
    """Sizes 1, 1, 2 on 2 GPUs: shares 2/3, 2/3, 1/3. All have 60 s left: of 90 s the first two get all they need."""
    jobs = [fixed_job("a", 1, 60), fixed_job("b", 1, 60), fixed_job("c", 2, 60)]
    result = run(Gavel(round_s=10.0), jobs, ddlsched.Cluster(num_servers=1, gpus_per_server=2))
    finish_s = dict(zip(result.jobs["job_id"], result.jobs["finish_s"], strict=True))
    assert finish_s["a"] == finish_s["b"] == pytest.approx(90.0, abs=10.0)
    assert finish_s["c"] == pytest.approx(120.0)


KINDS = ddlsched.Cluster(
    servers=(Server(gpus=1, gpu_kind="v100"), ddlsched.Server(gpus=1, gpu_kind="k80")),
    throughputs=Throughputs(values=(("x", "v100", 1.0), ("x", "k80", 1.0), ("y", "v100", 1.0), ("y", "k80", 0.1))),
)


def test_kinds_matter_and_blind_they_do_not() -> None:
    """y is slow on a K80 (x 0.1), x is not: y gets the V100. Blind, the first gets the first."""
    jobs = [fixed_job("a", 1, 10, model="x"), fixed_job("b", 1, 10, model="y")]
    seeing = run(Gavel(round_s=1000.0), jobs, KINDS)
    assert seeing.jobs["finish_s"].tolist() == pytest.approx([10.0, 10.0])
    blind = run(Gavel(round_s=1000.0, blind=True), jobs, KINDS)
    assert blind.jobs["finish_s"].tolist() == pytest.approx([10.0, 100.0])


def test_a_missing_throughput_is_told() -> None:
    with pytest.raises(InputError, match=r"job 'a': throughputs has no throughput in the row of model 'z'"):
        run(Gavel(), [fixed_job("a", 1, 10, model="z")], KINDS)


# --- Sia


def test_configurations_are_powers_of_two_and_whole_servers() -> None:
    assert configurations(3, 8) == [1, 2, 4, 8, 16, 24]
    assert configurations(2, 6) == [1, 2, 4, 6, 12]


def test_a_restart_counts_less_the_older_a_job() -> None:
    """(100 - 1 x 30) / (100 + 30); a job younger than one restart is not held back."""
    assert restart_factor(100.0, 1, 30.0) == pytest.approx(70 / 130)
    assert restart_factor(20.0, 3, 30.0) == 1.0
    assert restart_factor(31.0, 3, 30.0) == 0.01


def test_gpus_go_to_the_job_that_scales() -> None:
    """4 GPUs, p = -0.5: two each cost 2^-0.5 (0.71) + 1.1^-0.5 (0.95) = 1.66; all four for the first 0.5 + λ."""
    scales = {Configuration(0, n): float(n) for n in (1, 2, 4)}
    stays = {Configuration(0, 1): 1.0, Configuration(0, 2): 1.1}
    found = best_configurations([scales, stays], [4], power=-0.5, queue_price=1.1, solver=solver())
    assert found == [Configuration(0, 4), None]  # 0.5 + 1.1 = 1.60 < 1.66
    found = best_configurations([scales, stays], [4], power=-0.5, queue_price=1.2, solver=solver())
    assert found == [Configuration(0, 2), Configuration(0, 2)]


@pytest.mark.parametrize("seed", range(6))
def test_the_programme_is_the_best_of_all(seed: int) -> None:
    """Against every combination of three jobs' configurations of two kinds."""
    rng = np.random.default_rng(seed)
    known = [Configuration(kind, n) for kind in (0, 1) for n in (1, 2, 4)]
    goodputs = [{c: float(rng.uniform(1, 4)) for c in known} for _ in range(3)]

    def price(choice: tuple[Configuration | None, ...]) -> float:
        return sum(1.1 if c is None else round(g[c] ** -0.5, 2) for g, c in zip(goodputs, choice, strict=True))

    def fits(choice: tuple[Configuration | None, ...]) -> bool:
        return all(sum(c.num_gpus for c in choice if c and c.kind == kind) <= 4 for kind in (0, 1))

    options = [None, *known]
    every = [(a, b, c) for a in options for b in options for c in options]
    found = best_configurations(goodputs, [4, 4], power=-0.5, queue_price=1.1, solver=solver())
    assert found is not None
    assert fits(tuple(found))
    assert price(tuple(found)) == pytest.approx(min(price(choice) for choice in every if fits(choice)))


def test_sia_lets_a_job_grow_in_the_next_round() -> None:
    """A GPU each (1 + 1 < 0.71 + 1.4) until b ends at 10 s; a has 60 samples left at 20 s, and two GPUs then."""
    jobs = [
        elastic_job("a", samples=80, max_gpus=2, gpu_batch=1, curve=LinearCurve(fixed_s=1.0, sample_s=0.0)),
        fixed_job("b", 1, 10),
    ]
    result = run(
        Sia(round_s=20.0, restart_s=0.0, queue_price=1.4), jobs, ddlsched.Cluster(num_servers=1, gpus_per_server=2)
    )
    assert result.jobs["finish_s"].tolist() == pytest.approx([50.0, 10.0])


@pytest.mark.parametrize(("sizes", "served"), [((5, 6), False), ((5, 8), True), ((5, 5), True)])
def test_sia_refuses_a_job_that_would_wait_for_ever(sizes: tuple[int, int], served: bool) -> None:
    """On a server it gives 1, 2, 4 or 8 GPUs; a job of a fixed size has that."""
    job = elastic_job("a", samples=40, min_gpus=sizes[0], max_gpus=sizes[1], gpu_batch=1)
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=8)
    if served:
        assert run(Sia(), [job], cluster).jobs["finish_s"].notna().all()
    else:
        with pytest.raises(InputError, match=r"job 'a' runs on 5 to 6 GPUs, of which sia gives none; expected 1, 2, 4"):
            run(Sia(), [job], cluster, until_s=1000.0)


@pytest.mark.parametrize("policy", [Gavel(), Sia()])
def test_a_job_larger_than_every_kind_is_refused(policy: Any) -> None:
    mixed = ddlsched.Cluster(servers=[Server(gpus=4, gpu_memory_mb=1.0, relative_speed=s) for s in (1.0, 2.0)])
    with pytest.raises(InputError, match=r"job 'a' (needs 6|runs on 6 to 6) GPUs"):
        run(policy, [elastic_job("a", min_gpus=6, max_gpus=6)], mixed, until_s=1000.0)


def test_a_job_that_restarts_is_not_stopped_for_others() -> None:
    """Each of two others on half of its GPUs would be worth more than what it loses by waiting."""
    restarting, other = {Configuration(0, 4): 1.0}, {Configuration(0, 2): 4.0}
    given: dict[str, Any] = {"power": -0.5, "queue_price": 1.1, "solver": solver()}
    assert best_configurations([restarting, other, other], [4], **given) == [None, *[Configuration(0, 2)] * 2]
    assert best_configurations([restarting, other, other], [4], **given, keep=[0]) == [Configuration(0, 4), None, None]


def allocated(*views: Any, capacity: Any) -> dict[str, tuple[int, ...]]:
    """Return the GPUs that Sia gives jobs in its first round."""
    rounds = Sia(restart_s=0.0).begin(capacity.cluster, np.random.default_rng(1))
    return {job_id: of_job.gpus for job_id, of_job in rounds.allocate(views, capacity, 0.0).items()}


def test_sia_keeps_a_job_that_restarts() -> None:
    held = replace(elastic_job_view(number=0, min_gpus=4, max_gpus=4, gpus=range(4)), rescaling_left_s=5.0)
    waiting = [elastic_job_view(number=n, max_gpus=2) for n in (1, 2)]
    capacity = capacity_view(num_servers=1, held=range(4))
    assert allocated(held, *waiting, capacity=capacity) == {"job-0": (0, 1, 2, 3)}


def test_smaller_jobs_of_sia_move_for_one_that_needs_a_whole_server() -> None:
    """Two jobs of two GPUs on two servers of four; a third grows to four."""
    held = [elastic_job_view(number=n, max_gpus=2, gpus=gpus) for n, gpus in enumerate([(0, 1), (4, 5)])]
    capacity = capacity_view(num_servers=2, held=(0, 1, 4, 5))
    grown = elastic_job_view(number=2, max_gpus=4)
    found = allocated(*held, grown, capacity=capacity)
    assert [len(found[f"job-{n}"]) for n in range(3)] == [2, 2, 4]
    assert all(len({gpu // 4 for gpu in gpus}) == 1 for gpus in found.values())
    assert found["job-1"] == (4, 5)


def test_nobody_moves_if_that_does_not_help() -> None:
    """One of the two restarts, so that no server can be freed."""
    capacity = capacity_view(num_servers=2, held=(0, 1, 4, 5))
    given, stay = {0: Configuration(0, 2), 1: Configuration(0, 2), 2: Configuration(0, 4)}, {0: (0, 1), 1: (4, 5)}
    found = placed(given, stay, range(8), Kinds.of(capacity.cluster), tied=[0, 1])
    assert found == {0: (0, 1), 1: (4, 5), 2: (2, 3, 6, 7)}


# --- Rubick

LINEAR, FLAT = Curve(1, (1.0, 2.0, 3.0, 4.0)), Curve(1, (1.0, 1.1, 1.15, 1.16))


def test_the_best_size_is_the_smallest_of_the_fastest() -> None:
    assert Curve(2, (1.0, 1.5, 1.5, 1.4)).best == 3


def test_a_job_that_waits_takes_gpus_from_those_that_lose_less() -> None:
    """FLAT has all four: its GPUs beyond the first are worth 0.16 in all to it, 1 each to the other."""
    assert shared([FLAT, LINEAR], [4, 0], 4, Rubick()) == [1, 3]
    assert shared([LINEAR, FLAT], [4, 0], 4, Rubick()) == [4, 0]  # 1 is not more than the 1 that it would lose


def test_nobody_goes_below_its_fewest_gpus() -> None:
    least = Curve(2, (1.0, 1.0, 1.0))
    assert shared([least, LINEAR], [2, 0], 2, Rubick()) == [2, 0]


def test_spare_gpus_go_where_the_slope_is_steepest_while_half_is_free() -> None:
    assert shared([LINEAR, FLAT], [1, 1], 8, Rubick()) == [3, 1]
    assert shared([FLAT], [1], 8, Rubick(least_gain=0.2)) == [1]


# --- bad parameters, and programmes without a solution or without time


@pytest.mark.parametrize(
    ("policy", "given", "said"),
    [
        (Gavel, {"round_s": 0.0}, "gavel: round_s is 0.0; expected seconds from 0.001"),
        (Gavel, {"blind": 1}, "gavel: blind is 1; expected True or False"),
        (Gavel, {"time_limit_s": 0.0}, "gavel: time_limit_s is 0.0; expected seconds > 0"),
        (Sia, {"power": 0.0}, "sia: power is 0; expected another number from -10 to 10"),
        (Sia, {"queue_price": -1.0}, "sia: queue_price is -1.0; expected a number from 0"),
        (Sia, {"restart_s": -1.0}, "sia: restart_s is -1.0; expected seconds from 0"),
        (Sia, {"round_s": -1.0}, "sia: round_s is -1.0; expected seconds from 0.001"),
        (Sia, {"time_limit_s": -1.0}, "sia: time_limit_s is -1.0; expected seconds > 0"),
        (Rubick, {"round_s": 0.0}, "rubick: round_s is 0.0; expected seconds from 0.001"),
        (Rubick, {"spare_share": 2.0}, "rubick: spare_share is 2.0; expected a number from 0 to 1"),
        (Rubick, {"least_gain": -1.0}, "rubick: least_gain is -1.0; expected a number from 0"),
    ],
)
def test_bad_parameters_are_refused(policy: Any, given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policy(**given)


def knapsack(count: int) -> Any:
    """Return a programme that takes a solver long to prove, with an obvious feasible solution."""
    from ortools.math_opt.python import mathopt

    rng = np.random.default_rng(1)
    model = mathopt.Model(name="hard")
    x = [model.add_binary_variable() for _ in range(count)]
    for _ in range(30):
        model.add_linear_constraint(
            mathopt.fast_sum(int(w) * v for w, v in zip(rng.integers(50, 999, count), x, strict=True)) <= 9999
        )
    model.maximize(mathopt.fast_sum(int(w) * v for w, v in zip(rng.integers(50, 999, count), x, strict=True)))
    return model


@pytest.mark.long
def test_after_its_time_limit_the_best_found_is_used_and_that_is_told_once(capfd: Any) -> None:
    limited = solver(time_limit_s=0.5)
    for now_s in (7.0, 8.0):
        assert limited.solve(knapsack(300), now_s, "300 jobs", is_whole=True) is not None
    told = capfd.readouterr().err
    assert told.count("allocation test at 7.0 s, 300 jobs: the time limit was over, the best found is used") == 1
    assert "8.0 s" not in told


def test_a_programme_without_a_solution_is_told(capfd: Any) -> None:
    from ortools.math_opt.python import mathopt

    model = mathopt.Model(name="impossible")
    model.add_linear_constraint(model.add_variable(lb=0.0, ub=1.0) >= 2)
    assert solver().solve(model, 3.0, "job 'a'", is_whole=False) is None
    assert "at 3.0 s, job 'a': the programme has no solution" in capfd.readouterr().err


@dataclass
class Nothing:
    """A solver that finds nothing."""

    def solve(self, *given: Any, **named: Any) -> None:
        return None


def test_gavel_and_sia_go_on_with_what_they_have_if_nothing_is_found() -> None:
    assert max_min_shares(np.ones((1, 1)), [1], [1], Nothing()) is None  # type: ignore[arg-type]
    assert best_configurations([{}], [1], power=-0.5, queue_price=1.1, solver=Nothing()) is None  # type: ignore[arg-type]
