"""Chakra traces and collectives simulated here, beside ASTRA-sim's analytical back end and its formulas.

All traces were run in ASTRA-sim (commit 518bd51, congestion-unaware), those of ``../shared/data/training_traces`` as
their README says, those of ``chakra/`` with the same settings on two dimensions. Single collectives are compared with
the formulas of ASTRA-sim's rings, which gave what it ran to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Final, NamedTuple

from phases import Phase, phased, phases_of
from torus import Torus

import ddlsched
from ddlsched.network.contention import MaxMin
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.workload.dag import CollectiveTask, IterationDag

GB_PER_S: Final = 2**30
"""What ASTRA-sim calls "1 GB/s", bytes a second."""
RING: Final = Torus(sizes=(4,), bytes_per_s=(1.25 * GB_PER_S,), latency_s=(5e-6,))
TORUS: Final = Torus(sizes=(4, 3), bytes_per_s=(2.5 * GB_PER_S, 1.25 * GB_PER_S), latency_s=(1e-6, 5e-6))
KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MESSAGE_BYTES: Final = 48 << 20
TRACES: Final = Path(__file__).parent / "chakra"
RING_TRACES_MS: Final[Mapping[str, float]] = {"serial": 57.58, "ddp_overlap": 57.04}
"""What they took in ASTRA-sim."""
TORUS_TRACES_MS: Final[Mapping[str, float]] = {
    "all-reduce": 10.68225,
    "all-gather": 5.591125,
    "reduce-scatter": 5.591125,
    "all-to-all": 16.92725,
    "sharded": 52.872973,
}
"""The same; the first four begin with 500 us of computation."""


class Row(NamedTuple):
    """A trace or a collective, and its time here and there."""

    what: str
    simulated_ms: float
    astra_sim_ms: float

    @property
    def off(self) -> float:
        """Relative difference."""
        return self.simulated_ms / self.astra_sim_ms - 1


def ring_traces(folder: Path) -> list[Row]:
    """Return the traces of four ranks that were run in ASTRA-sim; ``folder`` has their files."""
    return [
        Row(name, step_ms(read_iteration(sorted(folder.glob(f"{name}.*.et"))).dag, RING), there_ms)
        for name, there_ms in RING_TRACES_MS.items()
    ]


def torus_traces() -> list[Row]:
    """Return the traces of twelve ranks."""
    return [torus_trace(name) for name in TORUS_TRACES_MS]


def torus_trace(name: str) -> Row:
    """Return a trace of twelve ranks, of which one file stands for all."""
    read = read_iteration([TRACES / f"{name}.et"], num_ranks=prod(TORUS.sizes))
    return Row(name, step_ms(read.dag, TORUS), TORUS_TRACES_MS[name])


def collectives() -> list[Row]:
    """Return a collective of each kind alone, on the ring and on the torus."""
    return [collective(kind, torus) for torus in (RING, TORUS) for kind in KINDS]


def collective(kind: str, torus: Torus) -> Row:
    """Return a collective alone."""
    alone = IterationDag((CollectiveTask(name="a", kind=kind, message_bytes=MESSAGE_BYTES),))
    shape = " x ".join(map(str, torus.sizes))
    return Row(f"{kind}, {shape}", step_ms(alone, torus), 1e3 * collective_s(kind, MESSAGE_BYTES, torus))


def collective_s(kind: str, message_bytes: float, torus: Torus) -> float:
    """Return what ASTRA-sim takes for a collective of all ranks: its phases one behind the other, seconds."""
    return sum(_phase_s(phase, torus) for phase in phases_of(kind, message_bytes, torus.sizes))


def _phase_s(phase: Phase, torus: Torus) -> float:
    """Return so many steps round a ring, each of an n-th of the message."""
    ranks = torus.sizes[phase.dimension]
    steps = {
        "all-reduce": 2 * (ranks - 1),
        "all-gather": ranks - 1,
        "reduce-scatter": ranks - 1,
        "all-to-all": ranks * (ranks - 1) // 2,
    }
    part_s = phase.message_bytes / ranks / torus.bytes_per_s[phase.dimension]
    return steps[phase.kind] * (torus.latency_s[phase.dimension] + part_s)


def step_ms(dag: IterationDag, torus: Torus) -> float:
    """Return the time of an iteration on servers with a GPU each, its collectives in phases, milliseconds."""
    ranks = prod(torus.sizes)
    iteration = phased(dag, torus)
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=ranks, iterations=1, iteration=iteration, gpu_memory_mb=1)
    cluster = ddlsched.Cluster(num_servers=ranks, gpus_per_server=1, topology=torus)
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement="first-fit", contention=MaxMin())
    return 1e3 * float(result.summary()["makespan_s"])
