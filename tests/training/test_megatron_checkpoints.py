"""Megatron-core itself loads what is written, if it is installed (``pip install megatron-core``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("stacked", [True, False])
def test_megatron_loads_what_has_been_through_another_parallelism(stacked: bool, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    import megatron_jobs
    import processes

    def on_ranks(ranks: int, work: str, tp: int, pp: int, folder: str) -> list[dict[str, str]]:
        task = megatron_jobs.Task(tp, pp, str(tmp_path / folder), stacked)
        return processes.on_ranks(ranks, getattr(megatron_jobs, work), task)

    on_ranks(4, "save", 2, 2, "saved")
    for arguments in (["saved", "ours", "--to", "tp=4,pp=2"], ["ours", "back", "--to", "tp=2", "--format", "megatron"]):
        done = run("reshard", tmp_path / arguments[0], tmp_path / arguments[1], *arguments[2:], "--verify")
        assert done.exit_code == 0, done.stderr
    assert on_ranks(2, "load", 1, 2, "back") == on_ranks(2, "load", 1, 2, "saved")
