"""Decides Kueue's own tables of test cases, read from a clone of it, and says where the decisions agree.

A kind of GPU stands for a flavor's resource, whatever it is; amounts are thousandths of processors, MiB, or pieces.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from go_tables import Made, cases_of, local_of
from kueue_amounts import amount, quantity, resource_name
from kueue_topology_cases import chosen_case, not_read, spread_case, topology_case
from scheduler_tables import NotModelledError, State, Table, run_tables

from algorithms.admission.kueue import Kueue, KueueRun
from algorithms.admission.kueue_classic import ClassicSearch
from algorithms.admission.kueue_fair import FairRules, fair_victims
from algorithms.admission.victims import Need, QuotaArrays
from ddlsched.cluster.tenants import Preemption, Queue, Quota, Tenants
from ddlsched.policies.quota_tree import QuotaNode, QuotaTree
from ddlsched.policies.tenants_view import Admission, Victim
from ddlsched.policies.views import JobView

_RULES = {
    "PreemptionPolicyLowerPriority": "lower-priority",
    "PreemptionPolicyLowerOrNewerEqualPriority": "lower-or-newer",
    "PreemptionPolicyAny": "any",
    "BorrowWithinCohortPolicyLowerPriority": "lower-priority",
}
_STRATEGIES = {"LessThanOrEqualToFinalShare": "final-share", "LessThanInitialShare": "initial-share"}


# --- what Kueue's builders make


def kind_of(flavor: str, resource: str) -> str:
    """Return the kind that stands for a flavor's resource."""
    return f"{flavor}|{resource_name(resource)}"


def _quotas(made: Made) -> dict[str, Quota]:
    found: dict[str, Quota] = {}
    for group in made.all("ResourceGroup"):
        for flavor in group:
            found |= dict(_flavor_quotas(flavor))
    return found


def _flavor_quotas(flavor: Made) -> Iterator[tuple[str, Quota]]:
    name, resource, given = flavor.args[0], "", dict[str, Any]()
    for step, args in flavor.steps:
        if step == "Resource":
            nominal, borrowing, lending = (*args[1:], "", "", "")[:3]
            yield kind_of(name, args[0]), _quota(args[0], nominal, borrowing, lending)
        elif step == "ResourceQuotaWrapper":
            resource, given = args[0], {}
        elif step == "Append":
            limits = (given.get(limit, "") for limit in ("NominalQuota", "BorrowingLimit", "LendingLimit"))
            yield kind_of(name, resource), _quota(resource, *limits)
        elif args:
            given[step] = args[0]


def _quota(resource: str, nominal: Any, borrowing: Any, lending: Any) -> Quota:
    limits = [amount(limit, resource) if limit != "" else None for limit in (borrowing, lending)]
    return Quota(gpus=amount(nominal or "0", resource), borrowing_limit=limits[0], lending_limit=limits[1])


def _preemption(rules: dict[str, Any]) -> Preemption:
    borrow = rules.get("BorrowWithinCohort") or {}
    return Preemption(
        within_queue=_RULES.get(rules.get("WithinClusterQueue", ""), "never"),  # type: ignore[arg-type]
        reclaim=_RULES.get(rules.get("ReclaimWithinCohort", ""), "never"),  # type: ignore[arg-type]
        borrow=_RULES.get(borrow.get("Policy", ""), "never"),  # type: ignore[arg-type]
        borrow_max_priority=borrow.get("MaxPriorityThreshold"),
    )


def _weight(made: Made) -> float:
    weight = made.last("FairWeight")
    return 1.0 if weight is None else quantity(weight)


def cohort_name(name: str | None) -> str | None:
    """Return the queue that stands for a cohort; cohorts and queues may have the same names."""
    return f"cohort {name}" if name else None


