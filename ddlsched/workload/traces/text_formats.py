"""Traces that are no plain table: JSON (Batsim, Philly), or a job a line (Gavel, Pollux and Sia, SWF)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddlsched.errors import InputError
from ddlsched.io.files import MOST_BYTES
from ddlsched.io.tables import parsed_json
from ddlsched.workload.traces.trace_files import json_elements, numbered_lines, read_csv, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Cells,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    moment_s,
    number_of,
    optional_text,
    positive_s,
    text_of,
    whole_of,
)


def batsim(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read jobs whose profile is a delay; a resource counts as a GPU, and a walltime cuts a job off.

    The number of a refused job is its place in ``jobs``, from 1.

    Raises
    ------
    InputError
        The text is no JSON object with ``jobs`` and ``profiles``.
    """
    document = parsed_json(_whole(source), source.name, "a Batsim workload")
    jobs, profiles = (document.get(name) if isinstance(document, dict) else None for name in ("jobs", "profiles"))
    if not isinstance(jobs, list) or not isinstance(profiles, dict):
        raise InputError(f"{source.name}: lacks jobs or profiles; expected {{'jobs': [...], 'profiles': {{...}}}}")

    def job_of(entry: Any) -> TracedJob:
        cells = _cells(entry)
        name = text_of(cells, "profile")
        return _job(cells, _delay_s(name, profiles.get(name)))

    return read_rows(enumerate(jobs, start=1), job_of)


def _whole(source: TraceSource) -> str:
    text = source.text.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise InputError(f"{source.name}: has more than {MOST_BYTES:,} characters; expected at most that many")
    return text


def _job(cells: Cells, delay_s: float) -> TracedJob:
    # A walltime that is left out, or negative, is none.
    limited = not cells.get("walltime", "-").startswith("-")
    walltime_s = positive_s(cells, "walltime") if limited else math.nan
    duration_s = min(delay_s, walltime_s) if limited else delay_s
    return TracedJob(
        job_id=text_of(cells, "id"),
        arrival_s=number_of(cells, "subtime"),
        num_gpus=gpus_of(cells, "res"),
        duration_s=duration_s,
        time_limit_s=walltime_s,
        note="cut off at its walltime" if duration_s < delay_s else None,
    )


def _delay_s(name: str, profile: Any) -> float:
    if not isinstance(profile, dict):
        raise BadRowError("unknown profile", f"profile {name!r} is not among profiles; expected one that is")
    if "delay" not in profile:
        raise BadRowError("profile without a delay", f"profile {name!r} is a {profile.get('type')!r}; expected a delay")
    return positive_s(_cells(profile), "delay")


def _cells(entry: Any) -> Mapping[str, str]:
    if not isinstance(entry, dict):
        raise BadRowError("not a job", "is no object")
    return {name: str(value) for name, value in entry.items() if isinstance(value, str | int | float)}


def philly(source: TraceSource) -> Iterator[TracedJob | Refusal]:
    """Read ``cluster_job_log``: a job's duration is the sum over its attempts, its GPUs the most of any attempt.

    References
    ----------
    Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019.
    """
    return read_rows(json_elements(source), _job_of_log)


def _job_of_log(entry: Any) -> TracedJob:
    attempts = entry.get("attempts") if isinstance(entry, dict) else None
    if not isinstance(attempts, list) or not all(_is_attempt(attempt) for attempt in attempts):
        raise BadRowError("not a job", "is no object with a list of attempts, each with a list of detail")
    cells = {name: value for name, value in entry.items() if isinstance(value, str)}
    if not attempts:
        raise BadRowError("never started", "has no attempts; expected at least one")
    duration_s = sum(_attempt_s(attempt) for attempt in attempts)
    gpus = max(sum(len(server["gpus"]) for server in attempt["detail"]) for attempt in attempts)
    if gpus == 0:
        raise BadRowError("0 GPUs", "no attempt names a GPU; expected at least 1")
    if duration_s == 0:
        raise BadRowError("duration is 0", "its attempts last 0 s in all; expected more")
    return TracedJob(
        job_id=text_of(cells, "jobid"),
        arrival_s=moment_s(cells, "submitted_time"),
        num_gpus=gpus,
        duration_s=duration_s,
        user=optional_text(cells, "user"),
        queue=optional_text(cells, "vc"),
        note=f"state {text_of(cells, 'status')}",
    )


def _is_attempt(attempt: Any) -> bool:
    detail = attempt.get("detail") if isinstance(attempt, dict) else None
    return isinstance(detail, list) and all(
        isinstance(server, dict) and isinstance(server.get("gpus"), list) for server in detail
    )


def _attempt_s(attempt: dict[str, Any]) -> float:
    cells = {name: attempt[name] for name in ("start_time", "end_time") if isinstance(attempt.get(name), str)}
    start_s = moment_s(cells, "start_time", missing="an attempt has no start")
    end_s = moment_s(cells, "end_time", missing="an attempt has no end")
    if end_s < start_s:
        raise BadRowError("negative duration", f"an attempt ends {start_s - end_s:g} s before it starts")
    return end_s - start_s


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
