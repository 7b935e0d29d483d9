"""Decides Volcano's own tables of test cases, read from a clone of it, and says where the decisions agree.

Thousandths of processors stand for GPUs. A group of pods is a job where it starts and stops as a whole; a group that
needs one pod only is a job for each pod.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from go_tables import Made, cases_of
from kueue_workloads import amount
from scheduler_tables import NotModelledError, State, Table, refuse, run_tables

from algorithms.admission.victims import Need
from algorithms.admission.volcano import VolcanoRun
from ddlsched.cluster.tenants import ANY_KIND, Queue, Quota, Tenants
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, HeldQuota
from ddlsched.testing.handmade import cluster_view

_FIELDS = {
    "HyperNodesSetByTier": "network topologies",
    "HyperNodes": "network topologies",
    "ResourceClaims": "devices that are claimed",
    "PVCs": "volumes",
    "ExpectTaskStatusNums": "states of single pods",
}
_BUILDERS = ("BuildPodGroup", "BuildPodGroupWithPrio")
_QUEUES = {"BuildQueue": 2, "BuildQueueWithResourcesQuantity": 2}
"""Builders of queues, and which of their arguments is the capability."""


class _Pod(NamedTuple):
    name: str
    group: str
    cpu: int
    runs: bool
    stays: bool


def _cpu(resources: Any) -> int:
    """Return the thousandths of processors of a list of resources, of no other kind that matters."""
    if not isinstance(resources, Made) or resources.function != "BuildResourceList":
        raise NotModelledError("resources that a call makes, which is not run")
    others = [each for each in resources.args[2:] if isinstance(each, list)]
    if any(str(scalar.get("Name")) != "pods" for each in others for scalar in each):
        raise NotModelledError("several resources: jobs here ask for GPUs")
    if resources.args[0] == "":
        raise NotModelledError("several resources: jobs here ask for GPUs")
    return amount(resources.args[0], "cpu")


def _pod(made: Any) -> _Pod:
    if not isinstance(made, Made) or made.function != "BuildPod":
        raise NotModelledError("pods with priorities, or policies, of their own")
    space, name, _, phase, resources, group, labels, selector = made.args
    told = labels.items() if isinstance(labels, dict) else ()
    stays = any(str(key) == "PodPreemptable" and value == "false" for key, value in told)
    if isinstance(selector, dict) and selector:
        raise NotModelledError("node selectors")
    if str(phase) not in ("PodRunning", "PodPending"):
        raise NotModelledError("pods that have ended")
    cpu = _cpu(resources)
    if not cpu:
        raise NotModelledError("pods without processors")
    return _Pod(f"{space}/{name}", group, cpu, str(phase) == "PodRunning", stays)


def _priorities(case: dict[str, Any]) -> dict[str, int]:
    classes = case.get("PriClass") or [case["_local"](name) for name in ("highPrio", "lowPrio")]
    return {made.args[0]: made.args[1] for made in classes if isinstance(made, Made)}


def _queue(made: Made) -> Queue:
    if made.function not in _QUEUES:
        raise NotModelledError("queues with priorities, states or hierarchies")
    capability = made.args[_QUEUES[made.function]]
    deserved, weight = 0, 1.0
    if made.function == "BuildQueue":
        weight = float(made.args[1])
    elif made.args[1] is not None:
        deserved = _cpu(made.args[1])
    limit = None if capability is None else max(0, _cpu(capability) - deserved)
    quota = Quota(gpus=deserved, borrowing_limit=limit)
    return Queue(name=made.args[0], parent="all", quotas={ANY_KIND: quota}, weight=weight)


class _Jobs(State):
    """The jobs of a case, by the names of their pods."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(Tenants(queues=(Queue(name="all"), *map(_queue, case["Queues"]))))
        pods, self.names, priorities = [_pod(each) for each in case["Pods"]], list[list[str]](), _priorities(case)
        self.staying = set[int]()
        """Jobs that may not be preempted, which the policy is not told of."""
        for made in sorted(case["PodGroups"], key=lambda made: str(made.args[0])):
            if made.function not in _BUILDERS:
                raise NotModelledError("groups with least resources, or within a network topology")
            own = [pod for pod in pods if pod.group == made.args[0]]
            priority = priorities.get(made.args[6], 0) if made.function == "BuildPodGroupWithPrio" else 0
            for together in self._jobs(made, own):
                queue, cpu = made.args[2], sum(pod.cpu for pod in together)
                self.add(len(self.names), queue, cpu, priority, ANY_KIND if together[0].runs else None)
                if together[0].stays:
                    self.staying.add(len(self.names))
                self.names.append([pod.name for pod in together])

    @staticmethod
    def _jobs(made: Made, own: list[_Pod]) -> list[list[_Pod]]:
        least = made.args[3]
        if isinstance(made.args[4], dict) and made.args[4] and len(own) > 1:
            raise NotModelledError("gangs of which each task has a least number of pods")
        if least <= 1:
            return [[pod] for pod in own]
        if least < len(own) or len({pod.runs for pod in own}) > 1 or own[0].runs:
            raise NotModelledError("gangs of which some pods run, start or give way")
        return [own]


