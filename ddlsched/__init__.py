"""ddlsched: scheduling distributed deep-learning jobs on shared GPU clusters, simulated.

>>> import ddlsched
>>> workload = ddlsched.microsoft_160(seed=1, scale=0.001)
>>> result = ddlsched.simulate(workload, scheduler="ada-srsf")
>>> result.summary()["jobs"]
160
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlsched.deferred import attributes_of

if TYPE_CHECKING:
    from ddlsched.cluster.cluster import Cluster as Cluster
    from ddlsched.cluster.cluster import Server as Server
    from ddlsched.cluster.cluster_files import read_cluster as read_cluster
    from ddlsched.cluster.cluster_files import read_tenants as read_tenants
    from ddlsched.cluster.disturbances import Disturbances as Disturbances
    from ddlsched.cluster.disturbances import Outage as Outage
    from ddlsched.cluster.tenants import Preemption as Preemption
    from ddlsched.cluster.tenants import Queue as Queue
    from ddlsched.cluster.tenants import Quota as Quota
    from ddlsched.cluster.tenants import Tenants as Tenants
    from ddlsched.comparisons.compare import compare as compare
    from ddlsched.comparisons.comparison import Comparison as Comparison
    from ddlsched.comparisons.report.html_report import report as report
    from ddlsched.errors import DdlschedError as DdlschedError
    from ddlsched.errors import InputError as InputError
    from ddlsched.errors import InvalidDecisionError as InvalidDecisionError
    from ddlsched.errors import PluginError as PluginError
    from ddlsched.errors import SimulationError as SimulationError
    from ddlsched.errors import UnknownNameError as UnknownNameError
    from ddlsched.network.contention import EqualShare as EqualShare
    from ddlsched.network.contention import Linear as Linear
    from ddlsched.network.contention import MaxMin as MaxMin
    from ddlsched.results.result import Result as Result
    from ddlsched.results.timeline import write_timeline as write_timeline
    from ddlsched.simulation import simulate as simulate
    from ddlsched.workload.dag import AllReduceTask as AllReduceTask
    from ddlsched.workload.dag import CollectiveTask as CollectiveTask
    from ddlsched.workload.dag import ComputeTask as ComputeTask
    from ddlsched.workload.dag import DataParallelIteration as DataParallelIteration
    from ddlsched.workload.dag import IterationDag as IterationDag
    from ddlsched.workload.generators.microsoft import microsoft_160 as microsoft_160
    from ddlsched.workload.job import Job as Job
    from ddlsched.workload.job import Workload as Workload
    from ddlsched.workload.traces.trace_import import import_trace as import_trace
    from ddlsched.workload.workload_files import read_workload as read_workload
    from ddlsched.workload.workload_files import workload_table as workload_table
    from ddlsched.workload.workload_files import write_workload as write_workload

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
_HOME = {name: f"ddlsched.{module}" for module, names in _NAMES.items() for name in names}
_public = attributes_of("ddlsched", _HOME)

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import ddlsched`` is quick."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ddlsched")
    value = globals()[name] = _public(name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
