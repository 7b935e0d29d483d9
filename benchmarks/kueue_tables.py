"""Decides Kueue's own tables of test cases, read from a clone of it, and says where the decisions agree.

A kind of GPU stands for a flavor's resource, whatever it is; amounts are thousandths of processors, MiB, or pieces.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import kueue_workloads as kueue
from go_tables import Made, calls_of, cases_of
from kueue_cycles import cycle_case
from kueue_topology_cases import chosen_case, not_read, spread_case, topology_case
from scheduler_tables import NotModelledError, State, Table, refuse, run_tables

from algorithms.admission.kueue import Kueue
from algorithms.admission.kueue_classic import ClassicSearch
from algorithms.admission.kueue_fair import FairRules, fair_victims
from algorithms.admission.victims import Need, QuotaArrays
from ddlsched.policies.quota_tree import QuotaTree

_STRATEGIES = {"LessThanOrEqualToFinalShare": "final-share", "LessThanInitialShare": "initial-share"}


def _waiting(case: dict[str, Any]) -> tuple[kueue.Workloads, kueue.Workload]:
    """Return a case with its incoming workload in its queue, and that workload."""
    incoming = replace(kueue.workload_of(case["incoming"], {}), queue=case["targetCQ"], flavor=None)
    running = [kueue.workload_of(made, {}) for made in case["admitted"]]
    if any(each.evicted for each in running):
        raise NotModelledError("a workload is being evicted already: stops here take no time")
    return kueue.Workloads(
        kueue.tenants_of(case["clusterQueues"], case.get("cohorts", [])), [*running, incoming]
    ), incoming


def _need(state: State, queue: str, kind: str) -> Need:
    return Need(next(state.pending.jobs(queue)), state.quotas[queue], kind)


def preemption_case(case: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return who gives way to the case's workload by rules, and who is wanted to."""
    state, incoming = _waiting(case)
    arrays = QuotaArrays(state.quotas)
    arrays.note(state.view)
    victims, _ = ClassicSearch(arrays).victims(_need(state, str(incoming.queue), _kind(case)), state.view)
    after = [kueue.workload_of(made, {}) for made in case["wantWorkloads"]]
    return state.named(victims), {each.name for each in after if each.preempted}


def _kind(case: dict[str, Any]) -> str:
    """Return the kind that a case's assignment names."""
    given = case["assignment"]
    sets = [given.args[0]] if isinstance(given, Made) else [each["Flavors"] for each in given["PodSets"]]
    kinds = {kueue.kind_of(flavor["Name"], resource) for flavors in sets for resource, flavor in flavors.items()}
    if len(kinds) != 1:
        raise NotModelledError("a workload asks for several flavors or resources: jobs here ask for GPUs of a kind")
    return kinds.pop()


