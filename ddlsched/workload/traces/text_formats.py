"""Traces of a job a line that are no plain table: Gavel's, Pollux's and Sia's, the Standard Workload Format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ddlsched.workload.traces.trace_files import numbered_lines, read_csv, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    number_of,
    optional_text,
    positive_s,
    text_of,
    whole_of,
)

__all__ = ["APPLICATIONS", "STEPS_PER_S", "Application", "gavel", "pollux", "swf"]


class Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training task: model, passes over the data, samples a pass, and a step's time by samples on a GPU."""

    model: str
    epochs: int
    samples: int
    step_s: float
    step_per_sample_s: float


class _Measured(msgspec.Struct, frozen=True):
    gavel_steps_per_s: dict[str, tuple[float, ...]]
    pollux_applications: dict[str, Application]


_MEASURED = msgspec.yaml.decode(Path(__file__).with_name("measured_models.yaml").read_bytes(), type=_Measured)
STEPS_PER_S = _MEASURED.gavel_steps_per_s
"""Steps a second of each job type of Gavel on 1, 2, 4 and 8 V100 GPUs on as few servers as can be, or on 1 alone."""
APPLICATIONS = _MEASURED.pollux_applications
"""The six applications of Pollux and Sia."""

_GAVEL_PLACES = {7: {"steps": 4, "arrival": 5, "gpus": 6}, 10: {"steps": 5, "gpus": 6, "arrival": 9}}
_BATCH_SIZE = re.compile(r" \(batch size \d+\)$")


def gavel(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read lines without a header; a job's id is its line.

    Seven columns: job type, command, argument of the steps, whether it needs data, steps, arrival in seconds, GPUs.
    Ten: job type, command, folder, argument of the steps, whether it needs data, steps, GPUs, weight, objective,
    arrival. The duration is steps / steps a second as measured on the job's number of GPUs, or else on the largest
    number below it that was measured.

    References
    ----------
    Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.
    """
    return read_rows(numbered_lines(source), _job_of_gavel)


def _job_of_gavel(line: str) -> TracedJob:
    values = line.rstrip("\n").split("\t")
    places = _GAVEL_PLACES.get(len(values))
    if places is None:
        raise BadRowError("wrong number of values", f"has {len(values)} values separated by tabs; expected 7 or 10")
    cells = {name: values[place] for name, place in places.items()} | {"job type": values[0]}
    job_type, gpus, steps = text_of(cells, "job type"), gpus_of(cells, "gpus"), whole_of(cells, "steps")
    if job_type not in STEPS_PER_S:
        raise BadRowError("unknown job type", f"job type is {job_type!r}; expected one whose throughput Gavel measured")
    if steps == 0:
        raise BadRowError("0 steps", "steps is 0; expected at least 1")
    measured = STEPS_PER_S[job_type]
    # Measured on 1, 2, 4 and 8 GPUs.
    place = min(gpus.bit_length(), len(measured)) - 1
    return TracedJob(
        job_id="",
        arrival_s=number_of(cells, "arrival"),
        num_gpus=gpus,
        duration_s=steps / measured[place],
        iterations=steps,
        model=_BATCH_SIZE.sub("", job_type),
        note=None if 1 << place == gpus else "throughput of fewer GPUs",
    )


_POLLUX_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def pollux(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read the columns name, time, application, num_replicas, batch_size.

    Iterations are epochs x samples / batch size; the compute time of one is that measured on one GPU for the
    batch's share of a GPU. What larger batches lose in statistical efficiency is not modelled.

    References
    ----------
    Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
    Subramanya et al., "Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling", SOSP 2023.
    """
    return read_csv(source, lambda _header: (_POLLUX_COLUMNS, _job_of_pollux))


def _job_of_pollux(cells: Cells) -> TracedJob:
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


_SWF_FIELDS = 18
_SWF_NAMES = {
    0: "job number",
    1: "submit time",
    3: "run time",
    4: "processors",
    7: "requested processors",
    8: "requested time",
    10: "status",
    11: "user",
}
_SWF_STATES = {"0": "failed", "1": "completed", "5": "cancelled", "-1": "unknown"}
_SWF_PARTS = {"2", "3", "4"}


def swf(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read the 18 fields of a line; a processor counts as a GPU, lines that begin with ``;`` are comments.

    Processors are those allocated, or those requested where the log does not tell; the time requested is the job's
    limit.

    References
    ----------
    Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999.
    """
    rows = ((number, line) for number, line in numbered_lines(source) if not line.lstrip().startswith(";"))
    return read_rows(rows, _job_of_swf)


def _job_of_swf(line: str) -> TracedJob:
    fields = line.split()
    if len(fields) != _SWF_FIELDS:
        raise BadRowError("wrong number of values", f"has {len(fields)} values; expected {_SWF_FIELDS}")
    # -1 stands for what the log does not tell.
    cells = {name: "" if fields[place] == "-1" else fields[place] for place, name in _SWF_NAMES.items()}
    status = fields[10]
    if status in _SWF_PARTS:
        raise BadRowError("part of a job", f"status is {status}; expected a line of the whole job")
    processors = "processors" if cells["processors"] not in ("", "0") else "requested processors"
    return TracedJob(
        job_id=text_of(cells, "job number"),
        arrival_s=number_of(cells, "submit time"),
        num_gpus=gpus_of(cells, processors),
        duration_s=positive_s(cells, "run time"),
        time_limit_s=positive_s(cells, "requested time") if cells["requested time"] not in ("", "0") else math.nan,
        user=optional_text(cells, "user"),
        note=f"state {_SWF_STATES.get(status, status)}",
    )