def tenants_of(cluster_queues: list[Made], cohorts: list[Made]) -> Tenants:
    """Return the queues, and the cohorts said or only named."""
    groups = {
        cohort.args[0]: Queue(
            name=f"cohort {cohort.args[0]}",
            parent=cohort_name(cohort.last("Parent")),
            quotas=_quotas(cohort),
            weight=_weight(cohort),
        )
        for cohort in cohorts
    }
    named = [made.last("Cohort") for made in cluster_queues] + [made.last("Parent") for made in cohorts]
    for name in filter(None, named):
        groups.setdefault(name, Queue(name=f"cohort {name}"))
    queues = [
        Queue(
            name=made.args[0],
            parent=cohort_name(made.last("Cohort")),
            quotas=_quotas(made),
            weight=_weight(made),
            order="strict" if made.last("QueueingStrategy") == "StrictFIFO" else "best-effort",
            preemption=_preemption(made.last("Preemption", {})),
        )
        for made in cluster_queues
    ]
    return Tenants(queues=(*groups.values(), *queues))


@dataclass(frozen=True)
class Workload:
    """A workload of a case: what it asks for, and of which queue and flavor it has quota."""

    name: str
    priority: int
    requests: dict[str, int]
    created_s: float
    queue: str | None = None
    flavor: str | None = None
    since_s: float = 0.0
    preempted: bool = False
    evicted: bool = False

    @property
    def resource(self) -> str:
        """The one resource that it asks for."""
        asked = [name for name, gpus in self.requests.items() if gpus]
        if len(asked) != 1:
            raise NotModelledError("a workload asks for several resources, or none: jobs here ask for GPUs")
        return asked[0]


def workload_of(made: Made, local: dict[tuple[str, str], str]) -> Workload:
    """Return a workload, of the queue of its local one if it has no quota yet."""
    name, namespace = made.last("Name", made.args[0]), made.args[1]
    where = (made.last("Queue", ""), namespace)
    requests = {resource_name(args[0]): amount(args[1], args[0]) for args in made.all("Request")}
    for each in (each for sets in made.all("PodSets") for each in sets):
        if each.all("SetMinimumCount"):
            raise NotModelledError("a workload may start with fewer pods")
        for args in each.all("Request"):
            resource = resource_name(args[0])
            requests[resource] = requests.get(resource, 0) + each.args[1] * amount(args[1], args[0])
    queue, flavor, since_s = _reserved(made)
    conditions = [args[0] for args in made.all("Condition") if isinstance(args[0], dict)]
    told = {each.get("Type"): each for each in conditions}
    return Workload(
        f"{namespace}/{name}".lstrip("/"),
        made.last("Priority", 0),
        requests,
        made.last("Creation", 0.0) if isinstance(made.last("Creation", 0.0), float) else 0.0,
        queue if queue is not None else local.get(where),
        flavor,
        since_s,
        "WorkloadPreempted" in told,
        "WorkloadEvicted" in told or bool(made.all("Evicted")),
    )


def _reserved(made: Made) -> tuple[str | None, str | None, float]:
    """Return of which queue and flavor a workload has quota, and since when."""
    if simple := made.all("SimpleReserveQuota"):
        queue, flavor, since = simple[-1]
        return queue, flavor, since if isinstance(since, int | float) else 0.0
    calls = made.all("ReserveQuotaAt") or made.all("ReserveQuota") or made.all("Admission")
    if not calls:
        return None, None, 0.0
    admission = calls[-1][0]
    sets = [each for group in admission.all("PodSets") for each in group]
    flavors = {args[1] for each in sets for args in each.all("Assignment")}
    if len(flavors) > 1:
        raise NotModelledError("a workload has several flavors")
    since_s = calls[-1][1] if len(calls[-1]) > 1 and isinstance(calls[-1][1], int | float) else 0.0
    return admission.args[0], next(iter(flavors), None), since_s


class _Workloads(State):
    """Workloads that run and wait in queues; of equal candidates the first by name gives way first."""

    def __init__(self, tenants: Tenants, running: list[Workload], waiting: list[Workload]) -> None:
        super().__init__(tenants, _resource_of)
        workloads = [*sorted(running, key=lambda each: each.name), *waiting]
        self._names = [each.name for each in workloads]
        for number, each in enumerate(workloads):
            if each.queue in tenants.leaves:
                kind = kind_of(each.flavor, each.resource) if each.flavor is not None else None
                gpus, times_s = each.requests[each.resource], (each.created_s, each.since_s)
                self.add(number, str(each.queue), gpus, each.priority, kind, *times_s, user=each.resource)

    def named(self, victims: list[Victim] | tuple[Victim, ...]) -> set[str]:
        """Return the names of who gives way."""
        return {self._names[victim.job.number] for victim in victims}

    def name(self, job: JobView) -> str:
        """Return the name of a workload."""
        return self._names[job.number]


