"""Traces in the form of Tiresias' simulator, and of Muri's, which counts milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

from ddlsched.workload.traces.trace_files import read_csv
from ddlsched.workload.traces.traced import (
    Cells,
    Refusal,
    Source,
    TracedJob,
    gpus_of,
    number_of,
    optional_text,
    positive_s,
    text_of,
    whole_of,
)

__all__ = ["muri", "tiresias"]

_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def tiresias(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read the columns job_id, num_gpu, submit_time, iterations, model_name, duration; times in seconds.

    References
    ----------
    Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019.
    """
    return _read(source, unit_s=1.0)


def muri(source: Source) -> Iterator[TracedJob | Refusal]:
    """Read Tiresias' columns with times in milliseconds.

    References
    ----------
    Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022.
    """
    return _read(source, unit_s=1e-3)


def _read(source: Source, unit_s: float) -> Iterator[TracedJob | Refusal]:
    def job_of(cells: Cells) -> TracedJob:
        return TracedJob(
            job_id=text_of(cells, "job_id"),
            arrival_s=number_of(cells, "submit_time") * unit_s,
            num_gpus=gpus_of(cells, "num_gpu"),
            duration_s=positive_s(cells, "duration") * unit_s,
            iterations=whole_of(cells, "iterations"),
            model=optional_text(cells, "model_name"),
        )

    return read_csv(source, _COLUMNS, job_of)
