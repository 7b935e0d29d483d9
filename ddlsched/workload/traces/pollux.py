"""Workloads of Pollux and Sia: an application, a number of GPUs and a batch size a job, but no duration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ddlsched.workload.traces.trace_files import read_csv
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    number_of,
    text_of,
    whole_of,
)

__all__ = ["APPLICATIONS", "Application", "pollux"]


_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


class Application(NamedTuple):
    """A training task: model, passes over the data, samples a pass, and a step's time by samples on a GPU."""

    model: str
    epochs: int
    samples: int
    step_s: float
    step_per_sample_s: float


APPLICATIONS = {
    "bert": Application("bert", 2, 88_644, 0.22673, 0.0578322),
    "cifar10": Application("resnet18", 100, 50_000, 0.0177467, 0.000664256),
    "deepspeech2": Application("deepspeech2", 80, 7_136, 0.0928089, 0.0290517),
    "imagenet": Application("resnet50", 90, 1_281_167, 0.0796511, 0.00420817),
    "ncf": Application("ncf", 10, 4_970_845, 0.00764905, 4.33653e-07),
    "yolov3": Application("yolov3", 50, 16_551, 0.218869, 0.0243043),
}
"""The six applications. Epochs are those of Sia's copy of Pollux's table of applications (siasosp23/artifacts), samples
what the validation files of petuum/adaptdl (branch osdi21-artifact) count an epoch; the time of a step is a line, by
least squares, through the latter's measurements on one GPU (simulator/traces/*/placements.csv, placement 1)."""


def pollux(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read the columns name, time, application, num_replicas, batch_size.

    Iterations are epochs x samples / batch size; the compute time of one is that measured on one GPU for the
    batch's share of a GPU. What larger batches lose in statistical efficiency is not modelled.

    References
    ----------
    Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
    Subramanya et al., "Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling", SOSP 2023.
    """
    return read_csv(source, lambda _header: (_COLUMNS, _job_of_row))


def _job_of_row(cells: Cells) -> TracedJob:
    name, gpus, batch = text_of(cells, "application"), gpus_of(cells, "num_replicas"), whole_of(cells, "batch_size")
    application = APPLICATIONS.get(name)
    if application is None:
        raise BadRowError("unknown application", f"application is {name!r}; expected one of {', '.join(APPLICATIONS)}")
    if batch == 0:
        raise BadRowError("batch_size is 0", "batch_size is 0; expected at least 1")
    return TracedJob(
        job_id=text_of(cells, "name"),
        arrival_s=number_of(cells, "time"),
        num_gpus=gpus,
        iterations=max(1, round(application.epochs * application.samples / batch)),
        compute_s=application.step_s + application.step_per_sample_s * batch / gpus,
        model=application.model,
    )
