"""What the benchmarks compare does the same work, and gives the same answers; nothing here is timed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_tables import Table
from clos_2048 import cluster as clos_cluster
from clos_2048 import jobs as clos_jobs
from clos_2048 import run as run_on_clos
from crux_small_cases import FixedPaths, Levels, case, flows_between_leaves
from failure_models import MTBF_S, EttrCase, best_interval, time_to_failure_h, waste
from flow_rivals import Flow, FlowTimes, heapq_loop, wire_bytes
from flows import GPUS_PER_SERVER, draw_flows, simulate_flows
from full_size import OVERLAP_LIMIT, compile_event_loop, run_event_loop
from interval_coverage import FAMILIES, POPULATIONS, coverage, errors
from jct_bound import ratios
from llm_steps import AGREEING, agreement
from monkeytree_paths import slowdowns
from period_skipping import gain
from tiers import tried

import ddlsched
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.comparisons.alone import alone_s
from ddlsched.engine import driver
from ddlsched.results.result import Result
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix


@pytest.fixture(scope="module")
def event_loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = compile_event_loop(tmp_path_factory.mktemp("event_loop"))
    if program is None:
        pytest.skip("no g++")
    return program


@pytest.mark.parametrize("scheduler", OVERLAP_LIMIT)
@pytest.mark.slow
def test_event_loop_in_cpp_has_the_finish_times_of_the_engine(event_loop: Path, scheduler: str) -> None:
    workload = ddlsched.microsoft_160(seed=1, scale=0.005)
    ours = ddlsched.simulate(workload, scheduler=scheduler)
    theirs = run_event_loop(event_loop, workload, scheduler)
    assert theirs.finish_ns == ours.finished.state.jobs.finish_ns.tolist()
    assert theirs.events == ours.summary()["events"]


def all_answers(flows: list[Flow], *, num_servers: int, iterations: int) -> dict[str, FlowTimes]:
    return {
        "ddlsched": simulate_flows(flows, num_servers=num_servers, iterations=iterations, contention="equal-share"),
        "heapq": heapq_loop(flows, iterations=iterations),
    }


@pytest.mark.long
@pytest.mark.parametrize(("num_jobs", "num_servers"), [(12, 16), (192, 256)])
def test_flow_simulators_agree_before_chaos_sets_in(num_jobs: int, num_servers: int) -> None:
    flows = draw_flows(num_jobs=num_jobs, num_servers=num_servers)
    answers = all_answers(flows, num_servers=num_servers, iterations=3)
    assert answers["ddlsched"].finish_s == pytest.approx(answers["heapq"].finish_s, rel=1e-6)


def test_two_jobs_that_share_a_card_by_hand() -> None:
    # Rings over 2 servers carry the whole message: 1 s alone. Both send from 1 s at half speed until 3 s.
    flows = [Flow(servers=servers, compute_s=1.0, message_bytes=1.25e9) for servers in ((0, 1), (1, 2))]
    for times in all_answers(flows, num_servers=3, iterations=1).values():
        assert times.finish_s == pytest.approx([3.0, 3.0])


def test_flows_fill_servers_without_sharing_gpus() -> None:
    flows = draw_flows(num_jobs=12, num_servers=16)
    used = [sum(server in flow.servers for flow in flows) for server in range(16)]
    assert max(used) <= GPUS_PER_SERVER
    assert {len(flow.servers) for flow in flows} <= {2, 3, 4}
    assert all(0.040 <= flow.compute_s <= 0.100 and 25e6 <= flow.message_bytes <= 500e6 for flow in flows)


def test_ring_of_four_carries_one_and_a_half_messages() -> None:
    assert wire_bytes(Flow(servers=(0, 1, 2, 3), compute_s=1.0, message_bytes=100.0)) == pytest.approx(150.0)


def test_table_aligns_numbers() -> None:
    table = Table(title="T", columns=("", "n"), rows=[("one", 1), ("many", 1234), ("none", None)], notes=["N"])
    assert str(table).splitlines() == [
        "T",
        "",
        "          n",
        "----  -----",
        "one       1",
        "many  1,234",
        "none      -",
        "N",
    ]


@pytest.mark.long
def test_coverage_of_our_intervals_beats_the_plain_bootstrap() -> None:
    ours, bca, percentiles, student = coverage(POPULATIONS[0], 6, 200)
    assert max(bca, percentiles) < 91.0 < ours <= 100.0
    assert ours == student  # with fewer than ten seeds


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_families_have_no_difference_but_their_effects(family) -> None:
    drawn = np.mean([family.changes(np.random.default_rng(seed), 50) for seed in range(100)], axis=(0, 2))
    assert drawn == pytest.approx(np.zeros(len(family.effects)), abs=0.05)


@pytest.mark.slow
def test_verdicts_err_in_most_tables_but_not_by_holm() -> None:
    wrong, tables, tables_holm, found, found_holm = errors(FAMILIES[1], 8, 30)
    assert wrong < 12.0 < tables
    assert tables_holm < tables
    assert found_holm < found


@pytest.mark.long
def test_the_clos_benchmark_keeps_jobs_apart_with_good_paths() -> None:
    workload = clos_jobs(40, 0.6, seed=1)
    results = {path: run_on_clos(workload, path)[0] for path in (None, "least-congested")}
    contended = {path: result.finished.state.run[0].contended_iterations for path, result in results.items()}
    assert contended["least-congested"] <= contended[None]
    assert all((result.jobs["state"] == "finished").all() for result in results.values())


@pytest.mark.long
def test_the_load_of_the_clos_benchmark_counts_jobs_alone_with_their_communication() -> None:
    """Of arrivals drawn once, those at twice the load are in half the time."""
    light, heavy = (clos_jobs(500, load, seed=1) for load in (0.3, 0.6))
    later = np.array([a.arrival_s / b.arrival_s for a, b in zip(light, heavy, strict=True)])
    assert later == pytest.approx(np.full(500, 2.0))
    together = ddlsched.Workload.of([replace(job, arrival_s=0.0) for job in heavy])
    gpu_s = np.array([job.num_gpus for job in heavy]) * alone_s(together, clos_cluster(), "max-min")
    assert heavy.jobs[-1].arrival_s * 2048 * 0.6 == pytest.approx(gpu_s.sum(), rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("exclusive", [False, True])
def test_policies_are_above_the_bound_and_each_job_alone_is_not(exclusive: bool) -> None:
    found, cpu_s = ratios(exclusive, seed=1, scale=0.002, intervals=30)
    assert found.pop("each job alone") <= 1 <= min(found.values())
    assert cpu_s > 0


@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_jobs_of_monkeytrees_mix_have_100_to_1000_iterations_times_the_scale(scale: float) -> None:
    iterations = [job.iterations for job in monkeytree_mix(seed=1, jobs=200, load=0.2, scale=scale)]
    assert 100 * scale <= min(iterations) < 150 * scale
    assert 900 * scale < max(iterations) <= 1000 * scale


@pytest.mark.long
def test_slowdowns_on_monkeytrees_network_are_none_without_a_shared_cable() -> None:
    workload = monkeytree_mix(seed=1, jobs=6, load=0.2, scale=0.05)
    for path in ("ecmp", "crux", "perfect"):
        assert slowdowns(workload, path, moves=True, seed=1) == pytest.approx(np.ones(6), rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_crux_in_a_small_case_is_at_most_the_best(seed: int) -> None:
    given = case(seed)
    assert flows_between_leaves(given.where.hosts) > 0
    chosen = [FixedPaths(chosen_paths=(spine,) * flows_between_leaves(given.where.hosts)) for spine in range(2)]
    fair = ddlsched.MaxMin(per_byte_s=1e-9)
    on_one = [given.utilisation(path, fair) for path in chosen]
    assert given.utilisation("crux", fair) >= min(on_one)
    levels = Levels(levels=(0, 1, 2, 3, 4), per_byte_s=1e-9)
    assert given.utilisation("crux", levels) != given.utilisation("crux", fair)


@pytest.mark.slow
def test_the_best_interval_between_checkpoints_is_dalys_where_its_assumptions_hold() -> None:
    cause = FailureCause(cause="node", per="job", mtbf_s=MTBF_S, takes="job")
    wasted = partial(waste, causes=[cause], store="disk:gb_per_s=1", jobs=1, days=12, seed=0)
    best_s, least, youngs = best_interval(849.0, wasted)
    assert best_s == pytest.approx(809.0, rel=0.05)
    assert least <= youngs < least + 0.001


@pytest.mark.long
def test_the_table_of_rsc_1_gives_its_published_time_to_failure() -> None:
    assert time_to_failure_h(1024, 60, seeds=2) == pytest.approx(7.9, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("interval_min", "restart_s"), tried([(30, 300), (30, 900), (60, 300), (60, 900)], lambda place: place == 3)
)
def test_the_effective_training_time_of_512_nodes_is_that_of_rsc_1s_formula(interval_min: int, restart_s: int) -> None:
    case = EttrCase(512, 0.0065, interval_min, restart_s)
    assert case.formula() < 0.96
    assert case.simulated(seeds=3) == pytest.approx(case.formula(), rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["ring", "double-binary-tree", "nccl", "nccl:switches=inside"])
def test_a_step_of_a_language_model_takes_about_the_closed_forms_time(algorithm: str) -> None:
    rows = [row for row in AGREEING.splitlines() if row.startswith(("llama-3-8b       data=64", "mixtral-8x7b"))]
    for row in agreement(rows, algorithm).rows:
        assert row[1] == 64
        assert abs(float(str(row[4]))) < 5


def test_the_gain_of_jumps_is_over_runs_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    jumped, simulate = [], ddlsched.simulate

    def simulated(*given: Any, **policies: Any) -> Result:
        result = simulate(*given, **policies)
        jumped.append(result.finished.state.run[0].jumped_iterations.item())
        return result

    monkeypatch.setattr(ddlsched, "simulate", simulated)
    monkeypatch.setattr(driver, "ROUNDS_BEFORE_JUMPS", 0)
    iteration = ddlsched.DataParallelIteration(forward_s=0.01, backward_s=0.02, message_bytes=2e7)
    job = {"iteration": iteration, "iterations": 500, "num_gpus": 2, "gpu_memory_mb": 1}
    jobs = ddlsched.Workload.of([ddlsched.Job(job_id=str(n), arrival_s=n / 9, **job) for n in range(2)])
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=1, gpu_memory_mb=2)
    _, contended, *counts, same = gain("two jobs", 1, jobs, cluster, placement="first-fit", scheduler="srsf-1")
    assert jumped == [0, counts[0]]
    assert 0 < counts[0] < contended
    assert same == "identical"
