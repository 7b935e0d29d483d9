"""What the benchmarks compare does the same work, and gives the same answers; nothing here is timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_tables import Table
from clos_2048 import cluster as clos_cluster
from clos_2048 import jobs as clos_jobs
from clos_2048 import run as run_on_clos
from crux_small_cases import FixedPaths, Levels, case, flows_between_leaves
from ecmp_collisions import computed_most, computed_share, flows_on_spines
from flow_rivals import heapq_loop, simpy_processes
from flow_scenario import GPUS_PER_SERVER, Flow, FlowTimes, draw_flows, perturbed, simulate_flows, wire_bytes
from full_size import OVERLAP_LIMIT, compile_event_loop, run_event_loop
from interval_coverage import FAMILIES, POPULATIONS, coverage, errors
from jct_bound import ratios
from monkeytree_paths import slowdowns
from philly_first_fit import Rows, Watch

import ddlsched
from ddlsched.comparisons.alone import alone_s
from ddlsched.engine import run_progress
from ddlsched.engine.run_progress import RunProgress
from ddlsched.workload.generators.monkeytree_mix import monkeytree_mix


@pytest.fixture(scope="module")
def event_loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = compile_event_loop(tmp_path_factory.mktemp("event_loop"))
    if program is None:
        pytest.skip("no g++")
    return program


@pytest.mark.parametrize("scheduler", OVERLAP_LIMIT)
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
        "simpy": simpy_processes(flows, iterations=iterations),
    }


@pytest.mark.parametrize(("num_jobs", "num_servers"), [(12, 16), (192, 256)])
def test_flow_simulators_agree_before_chaos_sets_in(num_jobs: int, num_servers: int) -> None:
    pytest.importorskip("simpy")
    flows = draw_flows(num_jobs=num_jobs, num_servers=num_servers)
    answers = all_answers(flows, num_servers=num_servers, iterations=3)
    assert answers["simpy"].finish_s == pytest.approx(answers["heapq"].finish_s, rel=1e-12)
    assert answers["ddlsched"].finish_s == pytest.approx(answers["heapq"].finish_s, rel=1e-6)


def test_two_jobs_that_share_a_card_by_hand() -> None:
    pytest.importorskip("simpy")
    # Rings over 2 servers carry the whole message: 1 s alone. Both send from 1 s at half speed until 3 s.
    flows = [Flow(servers=servers, compute_s=1.0, message_bytes=1.25e9) for servers in ((0, 1), (1, 2))]
    for times in all_answers(flows, num_servers=3, iterations=1).values():
        assert times.finish_s == pytest.approx([3.0, 3.0])
        assert times.average_jct_s == pytest.approx(3.0)
        assert times.makespan_s == pytest.approx(3.0)


def test_flows_fill_servers_without_sharing_gpus() -> None:
    flows = draw_flows(num_jobs=12, num_servers=16)
    used = [sum(server in flow.servers for flow in flows) for server in range(16)]
    assert max(used) <= GPUS_PER_SERVER
    assert {len(flow.servers) for flow in flows} <= {2, 3, 4}
    assert all(0.040 <= flow.compute_s <= 0.100 and 25e6 <= flow.message_bytes <= 500e6 for flow in flows)


def test_ring_of_four_carries_one_and_a_half_messages() -> None:
    assert wire_bytes(Flow(servers=(0, 1, 2, 3), compute_s=1.0, message_bytes=100.0)) == pytest.approx(150.0)


def test_perturbed_compute_times_stay_close() -> None:
    flows = draw_flows(num_jobs=12, num_servers=16)
    changed = perturbed(flows, relative=1e-9, seed=1)
    assert changed != flows
    assert [flow.compute_s for flow in changed] == pytest.approx([flow.compute_s for flow in flows], rel=1e-9)


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


def test_coverage_of_our_intervals_beats_the_plain_bootstrap() -> None:
    ours, bca, percentiles, student = coverage(POPULATIONS[0], 6, 200)
    assert max(bca, percentiles) < 91.0 < ours <= 100.0
    assert ours == student  # with fewer than ten seeds


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_families_have_no_difference_but_their_effects(family) -> None:
    drawn = np.mean([family.changes(np.random.default_rng(seed), 50) for seed in range(100)], axis=(0, 2))
    assert drawn == pytest.approx(np.zeros(len(family.effects)), abs=0.05)


def test_verdicts_err_in_most_tables_but_not_by_holm() -> None:
    wrong, tables, tables_holm, found, found_holm = errors(FAMILIES[1], 8, 30)
    assert wrong < 12.0 < tables
    assert tables_holm < tables
    assert found_holm < found


def test_ecmp_collides_as_often_as_computed() -> None:
    """Of 4 flows on 8 spines two share one in 59 % of cases; what is counted are bytes on cables."""
    assert computed_share(4, 8) == pytest.approx(1 - 8 * 7 * 6 * 5 / 8**4) == pytest.approx(0.590, abs=5e-4)
    counts = [flows_on_spines(4, 8, seed) for seed in range(100)]
    assert all(count.sum() == 4 for count in counts)
    shared = np.mean([count.max() > 1 for count in counts])
    assert shared == pytest.approx(0.590, abs=3 * (0.59 * 0.41 / 100) ** 0.5)
    assert np.mean([count.max() for count in counts]) == pytest.approx(computed_most(4, 8), abs=0.2)


def test_the_clos_benchmark_keeps_jobs_apart_with_good_paths() -> None:
    workload = clos_jobs(40, 0.6, "alone", seed=1)
    results = {path: run_on_clos(workload, path)[0] for path in (None, "least-congested")}
    contended = {path: result.finished.state.run[0].contended_iterations for path, result in results.items()}
    assert contended["least-congested"] <= contended[None]
    assert all((result.jobs["state"] == "finished").all() for result in results.values())


def test_the_load_of_the_clos_benchmark_counts_jobs_alone_with_their_communication() -> None:
    alone, compute = (clos_jobs(40, 0.6, counts, seed=1) for counts in ("alone", "compute"))
    at_once = [[replace(job, arrival_s=0.0) for job in workload] for workload in (alone, compute)]
    assert at_once[0] == at_once[1]
    gpus = np.array([job.num_gpus for job in alone])
    computing_s = np.array([job.iterations * job.compute_ns / 1e9 for job in alone])
    with_communication_s = alone_s(alone, clos_cluster(), "max-min")
    later = np.array([a.arrival_s / c.arrival_s for a, c in zip(alone, compute, strict=True)])
    assert later == pytest.approx((gpus * with_communication_s).sum() / (gpus * computing_s).sum(), rel=0.01)
    assert later.min() > 1.05


@pytest.mark.parametrize("exclusive", [False, True])
def test_policies_are_above_the_bound_and_each_job_alone_is_not(exclusive: bool) -> None:
    found, cpu_s = ratios(exclusive, seed=1, scale=0.002, intervals=30)
    assert found.pop("each job alone") <= 1 <= min(found.values())
    assert cpu_s > 0


def test_slowdowns_on_monkeytrees_network_are_none_without_a_shared_cable() -> None:
    workload = monkeytree_mix(seed=1, jobs=6, load=0.2, scale=0.05)
    for path in ("ecmp", "crux", "perfect"):
        assert slowdowns(workload, path, moves=True, seed=1) == pytest.approx(np.ones(6), rel=1e-6)


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


def test_what_an_interrupted_run_has_counted_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "_PAUSE_S", 0.0)
    rows = Rows("Cut off", [], tmp_path / "table.txt")
    watch = Watch(rows, pause_s=0.0)

    def cut_off(progress: RunProgress) -> None:
        watch(progress)
        if progress.jobs_done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.002), scheduler="srsf-1", watch=cut_off)
    *_, row, note = rows.file.read_text().splitlines()
    simulated_s, _, _, done, *_ = row.split()
    assert float(simulated_s.replace(",", "")) > 0
    assert 40 <= int(done) < 160
    assert note == "The last row is of a run under way."
    assert watch.row(5.0, 3, 2_000_000, 4_000_000, 1_000_000)[3:8] == [3, 2.0, 4.0, 1.0, 3.0]
