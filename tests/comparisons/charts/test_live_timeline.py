"""The chart of a live run: areas of the jobs' nodes under the number of idle ones."""

from __future__ import annotations

from pathlib import Path

from ddlsched.comparisons.charts.real_charts import _sizes, live_timeline
from ddlsched.io.tables import csv_rows

TIMELINE = """time_s,what,job,step,nodes,loss
0.5,nodes,,0,2,None
0.6,started,a,0,1,None
0.7,started,b,0,1,None
1.0,step,a,1,1,0.5
2.0,nodes,,0,1,None
2.1,lost a node,b,0,1,None
2.2,regrouped,b,0,3,None
2.3,a process hangs,b,0,1,None
3.0,finished,a,0,0,None
"""


def test_a_job_has_its_nodes_from_its_start_to_its_end(tmp_path: Path) -> None:
    (path := tmp_path / "timeline.csv").write_text(TIMELINE)
    rows = [row for _, row in csv_rows(path, tuple(TIMELINE.split("\n")[0].split(",")), ())]
    times_s, (idle, a, b) = _sizes(rows, ["a", "b"])
    assert times_s == [0.0, 0.5, 0.6, 0.7, 2.0, 2.1, 2.2, 2.3, 3.0, 3.0]
    assert idle == [0, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert a == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
    assert b == [0, 0, 0, 1, 1, 0, 3, 0, 0, 0]


def test_a_run_without_jobs_or_steps_is_drawn(tmp_path: Path) -> None:
    (path := tmp_path / "timeline.csv").write_text(TIMELINE.split("\n")[0] + "\n")
    sizes, losses = live_timeline(path).axes
    assert (sizes.get_ylabel(), losses.get_ylabel()) == ("Nodes", "Loss of a step")
