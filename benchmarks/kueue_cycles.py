"""Kueue's own cases of a cycle with nodes, as :mod:`kueue_tables` has them decided: who starts where, who gives way.

Read are those of one kind of node without levels above it; a GPU stands for a thousandth of a processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import kueue_workloads as kueue
from go_tables import Made, calls_of
from scheduler_tables import NotModelledError, refuse

from algorithms.admission.kueue import Kueue
from algorithms.placement.kueue_topology import KueueTopology
from ddlsched.policies.tenants_view import Admission, LevelRoom
from ddlsched.testing.handmade import cluster_view

_OTHERS = {
    "UnhealthyNodes": "replacing a node that failed",
    "AdmissionChecks": "admission checks",
    "NodeSelector": "node selectors",
    "Toleration": "taints",
    "RequiredDuringSchedulingIgnoredDuringExecution": "affinity to nodes",
    "Unschedulable": "nodes that are not ready",
    "pods": "pods of others",
    "patchStatusErr": "failures of the API",
    "resourceTransformations": "other resources",
}
_ANEW = {"TASRecomputeAssignmentWithinSchedulingCycle", "RecomputeAssignmentUponPreemptionTargetsOverlap"}
"""Gates by which a job that another is in the way of is tried anew in the same cycle."""
_FREE, _TAKEN = 2**40, -1


class _Pods(NamedTuple):
    """How many pods a workload has, what it asks of their nodes, and how many run on which."""

    count: int
    asks: str
    on: dict[str, int]

    @classmethod
    def of(cls, made: Made) -> _Pods:
        """Return those of a workload."""
        sets = [each for group in made.all("PodSets") for each in group]
        if len(sets) != 1:
            raise NotModelledError("several sets of pods")
        asks = next((name for name in ("Required", "Preferred") if sets[0].all(f"{name}TopologyRequest")), "")
        if asks and sets[0].last(f"{asks}TopologyRequest") != "LabelHostname":
            raise NotModelledError("a level that is not there: refused before a run")
        since = made.all("ReserveQuotaAt")
        return cls(sets[0].args[1], asks, _pods_on(since[-1][0]) if since else {})


class _OnNodes(kueue.Workloads):
    """Workloads whose pods run on nodes."""

    room: LevelRoom

    def __init__(self, nodes: dict[str, int], pods: dict[str, _Pods], *told: Any) -> None:
        self._nodes, self._pods = list(nodes), pods
        self.cluster = cluster_view(num_servers=len(nodes), gpus_per_server=max(nodes.values()), exclusive=True)
        self.room = LevelRoom(self.cluster, len(pods))
        for server, count in enumerate(nodes.values()):
            self._mark(self.cluster.gpus_of(server)[count:], _TAKEN)
        super().__init__(*told)

    def _mark(self, gpus: Sequence[int], free: int) -> None:
        self.cluster._gpus.free_bytes[list(gpus)] = free
        self.room.look_at(self.cluster)

    def _put(self, number: int, gpus: Sequence[int]) -> None:
        self._mark(gpus, _TAKEN)
        if gpus:  # none if its node is gone
            self.room.note(number, list(gpus))
        self.holdings[number].job._placed(tuple(gpus), ())

    def add(self, number: int, *told: Any, **more: Any) -> None:
        """Let a workload run on its nodes, or wait."""
        count, asks, on = self._pods[self._names[number]]
        each = told[1] // count
        more["required_levels"] = "server" if count == 1 else f"{each}:server" + " server" * (asks == "Required")
        more["preferred_levels"] = "server" if asks == "Preferred" and count > 1 else None
        super().add(number, *told, **more)
        if number in self.holdings:
            free = self.cluster.eligible(self.holdings[number].job)
            servers = self.cluster.servers_of(free)
            places = ((self._nodes.index(name), pods * each) for name, pods in on.items() if name in self._nodes)
            self._put(number, [gpu for server, gpus in places for gpu in free[servers == server][:gpus].tolist()])

    def start(self, answer: Admission) -> dict[str, int] | None:
        """Let a job run in place of its victims; return how many pods are on which node, None if there is no place."""
        gone = [gpu for victim in answer.victims for gpu in victim.job.gpus]
        self._mark(gone, _FREE)
        if (gpus := KueueTopology().place(answer.job, self.cluster)) is None:
            self._mark(gone, _TAKEN)
            return None
        self.carry_out(answer)
        self._put(answer.job.number, gpus)
        each = answer.job.num_gpus // self._pods[self.name(answer.job)].count
        return {self._nodes[at]: held // each for at, held in Counter(map(self.cluster.server_of, gpus)).items()}


def _pods_on(admission: Made) -> dict[str, int]:
    """Return how many pods an admission has on each node."""
    sets = [each for group in admission.all("PodSets") for each in group]
    made = [given for each in sets for (given,) in each.all("TopologyAssignment")]
    return {domain.args[0][-1]: domain.args[1] for given in made for (domain,) in given.all("Domain")}


def _refuse(case: dict[str, Any]) -> None:
    gates = case.get("featureGates") or {}
    if not (gates.keys() <= _ANEW and all(gates.values())):
        raise NotModelledError(f"feature gates: {', '.join(gates)}")
    called = calls_of([case[name] for name in ("workloads", "nodes", "clusterQueues")])
    refuse(_OTHERS, called | {name for name in case if case[name]})
    if len(case["resourceFlavors"]) > 1 or case["topologies"][0].function != "MakeDefaultOneLevelTopology":
        raise NotModelledError("levels or flavors of nodes beside each other")
    if any(len(node.all("StatusAllocatable")) > 1 for node in case["nodes"]):
        raise NotModelledError("how many pods a node takes")
    kueue.refuse_queues(case["clusterQueues"])


def cycle_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return who starts with how many pods on which node, and who gives way; and what is wanted."""
    _refuse(case)
    of_local = {(made.args[0], made.args[1]): made.last("ClusterQueue") for made in case["_local"]("queues")}
    nodes = {made.args[0]: kueue.amount(made.last("StatusAllocatable")["ResourceCPU"], "cpu") for made in case["nodes"]}
    workloads = [kueue.workload_of(made, of_local) for made in case["workloads"]]
    if any(each.resource != "cpu" for each in workloads):
        raise NotModelledError("another resource")
    pods = {each.name: _Pods.of(made) for each, made in zip(workloads, case["workloads"], strict=True)}
    tenants = kueue.tenants_of(case["clusterQueues"], case.get("cohorts", []))
    got = kueue.cycle(_OnNodes(nodes, pods, tenants, workloads), Kueue())
    wanted = {str(name): _pods_on(made) for name, made in (case.get("wantNewAssignments") or {}).items()}
    after = [kueue.workload_of(made, of_local) for made in case.get("wantWorkloads", [])]
    return got, (wanted, {each.name for each in after if each.preempted})
