"""How a workload is shown: in a line, and as a table of its first jobs."""

from __future__ import annotations

from typing import Any

import pytest

from ddlsched import DataParallelIteration, Job, Workload

ITERATION = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=1e6)


def jobs(count: int, most_gpus: int = 1, **given: Any) -> Workload:
    common: dict[str, Any] = {"iterations": 7, "iteration": ITERATION, "gpu_memory_mb": 1.5, "model": "<m>"}
    made = [Job(job_id=f"j{n}", arrival_s=n / 2, num_gpus=1 + n % most_gpus, **common) for n in range(count)]
    return Workload(tuple(made), **given)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (jobs(1), "<workload: 1 job of 1 GPUs, arriving 0 to 0 s>"),
        (jobs(3, 2), "<workload: 3 jobs of 1 to 2 GPUs, arriving 0 to 1 s>"),
        (jobs(1200, source="f.csv"), "<workload: 1,200 jobs of 1 GPUs, arriving 0 to 599.5 s, from f.csv>"),
    ],
)
def test_a_workload_in_a_line(workload: Workload, said: str) -> None:
    assert repr(workload) == said


@pytest.mark.parametrize(
    ("count", "rows", "more"), [(5, 5, ""), (6, 5, "<p>and 1 more</p>"), (1205, 5, "<p>and 1,200 more</p>")]
)
def test_the_table_of_a_workload_has_its_first_five_jobs(count: int, rows: int, more: str) -> None:
    shown = jobs(count)._repr_html_()
    assert shown.count("<tr") == 1 + rows
    assert shown.endswith(f"</table>{more}")
    names = ["job_id", "arrival_s", "num_gpus", "iterations", "gpu_memory_mb", "model", "user"]
    assert shown.count("<th>") == len(names)  # no column of row numbers
    assert all(f"<th>{name}</th>" in shown for name in names)
    assert "<td>j0</td>" in shown
    assert "<td>&lt;m&gt;</td>" in shown
    assert "border" not in shown
