"""ddlsched: scheduling distributed deep-learning jobs on shared GPU clusters, simulated.

>>> import ddlsched
>>> workload = ddlsched.microsoft_160(seed=1)
>>> result = ddlsched.simulate(workload, scheduler="ada-srsf")
>>> result.summary()["average_jct_s"]  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlsched.cluster import Cluster, Server
    from ddlsched.comparing.compare import compare
    from ddlsched.comparing.comparison import Comparison
    from ddlsched.contention import EqualShare, Linear, MaxMin
    from ddlsched.dag import AllReduceTask, ComputeTask, DataParallelIteration, IterationDag
    from ddlsched.disturbances import Disturbances, Outage
    from ddlsched.errors import (
        DdlschedError,
        InputError,
        InvalidDecisionError,
        PluginError,
        SimulationError,
        UnknownNameError,
    )
    from ddlsched.jobs import Job, Workload
    from ddlsched.reporting.html_report import report
    from ddlsched.results.result import Result
    from ddlsched.simulation import simulate
    from ddlsched.workloads.microsoft import microsoft_160
    from ddlsched.workloads.traces import import_trace

_HOME = {
    "AllReduceTask": "dag",
    "Cluster": "cluster",
    "Comparison": "comparing.comparison",
    "ComputeTask": "dag",
    "DataParallelIteration": "dag",
    "DdlschedError": "errors",
    "Disturbances": "disturbances",
    "EqualShare": "contention",
    "InputError": "errors",
    "InvalidDecisionError": "errors",
    "IterationDag": "dag",
    "Job": "jobs",
    "Linear": "contention",
    "MaxMin": "contention",
    "Outage": "disturbances",
    "PluginError": "errors",
    "Result": "results.result",
    "Server": "cluster",
    "SimulationError": "errors",
    "UnknownNameError": "errors",
    "Workload": "jobs",
    "compare": "comparing.compare",
    "import_trace": "workloads.traces",
    "microsoft_160": "workloads.microsoft",
    "report": "reporting.html_report",
    "simulate": "simulation",
}

__all__ = [
    "AllReduceTask",
    "Cluster",
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
    "Result",
    "Server",
    "SimulationError",
    "UnknownNameError",
    "Workload",
    "compare",
    "import_trace",
    "microsoft_160",
    "report",
    "simulate",
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
