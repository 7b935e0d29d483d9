"""The idle-node experiment: the engine under the published rules against a plain replay of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from measurements import DATA, needs_data
from tiers import tried

from ddlsched.errors import InputError
from ddlsched.results.paired_comparison import markdown

FOLDER = EXPERIMENTS / "idle_nodes"
inputs, on_engine, replay, make_trace, parts, streams, tables = scripts_of(
    "idle_nodes", "inputs", "on_engine", "replay", "make_trace", "parts", "streams", "tables"
)
lublin, main_queue = scripts_of("idle_nodes", "lublin", "main_queue")
LOG = DATA / "traces" / "swf" / "lublin_256.swf"


@pytest.mark.long
@pytest.mark.parametrize(
    "policy", tried(["equal share", "optimum, T_fwd 10 s", "optimum, T_fwd 120 s"], lambda place: place == 0)
)
def test_the_engine_agrees_with_the_plain_replay(policy) -> None:
    given = inputs.load(None)
    jobs = given.hpo[:25]
    samples = sum(job.samples for job in jobs)
    plain = replay.replay(given.idle, jobs, parts.POLICIES[policy])
    result, tally = on_engine.simulated(given.idle, jobs, parts.POLICIES[policy], published=True)
    assert plain.finished == len(jobs) == result.summary()["jobs"]
    assert result.summary()["makespan_s"] == pytest.approx(plain.makespan_s, rel=0.02)
    assert tally.rescale_lost / samples == pytest.approx(plain.rescale_lost / samples, abs=0.01)
    assert tally.rescales == pytest.approx(plain.rescales, rel=0.1)


@pytest.mark.long
def test_a_chart_of_u_says_what_u_and_t_fwd_are() -> None:
    (charts,) = scripts_of("idle_nodes", "charts")
    for part in ("sweep", "beyond"):
        figure = charts.CHARTS[part](pd.read_csv(FOLDER / "expected" / f"{part}.csv"))
        axes = [text for each in figure.axes for text in (each.get_xlabel(), each.get_ylabel())]
        said = " ".join([*axes, figure.get_suptitle()])
        assert "U: samples / " in said
        assert "T_fwd: how far a decision looks ahead" in said
        assert "does not begin at 0" in said


@pytest.mark.long
def test_the_printed_tables_are_those_of_the_committed_values() -> None:
    for copy in (FOLDER / "expected" / "printed").glob("*.csv"):
        printed = tables.shown(copy.stem, pd.read_csv(FOLDER / "expected" / copy.name))
        assert markdown(pd.read_csv(copy, dtype=str, keep_default_na=False).to_dict("records")) == printed, copy.stem


@pytest.mark.slow
def test_what_users_suppose_decides_what_freetrain_does() -> None:
    idle, jobs = inputs.load(None).idle.of_nodes(0, 128), streams.MAKERS["architecture search"](1, 12)
    done_s = {
        name: on_engine.simulated(idle, jobs, streams.policy_of(name, jobs))[0].jobs["finish_s"].mean()
        for name in streams.POLICIES
    }
    known = max(done_s["FreeTrain, true curves"], done_s["FreeTrain, 1 to 4 nodes"])
    assert known < done_s["FreeTrain, average curve"] < done_s["FreeTrain, linear"] == max(done_s.values())


@pytest.mark.long
def test_the_generated_trace_is_what_its_script_makes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(make_trace, "HERE", tmp_path)
    make_trace.main()
    for path in (FOLDER / "generated").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@needs_data("idle_nodes")
@pytest.mark.slow
def test_the_reference_rows_are_reproduced_on_the_measured_trace() -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--reference", "--json", "--data", str(DATA / "idle_nodes")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {row["policy"]: row for row in json.loads(done.stdout)}
    for policy, (makespan_h, u) in {
        "equal share": (212.7, 0.754),
        "optimum, T_fwd 10 s": (205.0, 0.820),
        "optimum, T_fwd 120 s": (203.5, 0.836),
    }.items():
        assert rows[policy]["makespan_h"] == pytest.approx(makespan_h, rel=0.02)
        assert rows[policy]["u"] == pytest.approx(u, abs=0.01)


@pytest.mark.long
@needs_data("traces")
def test_jobs_of_the_model_are_like_those_of_a_log_that_its_authors_program_made() -> None:
    rng = np.random.default_rng(0)
    nodes, run_s = lublin.nodes_and_run_s(rng, 10_000, 256)
    logged = [job for window in range(10) for job in main_queue.log_jobs(LOG, window, 1.0)]
    in_log = np.array([job.nodes for job in logged]), np.array([job.run_s for job in logged])
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        assert np.mean(nodes == size) == pytest.approx(np.mean(in_log[0] == size), abs=0.02)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.log(np.quantile(run_s, share)) == pytest.approx(np.log(np.quantile(in_log[1], share)), abs=0.25)


def test_windows_of_a_log_run_on_as_many_nodes_as_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "small.swf"
    rows = "".join(f"{n} {60 * n} -1 {100 + n} {1 + n % 4} -1 -1 4 1500 -1 1 1 1 -1 1 1 -1 -1\n" for n in range(2500))
    path.write_text(f"; MaxNodes: 2\n; MaxProcs: 4\n{rows}")
    assert (main_queue.nodes_of(path), main_queue.windows_of(path)) == (4, 2)
    jobs = main_queue.log_jobs(path, 1, 0.5)
    assert [job.run_s for job in jobs] == list(range(1100, 2100))
    assert [job.limit_s for job in jobs] == [max(1500, run_s) for run_s in range(1100, 2100)]
    assert sum(job.nodes * job.run_s for job in jobs) / jobs[-1].arrival_s / 4 == pytest.approx(0.5)
    path.write_text(rows)
    with pytest.raises(InputError, match="has no line '; MaxProcs: N'"):
        main_queue.nodes_of(path)


def test_what_is_idle_is_what_jobs_leave(monkeypatch) -> None:
    monkeypatch.setattr(main_queue, "FIRST", 0.0)
    rows = {"job_id": ["a", "b", "c"], "arrival_s": [0.0, 5.0, 20.0], "start_s": [0.0, 10.0, 20.0]}
    table = pd.DataFrame({**rows, "finish_s": [10.0, 15.0, 25.0], "gpus": [6, 8, 1]})
    shares = main_queue.idle_shares(table, 10)  # 0 to 20 s: 4 nodes idle for 10 s, 2 for 5, all for 5; b waits for 5 s
    assert shares == {"idle": pytest.approx((40 + 10 + 50) / 200), "idle_while_waiting": pytest.approx(20 / 200)}


@pytest.mark.long
def test_a_main_queue_leaves_the_same_nodes_idle_by_count_and_by_node() -> None:
    jobs = main_queue.model_jobs(1, 0.8)[:200]
    result = main_queue.served(jobs, "FCFS, EASY")
    from_s, to_s = main_queue.looked_at_s(result.jobs)
    idle = main_queue.left_idle(result)
    share = main_queue.idle_shares(result.jobs)["idle"]
    assert idle.mean_idle(0.0, to_s - from_s) / main_queue.NODES == pytest.approx(share)
    assert all(job.limit_s >= job.run_s for job in jobs)


@pytest.mark.long
def test_backfilling_leaves_less_idle_than_strict_order_where_all_wait() -> None:
    jobs = main_queue.model_jobs(1, np.inf)[:200]
    strict, easy = (main_queue.idle_shares(main_queue.served(jobs, name).jobs) for name in ("FCFS", "FCFS, EASY"))
    assert strict["idle"] == strict["idle_while_waiting"]  # somebody always waits
    assert easy["idle"] < strict["idle"]