class _Action(VolcanoRun):
    """The policy, some of whose jobs may not be preempted."""

    staying: set[int]

    def gives_way(self, holding: HeldQuota, leaf: QuotaNode, need: Need) -> bool:
        return holding.job.number not in self.staying and super().gives_way(holding, leaf, need)

    def may_preempt(self, need: Need, holding: HeldQuota) -> bool:
        return holding.job.number not in self.staying and super().may_preempt(need, holding)


class _Reclaiming(_Action):
    """Takes from other queues only, as the action reclaim does."""

    def may_preempt(self, need: Need, holding: HeldQuota) -> bool:
        return False


class _Preempting(_Action):
    """Takes from the own queue only, as the action preempt does."""

    def may_reclaim(self, need: Need) -> bool:
        return False


class _Allocating(_Reclaiming, _Preempting):
    """Takes from nobody, as the action allocate does."""


class _InOrder(_Allocating):
    """Allocates in the order of shares, which are no limits."""

    def allows(self, need: Need) -> bool:
        return True


def _decided(run_kind: type[_Action], plugin: str, case: dict[str, Any]) -> tuple[Any, Any]:
    """Return who gives way, or who starts, and what is wanted."""
    refuse(_FIELDS, [name for name in case if case[name]])
    if not all(isinstance(case.get(name), list) for name in ("Pods", "PodGroups", "Queues", "Nodes")):
        raise NotModelledError("pods or nodes that a call makes, which is not run")
    state = _Jobs(case)
    cpus = sum(_cpu(node.args[1]) for node in case["Nodes"])
    gone, started = list[str](), list[str]()
    view = cluster_view(num_servers=1, gpus_per_server=cpus)
    run, allocates = run_kind(plugin), issubclass(run_kind, _Allocating)
    run.staying = state.staying
    for answer in run.admit(state.view, view):
        if isinstance(answer, Admission) and (answer.victims or allocates):
            gone += [name for victim in answer.victims for name in state.names[victim.job.number]]
            started += state.names[answer.job.number]
            state.carry_out(answer)
    if allocates:
        return _beside(started, list(case.get("ExpectBindMap") or {}), case.get("ExpectBindsNum", 0))
    return _beside(gone, case.get("ExpectEvicted") or [], case.get("ExpectEvictNum", 0))


def _beside(got: list[str], names: list[str], count: int) -> tuple[Any, Any]:
    """Return names, or how many there are where only that is told."""
    return (sorted(got), sorted(names)) if len(names) == count else (len(got), count)


def _table(file: str, function: str, run_kind: type[_Action], plugin: str) -> Table:
    return Table(f"pkg/scheduler/{file}", function, functools.partial(_decided, run_kind, plugin))


_TABLES = (
    _table("actions/reclaim/reclaim_test.go", "TestReclaim", _Reclaiming, "proportion"),
    _table("actions/preempt/preempt_test.go", "TestPreempt", _Preempting, "proportion"),
    _table("actions/allocate/allocate_test.go", "TestAllocate", _Allocating, "drf"),
    _table("actions/allocate/allocate_test.go", "TestFareShareAllocate", _InOrder, "proportion"),
    _table(
        "plugins/capacity/capacity_test.go",
        "Test_capacityPlugin_OnSessionOpenWithoutHierarchy",
        _Reclaiming,
        "capacity",
    ),
)


def _read(path: Path, function: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, case in cases_of(path, function):
        yield name, case.get("TestCommonStruct", case) | {"_local": case["_local"]}


if __name__ == "__main__":
    run_tables("github.com/volcano-sh/volcano", _TABLES, _read, 0.9)
