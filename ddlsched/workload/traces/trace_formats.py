"""The trace formats by name. What reads JSON and other text is imported when its format is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.workload.traces.columns import TraceColumns, own_table, table
from ddlsched.workload.traces.traced import Reader

__all__ = ["FORMATS", "TraceFormat", "reader_of"]


class TraceFormat(NamedTuple):
    """A format: what it is, its files' names within an archive, and how it is read.

    ``reader`` is the layouts of a table, of which the first that fits a file counts, or module and function.
    """

    reader: str | tuple[TraceColumns, ...]
    summary: str
    members: str = "*.csv"


_HELIOS = TraceColumns(
    job_id="job_id",
    user="user",
    queue="vc",
    gpus="gpu_num",
    state="state",
    arrival_s="submit_time",
    start_s="start_time",
    end_s="end_time",
    duration_s="duration",
)
# Kalos' column ``duration`` counts the wait, too, in the examples of its documentation.
_ACME = replace(_HELIOS, duration_s=None, queue="type", fail_s="fail_time")
_OPENB = TraceColumns(
    job_id="name",
    gpus="num_gpu",
    gpu_milli="gpu_milli",
    state="pod_phase",
    priority="qos",
    arrival_s="creation_time",
    start_s="scheduled_time",
    end_s="deletion_time",
)
_DLRM = TraceColumns(
    job_id="instance_sn",
    gpus="gpu_request",
    user="app_name",
    arrival_s="creation_time",
    start_s="scheduled_time",
    end_s="deletion_time",
)
_SPOT = TraceColumns(
    job_id="job_name",
    gpus="gpu_request",
    workers="worker_num",
    user="organization",
    queue="organization",
    state="job_type",
    priority="job_type",
    arrival_s="submit_time",
    duration_s="duration",
)
_ITP = TraceColumns(
    job_id="job_id", gpus="num_gpu", arrival_s="submission_time", duration_s="duration", user_is_file=True
)
_ELASTICFLOW = replace(_ITP, iterations="num_iteration", model="model_name", user_is_file=False)
_ELASTICFLOW_OLDER = replace(_ELASTICFLOW, arrival_s="submit_time", iterations="iteration")
_TIRESIAS = replace(_ELASTICFLOW_OLDER, iterations="iterations")
_MURI = replace(_TIRESIAS, unit_s=1e-3)
_PHILLY = TraceColumns(arrival_s="timestamp", duration_s="duration", gpus="num_gpus", user="cluster", queue="cluster")

FORMATS = {
    # Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024.
    "acme": TraceFormat((_ACME,), "Shanghai AI Laboratory's Acme, clusters Seren and Kalos (CSV)", "trace_*.csv"),
    # Yang et al., "GPU-Disaggregated Serving for Deep Learning Recommendation Models at Scale", NSDI 2025.
    "alibaba-dlrm": TraceFormat((_DLRM,), "Alibaba's inference instances of 2025 (CSV)"),
    # Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
    # USENIX ATC 2023.
    "alibaba-openb": TraceFormat((_OPENB,), "Alibaba's GPU trace of 2023, list of pods (CSV)"),
    # Duan et al., "GFS: A Preemptive Scheduling Framework for GPU Clusters with Predictive Spot Management", ASPLOS
    # 2026.
    "alibaba-spot": TraceFormat((_SPOT,), "Alibaba's spot and high-priority jobs of 2026 (CSV)", "job_info*.csv"),
    "batsim": TraceFormat("json_formats:batsim", "Batsim workload with delay profiles (JSON)", "*.json"),
    "csv": TraceFormat("", "a table of your own, whose columns --column names (CSV)"),
    # Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023.
    "elasticflow": TraceFormat((_ELASTICFLOW, _ELASTICFLOW_OLDER), "ElasticFlow's traces, older and newer form (CSV)"),
    "gavel": TraceFormat("text_formats:gavel", "Gavel's traces of 7 and of 10 columns (TSV)", "*.trace"),
    # Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
    "helios": TraceFormat((_HELIOS,), "SenseTime's Helios, cluster_log (CSV)", "*cluster_log.csv"),
    "microsoft-itp": TraceFormat((_ITP,), "Microsoft's ITP clusters, raw traces of ElasticFlow's authors (CSV)"),
    # Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022.
    "muri": TraceFormat((_MURI,), "Muri's traces, times in milliseconds (CSV)"),
    "philly": TraceFormat("json_formats:philly", "Microsoft's Philly, cluster_job_log (JSON)", "cluster_job_log*"),
    "philly-csv": TraceFormat((_PHILLY,), "the Philly subset of Pollux's authors (CSV)"),
    "pollux": TraceFormat("text_formats:pollux", "Pollux's workloads (CSV)"),
    "sia": TraceFormat("text_formats:pollux", "Sia's workloads (CSV)"),
    "swf": TraceFormat("text_formats:swf", "Standard Workload Format", "*.swf*"),
    # Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019.
    "tiresias": TraceFormat((_TIRESIAS,), "Tiresias' traces (CSV)"),
}
"""Every format that can be imported; a new one is a line here, and a function in this package if it is no table."""


def reader_of(name: str, columns: Mapping[str, str] | None = None) -> Reader:
    """Return the function that reads a format; ``columns`` are those of ``csv``, by what they tell.

    Raises
    ------
    UnknownNameError
        No format of that name, or a column that tells nothing.
    InputError
        TraceColumns for a format that has its own.
    """
    if name not in FORMATS:
        raise UnknownNameError(f"unknown trace format {name!r}.{did_you_mean(name, FORMATS)}")
    if name == "csv":
        return own_table(columns or {})
    if columns:
        raise InputError(f"--column is given for {name}, which has columns of its own; expected the format csv with it")
    given = FORMATS[name].reader
    if not isinstance(given, str):
        return partial(table, given)
    module, function = given.split(":")
    reader: Reader = getattr(importlib.import_module(f"ddlsched.workload.traces.{module}"), function)
    return reader
