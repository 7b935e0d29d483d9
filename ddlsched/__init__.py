"""ddlsched: scheduling distributed deep-learning jobs on shared GPU clusters, simulated.

>>> import ddlsched
>>> workload = ddlsched.microsoft_160(seed=1, scale=0.001)
>>> result = ddlsched.simulate(workload, scheduler="ada-srsf")
>>> result.summary()["jobs"]
160
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster, Server
    from ddlsched.cluster.cluster_files import read_cluster, read_tenants
    from ddlsched.cluster.disturbances import Disturbances, Outage
    from ddlsched.cluster.tenants import Preemption, Queue, Quota, Tenants
    from ddlsched.comparisons.compare import compare
    from ddlsched.comparisons.comparison import Comparison
    from ddlsched.comparisons.report.html_report import report
    from ddlsched.errors import (
        DdlschedError,
        InputError,
        InvalidDecisionError,
        PluginError,
        SimulationError,
        UnknownNameError,
    )
    from ddlsched.network.contention import EqualShare, Linear, MaxMin
    from ddlsched.results.result import Result
    from ddlsched.results.timeline import write_timeline
    from ddlsched.simulation import simulate
    from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, DataParallelIteration, IterationDag
    from ddlsched.workload.generators.microsoft import microsoft_160
    from ddlsched.workload.job import Job, Workload
    from ddlsched.workload.traces.trace_import import import_trace
    from ddlsched.workload.workload_files import read_workload, workload_table, write_workload

_NAMES = {
    "workload.dag": ("AllReduceTask", "CollectiveTask", "ComputeTask", "DataParallelIteration", "IterationDag"),
    "cluster.cluster": ("Cluster", "Server"),
    "comparisons.comparison": ("Comparison",),
    "errors": (
        "DdlschedError",
        "InputError",
        "InvalidDecisionError",
        "PluginError",
        "SimulationError",
        "UnknownNameError",
    ),
    "cluster.disturbances": ("Disturbances", "Outage"),
    "network.contention": ("EqualShare", "Linear", "MaxMin"),
    "workload.job": ("Job", "Workload"),
    "cluster.tenants": ("Preemption", "Queue", "Quota", "Tenants"),
    "results.result": ("Result",),
    "comparisons.compare": ("compare",),
    "workload.traces.trace_import": ("import_trace",),
    "workload.generators.microsoft": ("microsoft_160",),
    "cluster.cluster_files": ("read_cluster", "read_tenants"),
    "workload.workload_files": ("read_workload", "workload_table", "write_workload"),
    "comparisons.report.html_report": ("report",),
    "simulation": ("simulate",),
    "results.timeline": ("write_timeline",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AllReduceTask",
    "Cluster",
    "CollectiveTask",
    "Comparison",
    "ComputeTask",
    "DataParallelIteration",
    "DdlschedError",
    "Disturbances",
    "EqualShare",
    "InputError",
    "InvalidDecisionError",
    "IterationDag",
    "Job",
    "Linear",
    "MaxMin",
    "Outage",
    "PluginError",
    "Preemption",
    "Queue",
    "Quota",
    "Result",
    "Server",
    "SimulationError",
    "Tenants",
    "UnknownNameError",
    "Workload",
    "compare",
    "import_trace",
    "microsoft_160",
    "read_cluster",
    "read_tenants",
    "read_workload",
    "report",
    "simulate",
    "workload_table",
    "write_timeline",
    "write_workload",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import ddlsched`` is quick."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ddlsched")
    if name not in _HOME:
        raise AttributeError(f"module 'ddlsched' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddlsched.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