def _resource_of(kind: str) -> str:
    return kind.partition("|")[2]


def _waiting(case: dict[str, Any]) -> tuple[_Workloads, Workload]:
    """Return a case with its incoming workload in its queue, and that workload."""
    incoming = replace(workload_of(case["incoming"], {}), queue=case["targetCQ"], flavor=None)
    running = [workload_of(made, {}) for made in case["admitted"]]
    if any(each.evicted for each in running):
        raise NotModelledError("a workload is being evicted already: stops here take no time")
    return _Workloads(tenants_of(case["clusterQueues"], case.get("cohorts", [])), running, [incoming]), incoming


def _need(state: State, queue: str, kind: str) -> Need:
    return Need(next(state.pending.jobs(queue)), state.quotas[queue], kind)


def preemption_case(case: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return who gives way to the case's workload by rules, and who is wanted to."""
    state, incoming = _waiting(case)
    arrays = QuotaArrays(state.quotas)
    arrays.note(state.view)
    victims, _ = ClassicSearch(arrays).victims(_need(state, str(incoming.queue), _kind(case)), state.view)
    after = [workload_of(made, {}) for made in case["wantWorkloads"]]
    return state.named(victims), {each.name for each in after if each.preempted}


def _kind(case: dict[str, Any]) -> str:
    """Return the kind that a case's assignment names."""
    given = case["assignment"]
    sets = [given.args[0]] if isinstance(given, Made) else [each["Flavors"] for each in given["PodSets"]]
    kinds = {kind_of(flavor["Name"], resource) for flavors in sets for resource, flavor in flavors.items()}
    if len(kinds) != 1:
        raise NotModelledError("a workload asks for several flavors or resources: jobs here ask for GPUs of a kind")
    return kinds.pop()


def fair_case(case: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return who gives way to the case's workload by fair shares, and who is wanted to."""
    state, incoming = _waiting(case)
    kind = kind_of(case.get("assignmentFlavor", "default"), incoming.resource)
    strategies = [_STRATEGIES[strategy] for strategy in case.get("strategies") or _STRATEGIES]
    rules = FairRules("final-share" in strategies, "initial-share" in strategies)
    victims = fair_victims(_need(state, str(incoming.queue), kind), state.view, rules)
    wanted = case.get("wantPreempted")
    return state.named(victims), {made.args[0].lstrip("/") for made in (wanted.args if wanted is not None else ())}


def share_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return the shares of a case's queues and cohorts, and those wanted."""
    queues = [case[name] for name in ("clusterQueue", "lendingClusterQueue") if case.get(name) is not None]
    tree = QuotaTree(tenants_of(queues, case.get("cohorts", [])), _resource_of)
    for key, value in (*case.get("usage", {}).items(), *case.get("flvResQ", {}).items()):
        used = dict(key)
        tree[queues[0].args[0]].add(kind_of(used["Flavor"], used["Resource"]), amount(value, used["Resource"]))
    got = {}
    for name, node in tree.nodes.items():
        no_weight, share = tree.share(node)
        got[name] = "MaxInt" if no_weight else math.ceil(share * 1000 - 1e-9), tree.borrows(node)
    wanted = {}
    for each in case["want"]:
        name = cohort_name(each["Name"]) if each["NodeType"] else each["Name"]
        wanted[name] = each["DrValue"], each["Borrowing"]
    return got, wanted


def schedule_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return what one cycle starts, on which flavor, and who gives way; and what is wanted."""
    _refuse_features(case)
    local = case["_local"]
    cluster_queues = [*local("clusterQueues"), *case.get("additionalClusterQueues", [])]
    _refuse_queues(cluster_queues)
    queues = [*local("queues"), *case.get("additionalLocalQueues", [])]
    of_local = {(made.args[0], made.args[1]): made.last("ClusterQueue") for made in queues}
    workloads = [workload_of(made, of_local) for made in case["workloads"]]
    running = [each for each in workloads if each.flavor is not None]
    waiting = [each for each in workloads if each.flavor is None and not each.evicted]
    state = _Workloads(tenants_of(cluster_queues, case.get("cohorts", [])), running, waiting)
    named = {made.args[0]: made for made in cluster_queues}
    _refuse_workloads(case["workloads"], of_local, named, local("resourceFlavors"))
    got = _cycle(state, Kueue(fair_sharing=case.get("enableFairSharing", False)))
    before = {each.name for each in running}
    after = [workload_of(made, of_local) for made in case["wantWorkloads"]]
    started = {each.name: each.flavor for each in after if each.flavor is not None and each.name not in before}
    return got, (started, {each.name for each in after if each.preempted and each.name in before})


class _OneResource(KueueRun):
    """Tries the flavors of the queue that have quota of the job's resource."""

    def kinds(self, job: JobView, leaf: QuotaNode) -> list[str]:
        found = [kind for kind in leaf.queue.quotas if kind.endswith(f"|{job.user}")]
        if not found:
            raise NotModelledError("a resource that the queue has no quota of: quotas here are of GPUs")
        return found


def _cycle(state: _Workloads, policy: Kueue) -> tuple[dict[str, str], set[str]]:
    """Play one cycle: who starts without victims on which flavor, and who gives way."""
    run, view = _OneResource(policy), state.view
    started: dict[str, str] = {}
    gone: set[str] = set()
    for answer in run._processed(run.cycle(view), view):
        if isinstance(answer, Admission):
            gone |= state.named(answer.victims)
            state.carry_out(answer)
            if not answer.victims:
                started[state.name(answer.job)] = answer.kind.partition("|")[0]
    return started, gone


_NOT_MODELLED_STEPS = {
    "AdmissionCheck": "admission checks",
    "PreemptionGates": "gates of preemption",
    "AllowedFlavors": "variants of a workload",
    "Annotation": "workload slices",
    "NodeSelector": "node selectors",
    "Toleration": "taints",
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
        for step, why in _NOT_MODELLED_STEPS.items():
            if made.all(step):
                raise NotModelledError(why)
        if any(each.all("Limit") for sets in made.all("PodSets") for each in sets):
            raise NotModelledError("limits of containers")
        queue = queues.get(of_local.get((made.last("Queue", ""), made.args[1]), ""))
        if queue is None:
            continue
        if any(tainted.get(kind.partition("|")[0], True) for kind in _quotas(queue)):
            raise NotModelledError("flavors that are tainted or not there")
        selector = queue.last("NamespaceSelector") or {}
        for each in selector.get("MatchExpressions", []):
            if made.args[1].partition("-")[0] not in each["Values"]:
                raise NotModelledError("namespaces that a queue refuses")


def _refuse_queues(cluster_queues: list[Made]) -> None:
    usual = {"WhenCanBorrow": "MayStopSearch", "WhenCanPreempt": "TryNextFlavor"}
    for made in cluster_queues:
        if (usual | (made.last("FlavorFungibility") or {})) != usual:
            raise NotModelledError("another order of flavors")


_REPLACING = not_read("replacing a node that failed")
_STEPS = not_read("a step within the balanced placement, which is reckoned in another order here")
_CYCLES = not_read("a cycle with nodes, which is not read")
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
    Table("pkg/scheduler/scheduler_tas_test.go", "TestScheduleForTAS", _CYCLES),
    Table("pkg/scheduler/scheduler_tas_test.go", "TestScheduleForTASPreemption", _CYCLES),
    Table("pkg/scheduler/scheduler_tas_test.go", "TestScheduleForTASCohorts", _CYCLES),
)


def _read(path: Path, function: str) -> Iterator[tuple[str, dict[str, Any]]]:
    local = functools.partial(local_of, path, function)
    return ((name, case | {"_local": local}) for name, case in cases_of(path, function))


if __name__ == "__main__":
    run_tables("github.com/kubernetes-sigs/kueue", _TABLES, _read, 0.95)
