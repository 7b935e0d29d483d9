"""The GPU trace "openb" that Alibaba released in 2023: pods of a cluster that shares GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ddlsched.workload.traces.trace_files import read_csv
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    Source,
    TracedJob,
    gpus_of,
    number_of,
    text_of,
    whole_of,
)

__all__ = ["openb"]

_COLUMNS = ("name", "num_gpu", "gpu_milli", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
_WHOLE_GPU_MILLI = 1000


def openb(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read the list of pods: a pod is a job, its duration deletion less scheduling, a share of a GPU a whole one.

    References
    ----------
    Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
    USENIX ATC 2023.
    """
    return read_csv(source, _COLUMNS, _job_of_row)


def _job_of_row(cells: Cells) -> TracedJob:
    gpus, phase = gpus_of(cells, "num_gpu"), text_of(cells, "pod_phase")
    if not cells["scheduled_time"].strip():
        raise BadRowError("never started", f"scheduled_time is '' (pod_phase {phase}); expected seconds")
    duration_s = number_of(cells, "deletion_time") - number_of(cells, "scheduled_time")
    if duration_s <= 0:
        raise BadRowError(
            "duration is 0 or less", f"deletion is {duration_s:g} s after scheduling; expected more than 0"
        )
    shared = ", share of a GPU counted as a whole one" if whole_of(cells, "gpu_milli") < _WHOLE_GPU_MILLI else ""
    return TracedJob(
        job_id=text_of(cells, "name"),
        arrival_s=number_of(cells, "creation_time"),
        num_gpus=gpus,
        duration_s=duration_s,
        note=f"state {phase}{shared}",
    )
