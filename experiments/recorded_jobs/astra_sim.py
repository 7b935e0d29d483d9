"""Chakra traces simulated here, beside ASTRA-sim's analytical back end and its formulas.

The two traces of ``../shared/data/training_traces`` were run in ASTRA-sim (commit 518bd51), as their README says.
Single collectives are compared with the formulas of its ring, of which that of the all-reduce was run, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ring import Ring

import ddlsched
from ddlsched.network.contention import MaxMin
from ddlsched.workload.dag import CollectiveTask, IterationDag
from ddlsched.workload.recorded.reading import read_iteration

RANKS: Final = 4
BYTES_PER_S: Final = 1.25 * 2**30
"""ASTRA-sim's "1.25 GB/s"."""
LATENCY_S: Final = 5e-6
RUN_IN_ASTRA_SIM: Final[Mapping[str, float]] = {"serial": 57.58, "ddp_overlap": 57.04}
"""Milliseconds."""
MESSAGE_BYTES: Final = 48 << 20


class Row(NamedTuple):
    """A trace or a collective, and its time here and there."""

    what: str
    simulated_ms: float
    astra_sim_ms: float

    @property
    def off(self) -> float:
        """Relative difference."""
        return self.simulated_ms / self.astra_sim_ms - 1


def traces(folder: Path) -> list[Row]:
    """Return the traces that were run in ASTRA-sim; ``folder`` has their files."""
    return [
        Row(name, step_ms(read_iteration(sorted(folder.glob(f"{name}.*.et"))).dag), there_ms)
        for name, there_ms in RUN_IN_ASTRA_SIM.items()
    ]


def collectives() -> list[Row]:
    """Return a collective of each kind alone."""
    return [
        Row(kind, step_ms(IterationDag((CollectiveTask(name="a", kind=kind, message_bytes=MESSAGE_BYTES),))), there_ms)
        for kind, there_ms in formulas_ms().items()
    ]


def formulas_ms() -> dict[str, float]:
    """Return what ASTRA-sim's ring takes for each kind: so many steps, each of an n-th of the message."""
    step_s = LATENCY_S + MESSAGE_BYTES / RANKS / BYTES_PER_S
    steps = {
        "all-reduce": 2 * (RANKS - 1),
        "all-gather": RANKS - 1,
        "reduce-scatter": RANKS - 1,
        "all-to-all": RANKS * (RANKS - 1) // 2,
    }
    return {kind: 1e3 * count * step_s for kind, count in steps.items()}


def step_ms(dag: IterationDag) -> float:
    """Return the time of an iteration on a ring of servers with a GPU each, milliseconds."""
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=RANKS, iterations=1, iteration=dag, gpu_memory_mb=1)
    cluster = ddlsched.Cluster(
        num_servers=RANKS, gpus_per_server=1, topology=Ring(bytes_per_s=BYTES_PER_S, latency_s=LATENCY_S)
    )
    result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, placement="first-fit", contention=MaxMin())
    return 1e3 * float(result.summary()["makespan_s"])
