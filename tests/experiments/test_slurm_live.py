"""What a main queue notices: the table follows from the measured runs, and from made-up ones as worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.errors import InputError
from ddlsched.real.live.store import read_jobs

run, main_queue, nodes_chart, counting = scripts_of("slurm_live", "run", "main_queue", "nodes_chart", "counting")


def write(folder: Path, filler: str, starts_s: list[float]) -> None:
    useful_s = 0.25 if filler in main_queue.TRAINING else 0.0
    waits = pd.DataFrame({"job": [0, 1], "submit_s": [0.0, 10.0], "start_s": starts_s, "samples": 448, "load": 1.0})
    waits = waits.assign(useful_node_s=useful_s)
    waits.to_csv(folder / f"{filler}-waits.csv", index=False)
    nodes = [(0.0, "n1", "main", "1"), (0.0, "n2", "", ""), (1.0, "n1", "main", "1"), (1.0, "n2", "idle", "2")]
    nodes += [(1.5, "n1", "main", "1"), (1.5, "n2", "", "")]
    columns = ["time_s", "node", "partition", "job"]
    pd.DataFrame(nodes, columns=columns).to_csv(folder / f"{filler}-nodes.csv", index=False)


@pytest.mark.long
def test_the_table_of_made_up_runs_is_that_worked_out_by_hand(tmp_path: Path) -> None:
    write(tmp_path, "sleeping", [1.0, 11.0])
    write(tmp_path, "FreeTrain", [1.5, 14.0])
    table = run.table(tmp_path).set_index("idle nodes have")
    columns = ["mean_wait_s", "samples", "overhead_%", "main_share_%", "idle_share_%"]
    assert table.loc["FreeTrain", columns].tolist() == [2.75, 448, 50.0, 50.0, 16.7]  # n2 was had for half a second
    assert run.more_than_slurms_own(tmp_path, "FreeTrain").tolist() == [0.5, 3.0]
    assert len(nodes_chart.nodes_chart(tmp_path / "FreeTrain-nodes.csv").axes[0].patches) == 2


@pytest.mark.long
def test_seeds_are_summed_up_with_intervals_and_compared_in_pairs(tmp_path: Path) -> None:
    for seed, later_s in enumerate((0.0, 1.0)):
        (tmp_path / f"seed{seed}").mkdir()
        for filler in ("nobody", "sleeping"):
            write(tmp_path / f"seed{seed}", filler, [1.0, 11.0])
        for training in main_queue.TRAINING:
            write(tmp_path / f"seed{seed}", training, [1.0 + later_s, 13.0 + 2 * later_s])
    summary = run.summary(tmp_path).set_index("idle nodes have")
    assert summary.loc["MalleTrain", "wait beyond Slurm's own, s"].startswith("1.75 [")
    assert summary["at most 2 s, %"].tolist() == [75.0, 75.0]  # 0 and 2 s, 1 and 4 s
    assert run.gain(tmp_path) == "+0 [+0, +0]"
    with pytest.raises(InputError, match="holds no runs"):
        run.seeds_of(tmp_path / "seed0")


def test_what_was_trained_is_by_the_steps_that_were_told_of_since_the_beginning(tmp_path: Path) -> None:
    told = [
        {"what": "step", "job": "wide-a", "step": 1, "nodes": 1},
        {"what": "joining", "job": "wide-a", "step": 1, "nodes": 1},
        {"what": "step", "job": "wide-a", "step": 3, "nodes": 2},  # the report of step 2 is lost
        {"what": "step", "job": "narrow-b", "step": 1, "nodes": 3},
    ]
    log = tmp_path / "events"
    log.write_text("".join(json.dumps(event) + "\n" for event in told))
    on_three_s = counting.STEP_S / 3 + 2 * counting.SHARED_S
    assert main_queue.trained(log, 1) == (3, pytest.approx(2 * counting.STEP_S + 3 * on_three_s))


def test_freetrain_is_told_speeds_and_malletrain_measures_them(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    speeds = {}
    for training in main_queue.TRAINING:
        table.write_text(main_queue.jobs_table(training).replace("counting.py", "count"))
        speeds[training] = {job.samples_per_s for job in read_jobs(table)}
    assert speeds == {"FreeTrain": {(640.0, 1280.0, 1920.0, 2560.0)}, "MalleTrain": {()}}


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs"):
        run.table(tmp_path)


@pytest.mark.long
def test_the_stored_table_follows_from_the_measured_runs() -> None:
    folder = EXPERIMENTS / "slurm_live" / "expected"
    pd.testing.assert_frame_equal(run.tables(folder), pd.read_csv(folder / "table.csv"))
    assert set(main_queue.FILLERS) == set(run.tables(folder)["idle nodes have"])
