"""What a main queue notices: the table follows from the measured runs, and from made-up ones as worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.errors import InputError

run, main_queue, nodes_chart = scripts_of("slurm_live", "run", "main_queue", "nodes_chart")


def write(folder: Path, filler: str, starts_s: list[float]) -> None:
    waits = pd.DataFrame({"job": [0, 1], "submit_s": [0.0, 10.0], "start_s": starts_s, "steps": 7, "load": 1.0})
    waits.to_csv(folder / f"{filler}-waits.csv", index=False)
    nodes = [(0.0, "n1", "main", "1"), (0.0, "n2", "", ""), (1.0, "n1", "main", "1"), (1.0, "n2", "idle", "2")]
    columns = ["time_s", "node", "partition", "job"]
    pd.DataFrame(nodes, columns=columns).to_csv(folder / f"{filler}-nodes.csv", index=False)


def test_the_table_of_made_up_runs_is_that_worked_out_by_hand(tmp_path: Path) -> None:
    write(tmp_path, "sleeping", [1.0, 11.0])
    write(tmp_path, "training", [1.5, 14.0])
    table = run.table(tmp_path).set_index("idle nodes have")
    assert table.loc["training", ["mean_wait_s", "steps", "main_share_%", "idle_share_%"]].tolist() == [2.75, 7, 50, 25]
    assert run.more_than_slurms_own(tmp_path).tolist() == [0.5, 3.0]
    assert len(nodes_chart.nodes_chart(tmp_path / "training-nodes.csv").axes[0].patches) == 2


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs"):
        run.table(tmp_path)


def test_the_stored_table_follows_from_the_measured_runs() -> None:
    folder = EXPERIMENTS / "slurm_live" / "expected"
    pd.testing.assert_frame_equal(run.table(folder), pd.read_csv(folder / "table.csv"))
    assert set(main_queue.FILLERS) == set(run.table(folder)["idle nodes have"])
