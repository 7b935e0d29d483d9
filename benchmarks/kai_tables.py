"""Decides KAI's own tables of test cases, read from a clone of it, and says where the decisions agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from go_tables import cases_of
from scheduler_tables import NotModelledError, State, Table, refuse, run_tables

from algorithms.admission.kai import Kai
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.tenants import ANY_KIND, Queue, Quota, Tenants
from ddlsched.policies.tenants_view import Admission
from ddlsched.testing.handmade import cluster_view

_PRIORITIES = {"PriorityInferenceNumber": 125, "PriorityBuildNumber": 100, "PriorityTrainNumber": 50}
_PRIORITIES |= {"PriorityInteractivePreemptibleNumber": 75}
_RUNS = ("Running", "Pipelined", "Binding", "Bound", "Allocated")
_OTHER_FIELDS = {
    "RequiredCPUsPerTask": "processors",
    "RequiredMemoryPerTask": "memory",
    "RequiredGpuMemory": "parts of a GPU",
    "RootSubGroupSet": "groups within a gang",
    "IsBestEffortJob": "jobs without GPUs",
    "DeleteJobInTest": "jobs that are being deleted",
    "JobNotReadyForSsn": "jobs that are not ready",
}


def _whole(value: float, what: str) -> int:
    if value != int(value):
        raise NotModelledError(what)
    return int(value)


def _queue(told: dict[str, Any], parent: str | None, weight: float) -> Queue:
    gpus = _whole(max(told.get("DeservedGPUs", 0), 0), "quotas of parts of a GPU")
    most = told.get("MaxAllowedGPUs") or 0
    limit = _whole(most, "limits of parts of a GPU") - gpus if most > 0 else None
    if limit is not None and limit < 0:
        raise NotModelledError("a limit below the quota")
    return Queue(
        name=told["Name"], parent=parent, quotas={ANY_KIND: Quota(gpus=gpus, borrowing_limit=limit)}, weight=weight
    )


def _tenants(case: dict[str, Any]) -> Tenants:
    queues = [Queue(name="all")]
    departments = case.get("Departments", [])
    queues += [_queue(each, "all", max(float(each.get("DeservedGPUs", 0)), 0.0)) for each in departments]
    for each in case["Queues"]:
        if each.get("Priority") is not None or "DeservedCPUs" in each or "DeservedMemory" in each:
            raise NotModelledError("quotas of processors or memory, or priorities of queues")
        parent = each.get("ParentQueue", "all") if departments else "all"
        queues.append(_queue(each, parent, float(each.get("GPUOverQuotaWeight", 0))))
    return Tenants(queues=tuple(queues))


def _jobs(case: dict[str, Any]) -> Iterator[tuple[str, str, int, int, bool]]:
    """Yield the name, queue, GPUs and priority of each job, and whether it runs."""
    for job in case["Jobs"]:
        refuse(_OTHER_FIELDS, [name for name in job if job[name]])
        states = {task["State"] for task in job["Tasks"]}
        if len(states) > 1 or states - {"Running", "Pending"}:
            raise NotModelledError("a gang that runs in part, or tasks that are ending")
        if any(set(task) - {"State", "NodeName"} for task in job["Tasks"]):
            raise NotModelledError("nodes, priorities or GPUs of single tasks")
        each = _whole(job.get("RequiredGPUsPerTask", 0), "parts of a GPU")
        if not each:
            raise NotModelledError("jobs without GPUs")
        yield job["Name"], job["QueueName"], each * len(job["Tasks"]), job.get("Priority", 0), states == {"Running"}


def kai_case(case: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return which jobs run after a session, and which are to."""
    case = case["TestTopologyBasic"] | {"_allocates": case["_allocates"]}
    if case.get("Topologies") or case.get("TaskExpectedResults"):
        raise NotModelledError("elastic gangs, of which some tasks give way, and topologies")
    state = State(_tenants(case))
    names = []
    for number, (name, queue, gpus, priority, runs) in enumerate(_jobs(case)):
        names.append(name)
        state.add(number, queue, gpus, priority, ANY_KIND if runs else None)
    if any(set(node) - {"GPUs"} for node in case["Nodes"].values()):
        raise NotModelledError("nodes with more than whole GPUs")
    gpus = sum(node.get("GPUs", 0) for node in case["Nodes"].values())
    run = Kai().begin(Cluster(), np.random.default_rng(0))
    for answer in run.admit(state.view, cluster_view(num_servers=max(gpus, 1), gpus_per_server=1)):
        if isinstance(answer, Admission) and (answer.victims or case["_allocates"]):
            state.carry_out(answer)
    expected = case["JobExpectedResults"]
    got = {names[number] for number in state.holdings} & set(expected)
    return got, {name for name, result in expected.items() if result["Status"] in _RUNS}


def _table(file: str, function: str) -> Table:
    return Table(f"pkg/scheduler/actions/{file}", function, kai_case)


_TABLES = (
    _table("reclaim/reclaim_test.go", "getTestsMetadata"),
    _table("reclaim/reclaimDepartments_test.go", "getTestsDepartmentsMetadata"),
    _table("reclaim/reclaimGang_test.go", "getTestsGangReclaimMetadata"),
    _table("preempt/preempt_test.go", "getTestsMetadata"),
    _table("preempt/preemptGang_test.go", "getTestsGangMetadata"),
    _table("allocate/allocate_test.go", "getTestsMetadata"),
    _table("allocate/allocateGang_test.go", "getGangTestsMetadata"),
)


def _read(path: Path, function: str) -> list[tuple[str, dict[str, Any]]]:
    cases = cases_of(path, function, **_PRIORITIES)
    allocates = {"_allocates": path.parent.name == "allocate"}  # the other actions place nobody without victims
    return [(case.get("TestTopologyBasic", {}).get("Name", name), case | allocates) for name, case in cases]


if __name__ == "__main__":
    run_tables("github.com/NVIDIA/KAI-Scheduler", _TABLES, _read, 0.9)
