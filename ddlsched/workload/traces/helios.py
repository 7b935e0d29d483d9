"""The Helios trace of SenseTime."""

from __future__ import annotations

from collections.abc import Iterator

from ddlsched.workload.traces.trace_files import read_csv
from ddlsched.workload.traces.traced import (
    Cells,
    Refusal,
    Source,
    TracedJob,
    gpus_of,
    moment_s,
    optional_text,
    positive_s,
    text_of,
)

__all__ = ["helios"]

_COLUMNS = ("job_id", "user", "gpu_num", "state", "submit_time", "start_time", "end_time", "duration")


def helios(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read ``cluster_log.csv``; jobs of every final state count, those of CPUs alone are refused.

    References
    ----------
    Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
    """
    return read_csv(source, _COLUMNS, _job_of_row)


def _job_of_row(cells: Cells) -> TracedJob:
    gpus = gpus_of(cells, "gpu_num")
    moment_s(cells, "start_time", missing="never started")
    moment_s(cells, "end_time", missing="never ended")
    return TracedJob(
        job_id=text_of(cells, "job_id"),
        arrival_s=moment_s(cells, "submit_time"),
        num_gpus=gpus,
        duration_s=positive_s(cells, "duration"),
        user=optional_text(cells, "user"),
        note=f"state {text_of(cells, 'state')}",
    )