def fair_case(case: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return who gives way to the case's workload by fair shares, and who is wanted to."""
    state, incoming = _waiting(case)
    kind = kueue.kind_of(case.get("assignmentFlavor", "default"), incoming.resource)
    strategies = [_STRATEGIES[strategy] for strategy in case.get("strategies") or _STRATEGIES]
    rules = FairRules("final-share" in strategies, "initial-share" in strategies)
    victims = fair_victims(_need(state, str(incoming.queue), kind), state.view, rules)
    wanted = case.get("wantPreempted")
    return state.named(victims), {made.args[0].lstrip("/") for made in (wanted.args if wanted is not None else ())}


def share_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return the shares of a case's queues and cohorts, and those wanted."""
    queues = [case[name] for name in ("clusterQueue", "lendingClusterQueue") if case.get(name) is not None]
    tree = QuotaTree(kueue.tenants_of(queues, case.get("cohorts", [])), kueue.resource_of)
    for key, value in (*case.get("usage", {}).items(), *case.get("flvResQ", {}).items()):
        used = dict(key)
        tree[queues[0].args[0]].add(
            kueue.kind_of(used["Flavor"], used["Resource"]), kueue.amount(value, used["Resource"])
        )
    got = {}
    for name, node in tree.nodes.items():
        no_weight, share = tree.share(node)
        got[name] = "MaxInt" if no_weight else math.ceil(share * 1000 - 1e-9), tree.borrows(node)
    wanted = {}
    for each in case["want"]:
        name = kueue.cohort_name(each["Name"]) if each["NodeType"] else each["Name"]
        wanted[name] = each["DrValue"], each["Borrowing"]
    return got, wanted


def schedule_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return what one cycle starts, on which flavor, and who gives way; and what is wanted."""
    _refuse_features(case)
    local = case["_local"]
    cluster_queues = [*local("clusterQueues"), *case.get("additionalClusterQueues", [])]
    kueue.refuse_queues(cluster_queues)
    queues = [*local("queues"), *case.get("additionalLocalQueues", [])]
    of_local = {(made.args[0], made.args[1]): made.last("ClusterQueue") for made in queues}
    workloads = [kueue.workload_of(made, of_local) for made in case["workloads"]]
    there = [each for each in workloads if each.flavor is not None or not each.evicted]
    state = kueue.Workloads(kueue.tenants_of(cluster_queues, case.get("cohorts", [])), there)
    named = {made.args[0]: made for made in cluster_queues}
    _refuse_workloads(case["workloads"], of_local, named, local("resourceFlavors"))
    got = kueue.cycle(state, Kueue(fair_sharing=case.get("enableFairSharing", False)))
    before = {each.name for each in workloads if each.flavor is not None}
    after = [kueue.workload_of(made, of_local) for made in case["wantWorkloads"]]
    started = {each.name: each.flavor for each in after if each.flavor is not None and each.name not in before}
    return got, (started, {each.name for each in after if each.preempted and each.name in before})


_OTHER_CALLS = {
    "AdmissionCheck": "admission checks",
    "PreemptionGates": "gates of preemption",
    "AllowedFlavors": "variants of a workload",
    "Annotation": "workload slices",
    "NodeSelector": "node selectors",
    "Toleration": "taints",
    "Limit": "limits of containers",
}


def _refuse_features(case: dict[str, Any]) -> None:
    gates = {name: on for name, on in (case.get("featureGates") or {}).items() if name != "PartialAdmission"}
    if gates:
        raise NotModelledError(f"feature gates: {', '.join(gates)}")
    if case.get("objects") or case.get("admissionError"):
        raise NotModelledError("failures of the API, and limit ranges")


def _refuse_workloads(
    workloads: list[Made], of_local: dict[tuple[str, str], str], queues: dict[str, Made], flavors: list[Made]
) -> None:
    """Refuse what concerns flavors and namespaces rather than quotas."""
    tainted = {made.args[0]: bool(made.all("Taint")) for made in flavors}
    for made in workloads:
        refuse(_OTHER_CALLS, calls_of(made))
        queue = queues.get(of_local.get((made.last("Queue", ""), made.args[1]), ""))
        if queue is None:
            continue
        if any(tainted.get(kind.partition("|")[0], True) for kind in kueue.quotas_of(queue)):
            raise NotModelledError("flavors that are tainted or not there")
        selector = queue.last("NamespaceSelector") or {}
        for each in selector.get("MatchExpressions", []):
            if made.args[1].partition("-")[0] not in each["Values"]:
                raise NotModelledError("namespaces that a queue refuses")


_REPLACING = not_read("replacing a node that failed")
_STEPS = not_read("a step within the balanced placement, which is reckoned in another order here")
_CYCLES = "pkg/scheduler/scheduler_tas_test.go"
_BALANCED = "pkg/cache/scheduler/tas_balanced_placement_test.go"
_TABLES = (
    Table("pkg/scheduler/preemption/preemption_test.go", "TestPreemption", preemption_case),
    Table("pkg/scheduler/preemption/preemption_fair_test.go", "TestFairPreemptions", fair_case),
    Table("pkg/scheduler/preemption/preemption_hierarchical_test.go", "TestHierarchicalPreemptions", preemption_case),
    Table("pkg/cache/scheduler/tas_cache_test.go", "TestFindTopologyAssignments", topology_case),
    Table("pkg/cache/scheduler/tas_cache_test.go", "TestFindTopologyAssignmentsMultiLayerReplacement", _REPLACING),
    Table(_BALANCED, "TestSelectOptimalDomainSetToFit", chosen_case),
    Table(_BALANCED, "TestPlaceSlicesOnDomainsBalanced", spread_case),
    Table(_BALANCED, "TestPruneDomainsBelowThreshold", _STEPS),
    Table(_BALANCED, "TestFindBestDomainsForBalancedPlacement", _STEPS),
    Table("pkg/cache/scheduler/fair_sharing_test.go", "TestDominantResourceShare", share_case),
    Table("pkg/scheduler/scheduler_test.go", "TestSchedule", schedule_case),
    Table("pkg/scheduler/scheduler_fs_test.go", "TestScheduleForFairSharing", schedule_case),
    Table(_CYCLES, "TestScheduleForTAS", cycle_case),
    Table(_CYCLES, "TestScheduleForTASPreemption", cycle_case),
    Table(_CYCLES, "TestScheduleForTASCohorts", cycle_case),
)


if __name__ == "__main__":
    run_tables("github.com/kubernetes-sigs/kueue", _TABLES, cases_of, 0.95)
