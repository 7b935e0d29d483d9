"""ASTRA-sim's analytical back ends beside ours, run here on the same Chakra traces.

    python tests/rivals/astra_sim_backends.py --astra-sim astra-sim --out DIR

The folder is a clone of astra-sim/astra-sim with its submodules, in which ``build/astra_analytical/build.sh`` has run
(it needs CMake and protobuf). One chunk a collective and no overheads, as ``SYSTEM`` says. A bandwidth of 1 GB/s is
2^30 bytes a second there. Ends with status 1 if a case is more than 1 % off ASTRA-sim without congestion, but for an
all-to-all: here it is sent straight and has the latency of one step, there it goes round a ring, or in steps.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import ddlsched
from ddlsched.cli.reporting import reported
from ddlsched.errors import InputError
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.workload.dag import IterationDag

sys.path.append(str(Path(__file__).parents[1]))

from chakra_files import COLLECTIVE, COMPUTE, chakra_node, write_chakra
from experiment_scripts import scripts_of

here, torus = scripts_of("recorded_jobs", "astra_sim", "torus")

BINARIES = "build/astra_analytical/build/bin/AstraSim_Analytical_Congestion_{}"
MOST_OFF = 0.01
SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 1,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1_000_000_000,
    "boost-mode": 0,
    "roofline-enabled": 0,
    "peak-perf": 900,
    **{f"{kind}-implementation": ["ring"] for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")},
}
KINDS = {"all-reduce": 0, "all-gather": 2, "all-to-all": 6, "reduce-scatter": 7}
GB, LATENCY_NS = 50.0, 500.0
"""Of every cable: "GB/s", and nanoseconds."""


class Case(NamedTuple):
    """A trace of which every rank has the same nodes, and the network that it runs on."""

    name: str
    network: str
    sizes: tuple[int, ...]
    nodes: list[bytes]

    @property
    def num_ranks(self) -> int:
        """Ranks, one a server."""
        return self.sizes[0] if len(self.sizes) == 1 else self.sizes[0] * self.sizes[1]


def collective(node_id: int, kind: str, size: int, *after: int) -> bytes:
    """Return a node that sends."""
    attributes = {"is_cpu_op": False, "comm_type": KINDS[kind], "comm_size": size}
    return chakra_node(node_id, COLLECTIVE, after=after, attributes=attributes)


def computed(node_id: int, duration_us: int, *after: int) -> bytes:
    """Return a node that computes."""
    return chakra_node(node_id, COMPUTE, after=after, duration_us=duration_us, attributes={"is_cpu_op": False})


def cases() -> Iterator[Case]:
    """Yield every kind of collective alone, and a step of data parallelism whose buckets meet computation."""
    for network, sizes in (("Ring", (4,)), ("Ring", (16,)), ("Switch", (8,))):
        for kind in KINDS:
            for mib in (1, 48):
                yield Case(f"{kind}, {mib} MiB", network, sizes, [collective(1, kind, mib << 20)])
        step = [computed(0, 500), collective(1, "all-reduce", 64 << 20, 0), computed(2, 900, 0)]
        step += [collective(3, "all-reduce", 96 << 20, 2), computed(4, 300, 1, 3)]
        yield Case("step in two buckets", network, sizes, step)


def simulated_ns(dag: IterationDag, case: Case) -> float:
    """Return what a step takes here, nanoseconds."""
    bytes_per_s, latency_s = GB * here.GB_PER_S, LATENCY_NS * 1e-9
    if case.network == "Ring":
        count = len(case.sizes)
        rings = torus.Torus(sizes=case.sizes, bytes_per_s=(bytes_per_s,) * count, latency_s=(latency_s,) * count)
        return 1e6 * float(here.step_ms(dag, rings))
    star = f"star:nic_gbps={bytes_per_s * 8 / 1e9},latency_s={latency_s}"
    job = ddlsched.Job(
        job_id="a", arrival_s=0.0, num_gpus=case.num_ranks, iterations=1, iteration=dag, gpu_memory_mb=1.0
    )
    cluster = ddlsched.Cluster(num_servers=case.num_ranks, gpus_per_server=1, topology=star)
    run = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement="first-fit", contention="max-min")
    return 1e9 * float(run.summary()["makespan_s"])


def here_ns(case: Case, folder: Path) -> float:
    """Return what a case takes here, from the file that ASTRA-sim reads."""
    path = write_chakra(folder / "one.0.et", case.nodes)
    return simulated_ns(read_iteration([path], num_ranks=case.num_ranks).dag, case)


def there_ns(clone: Path, case: Case, folder: Path, back_end: str) -> int:
    """Run ASTRA-sim on a trace a rank; return when the last rank had finished, nanoseconds.

    Raises
    ------
    InputError
        It is not built, or ends without a time for each rank.
    """
    for rank in range(case.num_ranks):
        write_chakra(folder / f"t.{rank}.et", case.nodes)
    count = len(case.sizes)
    network = {"topology": [case.network] * count, "npus_count": list(case.sizes)}
    network |= {"bandwidth": [GB] * count, "latency": [LATENCY_NS] * count}  # type: ignore[dict-item]
    (folder / "network.yml").write_text(
        "".join(f"{key}: {json.dumps(value).replace(chr(34), '')}\n" for key, value in network.items())
    )
    straight = {"all-to-all-implementation": ["direct"]} if case.network == "Switch" else {}
    system = SYSTEM | straight
    (folder / "system.json").write_text(json.dumps(system))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    program = (clone / BINARIES.format(back_end)).resolve()
    if not program.is_file():
        raise InputError(
            f"--astra-sim: there is no {program}; expected a clone that build/astra_analytical/build.sh built"
        )
    given = {"workload": "t", "system": "system.json", "network": "network.yml", "remote-memory": "memory.json"}
    flags = [f"--{name}-configuration={folder / value}" for name, value in given.items()]
    done = subprocess.run([program, *flags], cwd=folder, capture_output=True, text=True, check=False)
    ended = [int(cycles) for cycles in re.findall(r"sys\[\d+\] finished, (\d+) cycles", done.stdout)]
    if len(ended) != case.num_ranks:
        raise InputError(
            f"{program.name}: {len(ended)} of {case.num_ranks} ranks ended: {(done.stderr or done.stdout)[-300:]}"
        )
    return max(ended)


def beside(clone: Path) -> pd.DataFrame:
    """Return a row a case: its time there, by both back ends, its time here, and how far ours is off."""
    rows = []
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            unaware, aware = (there_ns(clone, case, Path(folder), end) for end in ("Unaware", "Aware"))
            found = here_ns(case, Path(folder))
        row = {"case": case.name, "network": f"{case.network} {' x '.join(map(str, case.sizes))}"}
        rows.append(row | {"astra_sim_ns": unaware, "astra_sim_congestion_aware_ns": aware, "here_ns": round(found)})
        rows[-1]["off_percent"] = round(100 * (found / unaware - 1), 3)  # type: ignore[assignment]
    return pd.DataFrame(rows)


def main() -> None:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--astra-sim", type=Path, required=True, metavar="CLONE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write astra_sim_backends.csv")
    asked = parser.parse_args()
    with reported():
        table = beside(asked.astra_sim)
        print(table.to_string(index=False))
        if asked.out is not None:
            asked.out.mkdir(parents=True, exist_ok=True)
            table.to_csv(asked.out / "astra_sim_backends.csv", index=False)
    alike = table[~table["case"].str.startswith("all-to-all")]
    sys.exit(int((alike["off_percent"].abs() > 100 * MOST_OFF).any()))


if __name__ == "__main__":
    main()
