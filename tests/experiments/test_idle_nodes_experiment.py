"""The idle-node experiment: the engine under the published rules against a plain replay of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of
from measurements import DATA, needs_data

FOLDER = EXPERIMENTS / "idle_nodes"
inputs, on_engine, replay, make_trace, parts, streams, tables = scripts_of(
    "idle_nodes", "inputs", "on_engine", "replay", "make_trace", "parts", "streams", "tables"
)


@pytest.mark.parametrize("policy", ["equal share", "optimum, T_fwd 10 s", "optimum, T_fwd 120 s"])
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


def test_the_timeline_shows_the_nodes_of_all_jobs_by_how_many_a_job_has() -> None:
    (charts,) = scripts_of("idle_nodes", "charts")
    table = pd.read_csv(FOLDER / "expected" / "timeline.csv")
    areas = charts.timeline(table).axes[0].collections
    assert len(areas) == len(charts.SIZES) == len(charts.SIZE_SHADES)
    jobs = table.drop(columns=["time_s", "idle"])
    top = max(area.get_paths()[0].vertices[:, 1].max() for area in areas)
    assert top == jobs.sum(axis=1).max()
    on_one = areas[0].get_paths()[0].vertices[:, 1].max()
    assert on_one == jobs.eq(1).sum(axis=1).max()


def test_a_chart_of_u_says_what_u_and_t_fwd_are() -> None:
    (charts,) = scripts_of("idle_nodes", "charts")
    for part in ("sweep", "beyond"):
        figure = charts.CHARTS[part](pd.read_csv(FOLDER / "expected" / f"{part}.csv"))
        axes = [text for each in figure.axes for text in (each.get_xlabel(), each.get_ylabel())]
        said = " ".join([*axes, figure.get_suptitle()])
        assert "U: samples / " in said
        assert "T_fwd: how far a decision looks ahead" in said
        assert "does not begin at 0" in said


def test_the_readme_shows_the_tables_that_the_command_prints() -> None:
    readme = (FOLDER / "README.md").read_text()
    for part in tables.ROWS:
        printed = tables.shown(part, pd.read_csv(FOLDER / "expected" / f"{part}.csv"))
        assert printed in readme, part


def test_what_users_suppose_decides_what_freetrain_does() -> None:
    idle, jobs = inputs.load(None).idle.of_nodes(0, 128), streams.MAKERS["architecture search"](1, 12)
    done_s = {
        name: on_engine.simulated(idle, jobs, streams.policy_of(name, jobs))[0].jobs["finish_s"].mean()
        for name in streams.POLICIES
    }
    known = max(done_s["FreeTrain, true curves"], done_s["FreeTrain, 1 to 4 nodes"])
    assert known < done_s["FreeTrain, average curve"] < done_s["FreeTrain, linear"] == max(done_s.values())


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
