"""Gavel's traces: a job type, steps and a number of GPUs a job, in 7 or 10 columns separated by tabs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddlsched.workload.traces.trace_files import numbered_lines, read_rows
from ddlsched.workload.traces.traced import (
    BadRowError,
    Refusal,
    TracedJob,
    TraceSource,
    gpus_of,
    number_of,
    text_of,
    whole_of,
)

__all__ = ["STEPS_PER_S", "gavel"]

STEPS_PER_S = {
    "ResNet-18 (batch size 16)": (32.353, 100.14, 123.85, 382.6),
    "ResNet-18 (batch size 32)": (29.947, 94.249, 114.73, 340.04),
    "ResNet-18 (batch size 64)": (24.093, 74.136, 95.588, 255.83),
    "ResNet-18 (batch size 128)": (17.995, 23.985, 69.951, 162.09),
    "ResNet-18 (batch size 256)": (10.3, 15.883, 27.782, 81.507),
    "ResNet-50 (batch size 16)": (11.396, 13.86, 23.196, 27.799),
    "ResNet-50 (batch size 32)": (7.7873, 10.835, 13.763, 24.067),
    "ResNet-50 (batch size 64)": (4.3948, 7.9221, 9.4519, 17.303),
    "ResNet-50 (batch size 128)": (2.4968, 4.223, 7.0293, 10.293),
    "Transformer (batch size 16)": (11.064, 14.154, 20.085, 71.652),
    "Transformer (batch size 32)": (10.621, 13.328, 22.823, 63.978),
    "Transformer (batch size 64)": (8.6178, 15.876, 19.66, 49.651),
    "Transformer (batch size 128)": (5.4461, 10.069, 14.175, 30.884),
    "Transformer (batch size 256)": (1.5951, 2.8852, 4.763, 9.717),
    "A3C": (7.1758,),
    "LM (batch size 5)": (109.17, 185.72, 126.72, 698.77),
    "LM (batch size 10)": (81.652, 163.13, 121.48, 615.09),
    "LM (batch size 20)": (64.742, 132.17, 111.0, 497.3),
    "LM (batch size 40)": (45.237, 91.593, 96.031, 359.31),
    "LM (batch size 80)": (28.24, 58.092, 74.807, 231.18),
    "Recommendation (batch size 512)": (23.318,),
    "Recommendation (batch size 1024)": (13.283,),
    "Recommendation (batch size 2048)": (7.4696,),
    "Recommendation (batch size 4096)": (3.9061,),
    "Recommendation (batch size 8192)": (2.8415,),
    "CycleGAN": (4.4261,),
}
"""Steps a second of each job type on 1, 2, 4 and 8 V100 GPUs on as few servers as can be, or on 1 alone: Gavel's
measurements (simulation_throughputs.json of stanford-futuredata/gavel, MIT licence), to five digits."""

_COLUMNS = {7: {"steps": 4, "arrival": 5, "gpus": 6}, 10: {"steps": 5, "gpus": 6, "arrival": 9}}
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
    return read_rows(numbered_lines(source), _job_of_line)


def _job_of_line(line: str) -> TracedJob:
    values = line.rstrip("\n").split("\t")
    places = _COLUMNS.get(len(values))
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
