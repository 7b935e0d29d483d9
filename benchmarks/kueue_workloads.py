"""What Kueue's builders make, read from a clone: queues and workloads with their amounts, and a cycle of them.

A kind of GPU stands for a flavor's resource, whatever it is; amounts are thousandths of processors, MiB, or pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from go_tables import Made
from scheduler_tables import NotModelledError, State

from algorithms.admission.kueue import Kueue, KueueRun
from ddlsched.cluster.tenants import Preemption, Queue, Quota, Tenants
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, Victim
from ddlsched.policies.views import JobView

_UNITS = {"m": 1e-3, "k": 1e3, "E": 1e18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_RESOURCES = {"ResourceCPU": "cpu", "ResourceMemory": "memory", "ResourcePods": "pods"}
_PER_UNIT = {"cpu": 1000.0, "memory": 2**-20}
_RULES = {
    "PreemptionPolicyLowerPriority": "lower-priority",
    "PreemptionPolicyLowerOrNewerEqualPriority": "lower-or-newer",
    "PreemptionPolicyAny": "any",
    "BorrowWithinCohortPolicyLowerPriority": "lower-priority",
}


# --- amounts


def quantity(given: Any) -> float:
    """Return the number that a quantity says, such as 0.5 for 500m."""
    text = str(given.args[0] if isinstance(given, Made) else given)
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)


def amount(given: Any, resource: str) -> int:
    """Return an amount of a resource in the units that are counted here."""
    if isinstance(given, Made) and given.function == "NewAmount":
        return int(given.args[0])
    return round(quantity(given) * _PER_UNIT.get(resource_name(resource), 1.0))


def resource_name(name: str) -> str:
    """Return a resource's name as users write it."""
    return _RESOURCES.get(name, str(name))


# --- what Kueue's builders make


def kind_of(flavor: str, resource: str) -> str:
    """Return the kind that stands for a flavor's resource."""
    return f"{flavor}|{resource_name(resource)}"


def quotas_of(made: Made) -> dict[str, Quota]:
    """Return the quotas of a queue or cohort, by the kinds that stand for flavors' resources."""
    found: dict[str, Quota] = {}
    for group in made.all("ResourceGroup"):
        for flavor in group:
            found |= dict(_flavorquotas_of(flavor))
    return found


def _flavorquotas_of(flavor: Made) -> Iterator[tuple[str, Quota]]:
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
            quotas=quotas_of(cohort),
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
            quotas=quotas_of(made),
            weight=_weight(made),
            order="strict" if made.last("QueueingStrategy") == "StrictFIFO" else "best-effort",
            preemption=_preemption(made.last("Preemption", {})),
        )
        for made in cluster_queues
    ]
    return Tenants(queues=(*groups.values(), *queues))


def refuse_queues(cluster_queues: list[Made]) -> None:
    """Refuse queues that try flavors in another order than the usual one."""
    usual = {"WhenCanBorrow": "MayStopSearch", "WhenCanPreempt": "TryNextFlavor"}
    for made in cluster_queues:
        if (usual | (made.last("FlavorFungibility") or {})) != usual:
            raise NotModelledError("another order of flavors")


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


class Workloads(State):
    """Workloads that run and wait in queues; of equal candidates the first by name gives way first."""

    def __init__(self, tenants: Tenants, workloads: list[Workload]) -> None:
        super().__init__(tenants, resource_of)
        workloads = sorted(workloads, key=lambda each: (each.flavor is None, each.name if each.flavor else ""))
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

    def start(self, answer: Admission) -> Any:
        """Let a job run in place of its victims; return its flavor, or where it is. None if there is no place."""
        self.carry_out(answer)
        return answer.kind.partition("|")[0]


def resource_of(kind: str) -> str:
    """Return the resource that a kind stands for."""
    return kind.partition("|")[2]


# --- a cycle


class _OneResource(KueueRun):
    """Tries the flavors of the queue that have quota of the job's resource."""

    def kinds(self, job: JobView, leaf: QuotaNode) -> list[str]:
        found = [kind for kind in leaf.queue.quotas if kind.endswith(f"|{job.user}")]
        if not found:
            raise NotModelledError("a resource that the queue has no quota of: quotas here are of GPUs")
        return found


def cycle(state: Workloads, policy: Kueue) -> tuple[dict[str, Any], set[str]]:
    """Play one cycle: who starts without victims on which flavor, or where, and who gives way.

    On nodes, a job for which others leave no place is tried anew, as in Kueue's cycle.
    """
    run, view = _OneResource(policy), state.view
    started, gone, entries = dict[str, Any](), set[str](), run.cycle(view)
    while entries:
        late = {entry.need.job.number for entry in entries.values()}
        for answer in run._processed(entries, view):
            late.discard(answer.job.number)
            if isinstance(answer, Admission) and (where := state.start(answer)) is not None:
                gone |= state.named(answer.victims)
                if not answer.victims:
                    started[state.name(answer.job)] = where
        anew = run.cycle(view).items() if state.room is not None else ()
        entries = {queue: entry for queue, entry in anew if entry.need.job.number in late}
    return started, gone
