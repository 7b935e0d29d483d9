"""The plan of real runs, what is kept of them, and the runs and fits themselves with ranks that are threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from in_process_ranks import Exchange, ThreadCrew, quick_job

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.real.calibration.measurements import Measured, read_measurements, write_measurements
from ddlsched.real.calibration.shares import read_alone, read_shares
from ddlsched.real.testbed.cabling import cabling, scaled
from ddlsched.real.testbed.fidelity import Mix, Runs, note_settings, plan, run_planned
from ddlsched.real.testbed.measuring import (
    ITERATIONS,
    Beside,
    Pinned,
    alone_jobs,
    calibration_settings,
    fitted_models,
    measure_alone,
    measure_settings,
    measure_shares,
    measured_rows,
    within,
)
from ddlsched.real.testbed.real_run import RealRun, gate_settings, refuse_too_large, refuse_unfit, run_for_real
from ddlsched.workload.dag import ComputeTask, IterationDag
from ddlsched.workload.job import Workload
from ddlsched.workload.tasks import CollectiveTask, Task

TWO = Cluster(num_servers=2, gpus_per_server=1)
FREE = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=9"}
ONE = {**FREE, "communication": "bounded-overlap:limit=1"}


class Crew(ThreadCrew):
    """Threads, as a crew of real workers is used."""

    on_this_machine = True

    def prepare(self, server: int, count: int) -> None:
        while len(self._idle[server]) < count:
            self._start(server)


@pytest.fixture
def crew() -> Crew:
    return Crew(Exchange(0.002))


def mix(name: str = "m") -> Mix:
    jobs = [quick_job("a", gpus=2), quick_job("b", gpus=2, iterations=5)]
    return Mix(name=name, workload=Workload.of(jobs), cluster=TWO, policies={"free": FREE, "one": ONE})


def test_the_plan_has_every_run_once_in_an_order_that_the_seed_decides() -> None:
    mixes = [mix("m"), mix("n")]
    planned = plan(mixes, 3, seed=1)
    assert len({run.key for run in planned}) == len(planned) == 2 * 2 * 3
    assert [run.mix.name for run in planned] == ["m"] * 6 + ["n"] * 6
    assert planned == plan(mixes, 3, seed=1) != plan(mixes, 3, seed=2)


def test_a_changed_job_is_another_run() -> None:
    other = replace(mix(), workload=Workload.of([quick_job("a", gpus=2), quick_job("b", gpus=2, iterations=6)]))
    assert {run.key for run in plan([mix()], 1)}.isdisjoint(run.key for run in plan([other], 1))


@pytest.mark.long
def test_runs_are_kept_and_not_made_again(tmp_path: Path, crew: Crew) -> None:
    planned, runs = plan([mix()], 2), Runs(tmp_path)
    first = planned[0]
    runs.keep(first, run_planned(first, crew, "max-min", realtime=False))
    assert runs.missing(planned) == planned[1:]
    kept = runs.measured(planned)
    assert kept[["mix", "policy", "repeat", "job_id"]].to_numpy().tolist() == [
        ["m", first.policy, first.repeat, "a"],
        ["m", first.policy, first.repeat, "b"],
    ]
    assert (kept.jct_s > 0.012).all()
    assert (kept.iteration_s > 0.004).all()
    crew.close()


def test_an_iteration_is_a_part_of_the_time_since_all_began(tmp_path: Path) -> None:
    """Of 6 s three iterations have 2 s each."""
    jobs = {"job_id": ["a"], "jct_s": [9.0], "finish_s": [10.0], "setup_s": [1.0], "servers": ["0,1"]}
    machine = {"late_share": 0.01, "cpu_busy_share": 0.5, "machine_limited": True}
    table = pd.DataFrame({**jobs, "began_s": [4.0], "iterations": [3]})
    run, runs = RealRun(table, pd.DataFrame({"task": ["r"]}), machine), Runs(tmp_path)
    planned = plan([mix()], 1)[0]
    runs.keep(planned, run)
    own = {"mix": "m", "policy": planned.policy, "repeat": 0}
    [kept] = runs.read(planned).to_dict("records")
    assert kept == {**{name: value for name, (value,) in jobs.items()}, "iteration_s": 2.0, **machine, **own}


def test_no_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds none of the runs"):
        Runs(tmp_path).measured(plan([mix()], 1))


def test_a_folder_of_another_comparison_is_refused(tmp_path: Path) -> None:
    note_settings(tmp_path, {"repeats": 3, "jobs": Path("a.csv")})
    note_settings(tmp_path, {"jobs": Path("a.csv"), "repeats": 3})
    assert (tmp_path / "comparison.json").read_text() == '{\n  "jobs": "a.csv",\n  "repeats": 3\n}\n'
    with pytest.raises(InputError, match=r"holds another comparison \(comparison\.json differs\)"):
        note_settings(tmp_path, {"repeats": 4})


def test_tables_of_a_run(crew: Crew) -> None:
    run = run_for_real(mix().workload, gate_settings(TWO, **FREE), crew, realtime=False)
    crew.close()
    assert run.jobs.servers.tolist() == ["0,1", "0,1"]
    spans = run.jobs.finish_s - run.jobs.arrival_s - run.jobs.setup_s
    assert run.jobs.jct_s.tolist() == pytest.approx(spans.tolist())
    assert len(run.transfers) == 3 + 5
    assert run.summary()["makespan_s"] == run.jobs.finish_s.max()
    assert run.machine["mean_late_ms"] >= 0


@pytest.mark.long
def test_calibration_measures_jobs_alone_and_pairs_only(crew: Crew) -> None:
    wanted = calibration_settings(2, [1000, 2000])
    assert wanted == [
        (1, 1000, 2),
        (1, 2000, 2),
        (2, 1000, 2),
        (2, 2000, 2),
    ]
    rows = measure_settings(wanted[1:3], gate_settings(TWO), crew)
    crew.close()
    assert [row[:2] for row in rows] == [(1, 2000), (2, 1000)]
    assert all(0.002 < row.transfer_s < 1 for row in rows)
    assert ITERATIONS > 5


def test_calibration_that_was_kept_is_not_measured_again(tmp_path: Path) -> None:
    rows = [Measured(jobs, size, 0.01 + jobs * size * 1e-7, 2, 1) for jobs in (1, 2) for size in (8, 80, 800)]
    write_measurements(rows, tmp_path / "calibration.csv")
    assert len(measured_rows(tmp_path / "calibration.csv", gate_settings(TWO), None)) == 6


def test_models_are_fitted_with_their_constants(tmp_path: Path) -> None:
    sizes = (200_000, 400_000, 800_000, 1_600_000)
    rows = [Measured(jobs, size, 0.01 + jobs * size * 8e-8, 2, 1) for jobs in (1, 2) for size in sizes]
    write_measurements(rows, tmp_path / "c.csv")
    models = fitted_models(read_measurements(tmp_path / "c.csv"))
    assert set(models) == {"max-min", "equal-share", "linear without penalty", "linear"}
    assert models["max-min"] == "max-min:latency_s=0.01,per_byte_s=8e-08"
    assert models["equal-share"] == "equal-share:latency_s=0.01,per_byte_s=8e-08"


def test_pinned_jobs_are_where_they_were_pinned(crew: Crew) -> None:
    cluster = Cluster(num_servers=3, gpus_per_server=2)
    pinned = Pinned(servers={"a": (0, 2), "b": (2, 1)})
    run = run_for_real(mix().workload, gate_settings(cluster, **{**FREE, "placement": pinned}), crew, realtime=False)
    crew.close()
    assert run.jobs.servers.tolist() == ["0,2", "1,2"]


def test_a_job_that_never_fits_is_refused() -> None:
    jobs = Workload.of([quick_job("a", gpus=3)])
    with pytest.raises(InputError, match=r"row 1: job 'a' wants 3 GPUs with 100 MB; expected at most 2, which the"):
        refuse_unfit(jobs, gate_settings(TWO))


def test_messages_larger_than_memory_are_refused() -> None:
    jobs = Workload.of([quick_job("a", gpus=2, message_bytes=1e9)])
    refuse_too_large(jobs, 2, 2e9)
    with pytest.raises(InputError, match=r"would take 2,000 MB on all servers together; expected at most 1,999 MB"):
        refuse_too_large(jobs, 2, 1.999e9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 0}, "window is 0; expected a whole number from 1 to 64"),
        ({"chunk_bytes": 10}, "chunk_bytes is 10; expected a number from 1000 to"),
        ({"chunk_bytes": float("nan")}, "chunk_bytes is nan; expected"),
        ({"seed": -1}, "seed is -1; expected a whole number"),
        ({"communication": "preemtive"}, "preemptive"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gate_settings(TWO, **given)  # type: ignore[arg-type]


def test_repeats_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="repeats is 0; expected at least 1"):
        plan([mix()], 0)


@pytest.mark.long
def test_columns_that_reports_need_are_kept(tmp_path: Path, crew: Crew) -> None:
    planned = plan([mix()], 1)
    Runs(tmp_path).keep(planned[0], run_planned(planned[0], crew, "max-min", realtime=False))
    crew.close()
    (path,) = (tmp_path / "runs").iterdir()
    assert {"job_id", "jct_s", "iteration_s", "finish_s", "machine_limited"} <= set(pd.read_parquet(path).columns)
    transfers = pd.read_parquet(tmp_path / "transfers" / path.name)
    assert len(transfers) == 3 + 5
    assert (transfers.ready_s <= transfers.granted_s).all()
    assert (transfers.granted_s < transfers.ended_s).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": "stopping-srtf"}, r"order Stopping.* stops running jobs, and a real job keeps .* without stops\(\)"),
        ({"placement": "monkeytree"}, r"placement .* moves running jobs, and a real job keeps .* without moves\(\) on"),
    ],
)
def test_a_policy_that_stops_or_moves_jobs_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gate_settings(Cluster(num_servers=16), **given)  # type: ignore[arg-type]


def test_servers_with_an_inside_are_refused() -> None:
    cluster = Cluster(num_servers=2, topology="rail-optimised:nvlink_gbps=3600")
    with pytest.raises(InputError, match="states the inside of its servers; expected one without"):
        gate_settings(cluster)
    with pytest.raises(InputError, match="states the inside of its servers; expected one without"):
        cabling(scaled(cluster, 1e-4))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            CollectiveTask(name="g", kind="all-gather", message_bytes=1e6, after=("a",)),
            "task 'g': the testbed has no all-gather: its ranks only all-reduce in one ring; expected compute tasks",
        ),
        (
            CollectiveTask(name="h", kind="all-reduce", message_bytes=1e6, algorithm="hierarchical"),
            "task 'h': the testbed has no hierarchical all-reduce",
        ),
        (
            CollectiveTask(name="p", kind="all-reduce", message_bytes=1e6, group="pairs"),
            "task 'p': the testbed has a process a server and no ranks of single GPUs, of which group 'pairs' would",
        ),
        (ComputeTask(name="c", duration_ns=1, group="pairs"), "task 'c': the testbed has a process a server and no"),
    ],
)
def test_a_task_that_the_testbed_cannot_run_is_refused_with_what_it_lacks(task: Task, message: str) -> None:
    dag = IterationDag((ComputeTask(name="a", duration_ns=1), task), {"pairs": ((0, 1),)} if task.group else {})
    with pytest.raises(InputError, match=message):
        refuse_unfit(Workload.of([quick_job("a", gpus=2, iteration=dag)]), gate_settings(TWO))


@pytest.mark.long
def test_shares_are_measured_on_transfers_that_lie_within_another(crew: Crew, tmp_path: Path, monkeypatch) -> None:
    times = pd.DataFrame({"granted_s": [0.0, 1.1, 1.8], "ended_s": [0.5, 1.6, 2.3]})
    assert within(times, pd.DataFrame({"granted_s": [0.0, 1.0], "ended_s": [0.4, 2.0]})).granted_s.tolist() == [1.1]
    wanted = [*(Beside(1000, other, 2) for other in (2000, 3000, 4000)), Beside(2500, 0, 2, 1000)]
    monkeypatch.setattr("ddlsched.real.testbed.measuring.share_settings", lambda num_servers: wanted)
    # Threads take as long for a small message as for a large one, so hardly any lies within another.
    monkeypatch.setattr("ddlsched.real.testbed.measuring.within", lambda measured, others: measured)
    measure_shares(tmp_path / "shares.csv", gate_settings(TWO), crew)
    crew.close()
    rows, text = read_shares(tmp_path / "shares.csv"), (tmp_path / "shares.csv").read_text()
    assert rows.other_bytes.tolist() == [2000, 3000, 4000, 0]
    assert rows.chunk_bytes.tolist() == [0, 0, 0, 1000]
    assert (rows.seconds > 0.002).all()
    measure_shares(tmp_path / "shares.csv", gate_settings(TWO), crew)  # what is there is not measured again
    assert (tmp_path / "shares.csv").read_text() == text


@pytest.mark.long
def test_jobs_alone_are_measured_while_they_compute_in_between(crew: Crew, tmp_path: Path) -> None:
    jobs = [quick_job(f"job-{number}", gpus=2, iterations=5) for number in range(3)]
    measure_alone(tmp_path / "alone.csv", jobs, gate_settings(TWO), crew)
    crew.close()
    rows, text = read_alone(tmp_path / "alone.csv"), (tmp_path / "alone.csv").read_text()
    assert rows.servers.tolist() == [2, 2, 2]
    assert rows.message_bytes.tolist() == [job.iteration.message_bytes for job in jobs]
    measure_alone(tmp_path / "alone.csv", jobs, gate_settings(TWO), crew)  # what is there is not measured again
    assert (tmp_path / "alone.csv").read_text() == text


def test_jobs_alone_are_on_two_to_four_servers_and_compute_as_long_as_they_send() -> None:
    jobs = alone_jobs(gate_settings(Cluster(num_servers=3, topology="star:nic_gbps=1")))
    assert [job.num_gpus for job in jobs] == [2] * 4 + [3] * 4
    first = jobs[0].iteration
    assert first.forward_s + first.backward_s == pytest.approx(first.message_bytes / 1.25e8)
    assert {job.num_gpus for job in alone_jobs(gate_settings(Cluster(num_servers=8)))} == {2, 3, 4}
