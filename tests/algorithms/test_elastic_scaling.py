"""The scalability analyser, the exact programme, the autoscaler and the mix of elastic jobs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model
from tiers import examples

import ddlsched
from algorithms.allocation.elastic_scaling import ElasticScaling, analyse, best_counts, packed
from ddlsched.errors import InputError
from ddlsched.policies.doors import DROP, Allocation
from ddlsched.testing import capacity_view, elastic_job_view
from ddlsched.workload.elastic_job import BatchCurve, ConstantRescaleCost, ElasticJob, LinearCurve, ThroughputCurve
from ddlsched.workload.generators.elastic_mix import CATEGORIES, elastic_mix

# ---- the programme


@st.composite
def programmes(draw, most_jobs, most_choices, most_gpus):
    """Return whole values (as floats), some of them impossible, and a number of GPUs."""
    jobs, choices = draw(st.integers(1, most_jobs)), draw(st.integers(1, most_choices))
    value = st.one_of(st.integers(-3, 20).map(float), st.just(-np.inf))
    rows = draw(st.lists(st.lists(value, min_size=choices + 1, max_size=choices + 1), min_size=jobs, max_size=jobs))
    return np.array(rows), draw(st.integers(0, most_gpus))


def value_of(values, counts):
    return sum(row[count] for row, count in zip(values, counts, strict=True))


@pytest.mark.long
@given(programmes(4, 4, 9))
@hypothesis_settings(max_examples=examples(200, by_default=60))
def test_the_programme_is_as_good_as_trying_everything(programme):
    values, num_gpus = programme
    ways = itertools.product(range(values.shape[1]), repeat=len(values))
    best = max((value_of(values, counts) for counts in ways if sum(counts) <= num_gpus), default=-np.inf)
    counts = best_counts(values, num_gpus)
    if counts is None:
        assert best == -np.inf
    else:
        assert sum(counts) <= num_gpus
        assert value_of(values, counts) == best > -np.inf


@pytest.mark.long
@given(programmes(12, 8, 40))
@hypothesis_settings(max_examples=examples(20, by_default=8), deadline=None)
def test_the_programme_is_as_good_as_cp_sat(programme):
    values, num_gpus = programme
    model = cp_model.CpModel()
    chosen = {
        (job, count): model.new_bool_var(f"{job} {count}")
        for job, row in enumerate(values)
        for count in np.flatnonzero(np.isfinite(row)).tolist()
    }
    for job in range(len(values)):
        model.add_exactly_one(variable for (owner, _), variable in chosen.items() if owner == job)
    model.add(sum(count * variable for (_, count), variable in chosen.items()) <= num_gpus)
    model.maximize(sum(int(values[key]) * variable for key, variable in chosen.items()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    counts = best_counts(values, num_gpus)
    if counts is None:
        assert status == cp_model.INFEASIBLE
    else:
        assert status == cp_model.OPTIMAL
        assert value_of(values, counts) == solver.objective_value


@pytest.mark.long
@given(programmes(6, 5, 15), st.lists(st.integers(-1, 6), min_size=6, max_size=6))
@hypothesis_settings(max_examples=examples(100, by_default=30))
def test_a_preference_never_costs_value(programme, preferred):
    values, num_gpus = programme
    plain = best_counts(values, num_gpus)
    bent = best_counts(values, num_gpus, preferred=preferred[: len(values)])
    assert (plain is None) == (bent is None)
    if plain is not None:
        assert value_of(values, bent) == value_of(values, plain)


def test_ties_go_to_what_is_preferred_and_else_to_fewer_gpus():
    values = np.array([[-np.inf, 1.0, 1.0, 1.0]])
    assert best_counts(values, 3) == [1]
    assert best_counts(values, 3, preferred=[2]) == [2]


# ---- the analyser


def test_the_analyser_finds_the_best_batch_of_each_number_of_gpus():
    # One GPU: 10 ms and 1 ms a sample, at most 10 of them. An all-reduce takes 5 ms from 2 GPUs on.
    job = elastic_job_view(curve=LinearCurve(fixed_s=0.01, sample_s=0.001), gpu_batch=10, max_gpus=3).job
    found = analyse(job, 5, lambda num_gpus: 0.005 if num_gpus > 1 else 0.0)
    assert found.batch.tolist() == [0, 10, 20, 30, 0, 0]
    assert found.samples_per_s.tolist() == pytest.approx([0, 10 / 0.02, 20 / 0.025, 30 / 0.025, 0, 0])
    assert found.speedup.tolist() == pytest.approx([-np.inf, 1.0, 1.6, 2.4, -np.inf, -np.inf])


def test_a_measured_curve_with_an_optimum_inside_is_followed():
    # Beyond 8 samples a GPU slows down: 8 samples in 10 ms, 16 in 40.
    curve = BatchCurve(gpu_batch=(1, 8, 16), seconds=(0.01, 0.01, 0.04))
    found = analyse(elastic_job_view(curve=curve, gpu_batch=16, max_gpus=2).job, 2, lambda num_gpus: 0.0)
    assert found.batch.tolist()[1:] == [8, 16]


def test_a_fixed_batch_needs_room():
    job = elastic_job_view(gpu_batch=10, max_gpus=8).job
    found = analyse(job, 8, lambda num_gpus: 0.0, batch=35)
    assert found.batch.tolist() == [0, 0, 0, 0, 35, 35, 35, 35, 35]
    # Its speed on 4 GPUs is that of 4.
    assert found.speedup[4] == pytest.approx(4.0)
    with pytest.raises(InputError, match=r"job 'job-0': runs from 1 GPUs on, with a batch of 35, and gets at most 3"):
        analyse(job, 3, lambda num_gpus: 0.0, batch=35)


# ---- the autoscaler


def autoscaler(**parameters):
    return ElasticScaling(**parameters).begin(
        ddlsched.Cluster(num_servers=4, gpus_per_server=4), np.random.default_rng(0)
    )


def sizes(answer):
    return {job_id: given if given is DROP else given.num_gpus for job_id, given in answer.items()}


def test_arrivals_wait_for_the_interval_and_then_share_the_gpus():
    policy = autoscaler(interval_s=100.0)
    jobs = [elastic_job_view(number=n) for n in range(2)]
    assert sizes(policy.allocate(jobs[:1], capacity_view(), 0.0)) == {"job-0": 8}
    assert policy.wake_s(0.0) == 100.0
    running = elastic_job_view(number=0, gpus=range(8), batch=256)
    answer = policy.allocate([running, jobs[1]], capacity_view(held=range(8)), 50.0)
    assert answer == {"job-0": Allocation(8, 256, tuple(range(8)))}
    assert sizes(policy.allocate([running, jobs[1]], capacity_view(held=range(8)), 100.0)) == {"job-0": 8, "job-1": 8}
    assert policy.wake_s(100.0) == 200.0


@pytest.mark.parametrize("queue", [False, True])
def test_jobs_without_room_are_dropped_or_wait(queue):
    policy = autoscaler(queue=queue)
    jobs = [elastic_job_view(number=n) for n in range(18)]
    answer = sizes(policy.allocate(jobs, capacity_view(), 0.0))
    assert [answer.pop(f"job-{n}") for n in range(16)] == [1] * 16
    assert answer == ({} if queue else {"job-16": DROP, "job-17": DROP})


def test_fast_scaling_jobs_get_more():
    steep, flat = (
        ThroughputCurve(num_gpus=(1, 8), samples_per_s=(10, 80)),
        ThroughputCurve(num_gpus=(1, 2, 8), samples_per_s=(10, 11, 12)),
    )
    jobs = [elastic_job_view(number=0, curve=flat), elastic_job_view(number=1, curve=steep)]
    capacity = capacity_view(num_servers=1, gpus_per_server=8)
    assert sizes(autoscaler().allocate(jobs, capacity, 0.0)) == {"job-0": 1, "job-1": 7}


def test_when_servers_leave_the_last_taken_on_stop_at_once():
    policy = autoscaler(queue=True)
    jobs = [elastic_job_view(number=n, min_gpus=4) for n in range(4)]
    assert sizes(policy.allocate(jobs, capacity_view(), 0.0)) == {f"job-{n}": 4 for n in range(4)}
    running = [elastic_job_view(number=n, min_gpus=4, gpus=range(4 * n, 4 * n + 4), batch=128) for n in range(3)]
    lost = elastic_job_view(number=3, min_gpus=4, lost_gpus=4, batch=128)
    answer = policy.allocate([*running, lost], capacity_view(held=range(12), absent=[3]), 7.0)
    assert sizes(answer) == {f"job-{n}": 4 for n in range(3)}


def test_jobs_that_start_anyway_are_packed_and_spread_ones_gathered():
    # job-0 is on servers 0 and 1 and stays as large; job-1 starts; server 2 and most of 0 and 1 are free.
    jobs = [elastic_job_view(number=0, gpus=(0, 4), batch=64), elastic_job_view(number=1)]
    answer = packed(
        {"job-0": Allocation(2, 64), "job-1": Allocation(3, 96)}, jobs, capacity_view(num_servers=3, held=(0, 4))
    )
    assert answer["job-1"].gpus == (1, 2, 3)
    assert answer["job-0"].gpus == (4, 5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"interval_s": 0.0}, "interval_s is 0.0; expected seconds from 0.001"),
        ({"most_gpus": 0}, "most_gpus is 0; expected a whole number from 1"),
        ({"batch": "huge"}, "batch is 'huge'; expected one of best, min, max, random"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        ElasticScaling(**parameters)


@pytest.mark.long
def test_a_whole_run_ends_every_job_it_does_not_drop():
    workload = elastic_mix(seed=3, gpus=16, hours=1.0, work_hours=0.2)
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=4)
    states = {}
    for queue in ("true", "false"):
        run = ddlsched.simulate(
            workload,
            cluster,
            allocation=f"elastic-scaling:interval_s=300,queue={queue}",
            rescale_cost=ConstantRescaleCost.restart(30.0),
        )
        states[queue] = run.jobs["state"].value_counts().to_dict()
        taken = run.finished.state.jobs[run.jobs["state"].to_numpy() == "finished"]
        assert (taken.start_ns % 300_000_000_000 == 0).all()
    assert states["true"] == {"finished": len(workload)}
    assert sum(states["false"].values()) == len(workload)


# ---- the mix


@pytest.mark.long
def test_the_mix_is_what_its_text_says():
    workload = elastic_mix(seed=1, category="compute-bound", arrivals="bursty", gpus=400, hours=6.0)
    kind = CATEGORIES["compute-bound"]
    assert all(isinstance(job, ElasticJob) and job.model == "compute-bound" for job in workload)
    assert all((job.min_batch, job.max_batch, job.gpu_batch) == (32, 1024, 128) for job in workload)
    arrivals_s = np.array([job.arrival_s for job in workload])
    assert (arrivals_s % 3600 <= 600).all()
    assert arrivals_s.max() < 6 * 3600
    work_s = [job.samples / job.gpu_batch * job.curve.iteration_s(1, job.gpu_batch) for job in workload]
    load = sum(work_s) / (400 * 6 * 3600)
    assert load == pytest.approx(0.6, rel=0.1)
    mean_bytes = np.exp(np.mean(np.log([job.message_bytes for job in workload])))
    assert mean_bytes == pytest.approx(kind.message_bytes, rel=0.05)


def test_the_mix_refuses_what_it_does_not_know():
    with pytest.raises(InputError, match="category is 'balance'"):
        elastic_mix(seed=1, category="balance")
    with pytest.raises(InputError, match=r"hours is 0; expected a number from 0\.001"):
        elastic_mix(seed=1, hours=0)
