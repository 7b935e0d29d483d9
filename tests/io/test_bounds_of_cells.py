"""A number in a table just beyond what its column may hold is refused with the bound; the bound itself is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddlsched.cluster import cluster_files
from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster_files import read_cluster
from ddlsched.cluster.disturbances import read_outages
from ddlsched.cluster.failure_causes import read_causes
from ddlsched.cluster.idle_trace import read_fragments
from ddlsched.errors import InputError
from ddlsched.real.calibration.measurements import read_measurements
from ddlsched.real.calibration.shares import read_shares
from ddlsched.real.live.store import read_jobs
from ddlsched.workload.workload_files import read_workload

ROWS: dict[Callable[..., Any], dict[str, str]] = {
    read_jobs: {"job_id": "a", "program": "count", "steps": "5", "max_nodes": "4", "min_nodes": "1"},
    read_cluster: {"gpus": "4", "gpu_memory_mb": "1000", "servers": "1", "exclusive": "1"},
    CapacityTrace.read: {"server": "0", "join_s": "0", "leave_s": "9", "warned": "1"},
    read_outages: {"server": "0", "from_s": "0", "to_s": "9"},
    read_causes: {"cause": "fire", "per": "server", "per_1000_days": "1", "warned": "1", "least_gpus": "1"},
    read_fragments: {"node": "0", "idle_from_s": "0", "idle_to_s": "9"},
    read_measurements: {"concurrent_jobs": "1", "message_bytes": "1e6", "transfer_s": "1", "servers": "2"},
    read_shares: {"message_bytes": "1e6", "other_bytes": "0", "servers": "2", "chunk_bytes": "0", "transfer_s": "1"},
    read_workload: {
        "job_id": "a", "arrival_s": "0", "gpus": "1", "iterations": "9", "forward_s": "0.1", "backward_s": "0.1",
        "message_bytes": "1e6", "gpu_memory_mb": "1000", "buckets": "1",
    },
}  # fmt: skip


def refusal(read: Callable[..., Any], folder: Path, **cells: str) -> str:
    """Return what is said of a table whose first row has some cells, or nothing."""
    row = ROWS[read] | cells
    (folder / "table.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    try:
        read(str(folder / "table.csv") if read is read_causes else folder / "table.csv")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("read", "column", "least", "most"),
    [
        (read_jobs, "steps", 1, 10_000_000),
        (read_jobs, "max_nodes", 1, 64),
        (read_jobs, "min_nodes", 1, 4),
        (read_cluster, "gpus", 1, 10_000_000),
        (read_cluster, "servers", 1, 10_000_000),
        (read_cluster, "exclusive", 0, 1),
        (CapacityTrace.read, "server", 0, None),
        (CapacityTrace.read, "warned", 0, 1),
        (read_outages, "server", 0, None),
        (read_causes, "warned", 0, 1),
        (read_causes, "least_gpus", 1, None),
        (read_fragments, "node", 0, None),
        (read_measurements, "concurrent_jobs", 1, 1_000_000),
        (read_measurements, "servers", 2, 1_000_000),
        (read_shares, "servers", 2, 1_000_000),
        (read_workload, "gpus", 1, None),
        (read_workload, "iterations", 1, None),
        (read_workload, "buckets", 1, 10_000),
    ],
)
def test_whole_numbers(folder: Path, read: Callable[..., Any], column: str, least: int, most: int | None) -> None:
    expected = f"expected a whole number from {least} to {'9.2e18' if most is None else most}"
    for beyond in (least - 1, "0.5", *([] if most is None else [most + 1])):
        assert refusal(read, folder, **{column: str(beyond)}).endswith(expected)
    assert expected not in refusal(read, folder, **{column: str(least)})


@pytest.mark.parametrize(
    ("read", "column", "most"),
    [
        (read_measurements, "message_bytes", "1e+18"),
        (read_measurements, "transfer_s", "1e+06"),
        (read_shares, "message_bytes", "1e+18"),
        (read_shares, "transfer_s", "1e+06"),
    ],
)
def test_amounts(folder: Path, read: Callable[..., Any], column: str, most: str) -> None:
    for beyond in ("0", f"{float(most) * 1.001}"):
        assert refusal(read, folder, **{column: beyond}).endswith(f"expected a finite number > 0, at most {most}")


def test_servers_of_all_rows_together_are_as_many_as_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_files, "MAX_GPUS", 4)
    path = tmp_path / "servers.csv"
    path.write_text("gpus,gpu_memory_mb,servers\n1,1000,3\n1,1000,1\n")
    assert read_cluster(path).num_servers == 4
    path.write_text("gpus,gpu_memory_mb,servers\n1,1000,3\n1,1000,2\n")
    with pytest.raises(InputError, match=r"row 2 .*, column servers: 5 servers so far; expected at most 4"):
        read_cluster(path)
