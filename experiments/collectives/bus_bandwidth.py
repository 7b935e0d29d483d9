"""All-reduces in a server and across rails, beside the bus bandwidths that NCCL reaches on such hosts.

    python experiments/collectives/bus_bandwidth.py [--data DIR] [--out DIR]

``DIR`` holds ``a100_8gpu_nvlink.csv`` and ``v100_8gpu_nvlink.csv``, the output of nccl-tests on 8 GPUs of a host, which
are not part of the project; without it their two rows are compared with the constants that were read from them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import ddlsched
from ddlsched import CollectiveTask, IterationDag

NCCL_TESTS = "github.com/NVIDIA/nccl-tests/issues"
GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Host:
    """Hosts of one kind, by their data sheets, and what NCCL was measured to reach: bus bandwidth of large messages."""

    name: str
    hosts: int
    nvlink_gbps: float
    rails: int
    rail_gbps: float
    measured_gb_per_s: float
    source: str

    @property
    def topology(self) -> str:
        """The network."""
        rails = f"rails={self.rails},rail_gbps={self.rail_gbps},hosts_per_unit=32"
        return f"rail-optimised:nvlink_gbps={self.nvlink_gbps},{rails}"


HOSTS = (
    Host(
        name="8 V100, NVLink",
        hosts=1,
        nvlink_gbps=1200.0,
        rails=8,
        rail_gbps=100.0,
        measured_gb_per_s=134.4,
        source="v100_8gpu_nvlink.csv, 1 GiB",
    ),
    Host(
        name="8 A100, NVSwitch",
        hosts=1,
        nvlink_gbps=2400.0,
        rails=8,
        rail_gbps=200.0,
        measured_gb_per_s=229.3,
        source="a100_8gpu_nvlink.csv, 1 GiB",
    ),
    Host(
        name="8 H100, NVSwitch",
        hosts=1,
        nvlink_gbps=3600.0,
        rails=8,
        rail_gbps=400.0,
        measured_gb_per_s=476.0,
        source=f"{NCCL_TESTS}/290, with NVLink SHARP",
    ),
    Host(
        name="3 x 8 A100, 4 x HDR",
        hosts=3,
        nvlink_gbps=2400.0,
        rails=4,
        rail_gbps=200.0,
        measured_gb_per_s=96.0,
        source=f"{NCCL_TESTS}/119, peak",
    ),
    Host(
        name="2 x 8 H100, 8 x NDR",
        hosts=2,
        nvlink_gbps=3600.0,
        rails=8,
        rail_gbps=400.0,
        measured_gb_per_s=376.0,
        source=f"{NCCL_TESTS}/290: 46 to 48 GB/s a card, 8 cards",
    ),
)


CONDITIONS = {
    "bus_bandwidth": "All-reduces of 1 GB alone, max-min sharing, links as the data sheets say, no latency; bus "
    "bandwidth is 2 (n - 1) / n of the message over the time.",
    "a100_by_size": "8 A100 in one server. Fitted: 228.4 GB/s and 6.42 us a step, found in these same measurements.",
}


def all_reduce_s(message_bytes: float, hosts: int, topology: str, algorithm: str = "ring") -> float:
    """Return the time of an all-reduce over all GPUs of some hosts of eight, in a run of its own."""
    task = CollectiveTask(name="all-reduce", kind="all-reduce", message_bytes=message_bytes, algorithm=algorithm)
    job = ddlsched.Job(
        job_id="all-reduce",
        arrival_s=0.0,
        num_gpus=8 * hosts,
        iterations=1,
        iteration=IterationDag((task,)),
        gpu_memory_mb=1.0,
    )
    cluster = ddlsched.Cluster(num_servers=hosts, gpus_per_server=8, topology=topology)
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, contention="max-min", placement="first-fit")
    return float(result.jobs["jct_s"].item())


def bus_gb_per_s(message_bytes: float, seconds: float, gpus: int) -> float:
    """Return the bus bandwidth as nccl-tests print it: 2 (n - 1) / n of the message over the time."""
    return 2 * (gpus - 1) / gpus * message_bytes / seconds / GB


def table() -> pd.DataFrame:
    """Return simulated and measured bus bandwidths, a row a kind of host."""
    rows = []
    for host in HOSTS:
        seconds = all_reduce_s(GB, host.hosts, host.topology)
        simulated = bus_gb_per_s(GB, seconds, 8 * host.hosts)
        rows.append(
            {
                "hosts": host.name,
                "simulated_gb_per_s": round(simulated, 1),
                "measured_gb_per_s": host.measured_gb_per_s,
                "difference_percent": round(100 * (simulated / host.measured_gb_per_s - 1), 1),
                "source": host.source,
            }
        )
    return pd.DataFrame(rows)


def by_size(data: Path) -> pd.DataFrame:
    """Return times of messages of 1 MiB to 1 GiB on 8 A100: measured, by the data sheet, and with fitted constants."""
    frame = pd.read_csv(data / "a100_8gpu_nvlink.csv")
    sizes = frame.iloc[:, 0].to_numpy(np.float64)
    measured_us = frame.iloc[:, 3].to_numpy(np.float64) / 1e3
    chosen = [int(np.abs(sizes - size).argmin()) for size in 2.0 ** np.arange(20, 31)]
    sheet, fitted = (
        "rail-optimised:nvlink_gbps=2400",
        f"rail-optimised:nvlink_gbps={228.4 * 8},nvlink_latency_s=6.42e-6",
    )
    rows = []
    for place in chosen:
        sheet_us, fitted_us = (1e6 * all_reduce_s(sizes[place], 1, topology, "nccl") for topology in (sheet, fitted))
        error = 100 * (fitted_us / measured_us[place] - 1)
        rows.append(
            (sizes[place] / 2**20, measured_us[place], round(sheet_us, 1), round(fitted_us, 1), round(error, 1))
        )
    return pd.DataFrame(rows, columns=["mib", "measured_us", "data_sheet_us", "fitted_us", "fitted_error_percent"])


def main() -> int:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tables = {"bus_bandwidth": table()} | ({"a100_by_size": by_size(given.data)} if given.data else {})
    for name, frame in tables.items():
        print(f"{CONDITIONS[name]}\n{frame.to_string(index=False)}\n")
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            frame.to_csv(given.out / f"{name}.csv", index=False, lineterminator="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
