"""The trace formats by name. Nothing is imported before a format is used, so that listing them is quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from ddlsched.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from ddlsched.workload.traces.traced import Reader

__all__ = ["FORMATS", "TraceFormat", "reader_of"]


class TraceFormat(NamedTuple):
    """A format: the module and function that read it, what it is, and its files' names within an archive."""

    reader: str
    summary: str
    members: str = "*.csv"


FORMATS = {
    "alibaba-openb": TraceFormat("openb:openb", "Alibaba's GPU trace of 2023, list of pods (CSV)"),
    "batsim": TraceFormat("batsim:batsim", "Batsim workload with delay profiles (JSON)", "*.json"),
    "elasticflow": TraceFormat("elasticflow:elasticflow", "ElasticFlow's traces, older and newer form (CSV)"),
    "gavel": TraceFormat("gavel:gavel", "Gavel's traces of 7 and of 10 columns (TSV)", "*.trace"),
    "helios": TraceFormat("helios:helios", "SenseTime's Helios, cluster_log (CSV)", "*cluster_log.csv"),
    "microsoft-itp": TraceFormat("elasticflow:microsoft_itp", "Microsoft's ITP clusters, raw traces (CSV)"),
    "muri": TraceFormat("tiresias:muri", "Muri's traces, times in milliseconds (CSV)"),
    "philly": TraceFormat("philly:philly", "Microsoft's Philly, cluster_job_log (JSON)", "cluster_job_log*"),
    "philly-csv": TraceFormat("philly:philly_csv", "the Philly subset of Pollux's authors (CSV)"),
    "pollux": TraceFormat("pollux:pollux", "Pollux's workloads (CSV)"),
    "sia": TraceFormat("pollux:pollux", "Sia's workloads (CSV)"),
    "swf": TraceFormat("swf:swf", "Standard Workload Format", "*.swf*"),
    "tiresias": TraceFormat("tiresias:tiresias", "Tiresias' traces (CSV)"),
}
"""Every format that can be imported; a new one is a line here and a function in this package."""


def reader_of(name: str) -> Reader:
    """Return the function that reads a format.

    Raises
    ------
    UnknownNameError
        No format of that name.
    """
    if name not in FORMATS:
        raise UnknownNameError(f"unknown trace format {name!r}.{did_you_mean(name, FORMATS)}")
    module, function = FORMATS[name].reader.split(":")
    reader: Reader = getattr(importlib.import_module(f"ddlsched.workload.traces.{module}"), function)
    return reader
