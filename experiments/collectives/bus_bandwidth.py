"""All-reduces in a server and across rails, beside the bus bandwidths that NCCL reaches on such hosts.

    python experiments/collectives/bus_bandwidth.py [--data DIR] [--out DIR]

``measured.csv`` has hosts by their data sheets, and what NCCL was measured to reach; where it names another CSV file,
that is output of nccl-tests which is not part of the project. ``DIR`` holds ``a100_8gpu_nvlink.csv``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import ddlsched
from ddlsched import CollectiveTask, IterationDag

GB = 1e9
NVLS_GB_PER_S = {5: 258.0, 6: 265.0, 7: 270.0, 8: 273.0}
"""Message over time of large all-reduces with NVLS, by the number of H100 (github.com/NVIDIA/nccl/issues/1455)."""
H100_PORT_GB_PER_S = 450.0
BLACKWELLS_PART = 0.74 / 0.85
"""Of the share that Hopper's switches reach: ``nvlsEfficiency`` of both in NCCL's ``src/graph/tuning.cc``."""

CONDITIONS = {
    "bus_bandwidth": "All-reduces of 1 GB alone, max-min sharing, links as the data sheets say, no latency; bus "
    "bandwidth is 2 (n - 1) / n of the message over the time.",
    "a100_by_size": "8 A100 in one server. Fitted: 228.4 GB/s and 6.42 us a step, found in these same measurements.",
}


def port_shares() -> dict[int, float]:
    """Return the share of a port's bandwidth that NVLS reaches: each port moves (n + 1) / n of the message."""
    return {n: (n + 1) / n * reached / H100_PORT_GB_PER_S for n, reached in NVLS_GB_PER_S.items()}


def all_reduce_s(message_bytes: float, hosts: int, topology: str, algorithm: str = "ring", gpus: int = 8) -> float:
    """Return the time of an all-reduce over all GPUs of some hosts, in a run of its own."""
    task = CollectiveTask(name="all-reduce", kind="all-reduce", message_bytes=message_bytes, algorithm=algorithm)
    job = ddlsched.Job(
        job_id="all-reduce",
        arrival_s=0.0,
        num_gpus=gpus * hosts,
        iterations=1,
        iteration=IterationDag((task,)),
        gpu_memory_mb=1.0,
    )
    cluster = ddlsched.Cluster(num_servers=hosts, gpus_per_server=gpus, topology=topology)
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, contention="max-min", placement="first-fit")
    return float(result.jobs["jct_s"].item())


def bus_gb_per_s(message_bytes: float, seconds: float, gpus: int) -> float:
    """Return the bus bandwidth as nccl-tests print it: 2 (n - 1) / n of the message over the time."""
    return 2 * (gpus - 1) / gpus * message_bytes / seconds / GB


def table() -> pd.DataFrame:
    """Return simulated and measured bus bandwidths, a row a kind of host."""
    hosts = pd.read_csv(Path(__file__).parent / "measured.csv")
    simulated = []
    for host in hosts.itertuples():
        inside, rails = f"nvlink_gbps={host.nvlink_gbps}", f"rails={host.rails},rail_gbps={host.rail_gbps}"
        topology = f"rail-optimised:{inside},{rails},hosts_per_unit=32"
        seconds = all_reduce_s(GB, host.servers, topology, host.algorithm, host.gpus)
        simulated.append(bus_gb_per_s(GB, seconds, host.gpus * host.servers))
    found = hosts[["hosts", "measured_gb_per_s", "source"]]
    found.insert(1, "simulated_gb_per_s", np.round(simulated, 1))
    found.insert(3, "difference_percent", np.round(100 * (simulated / hosts["measured_gb_per_s"] - 1), 1))
    return found


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
    shares = port_shares()
    each, mean = ", ".join(f"{share:.3f} on {count}" for count, share in shares.items()), np.mean([*shares.values()])
    print(f"port_share of NVLS, fitted: {mean:.3f} ({each} H100); Blackwell's: {mean * BLACKWELLS_PART:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
