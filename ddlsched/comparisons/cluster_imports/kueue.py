"""Kueue's objects: ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Topology, Workload, and Nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddlsched.cluster.tenants import ANY_KIND, Preemption, Queue, Quota
from ddlsched.comparisons.cluster_imports import ImportedCluster, kubernetes
from ddlsched.comparisons.cluster_imports.kubernetes import ObjectFields
from ddlsched.workload.traces.traced import TracedJob

_GROUP = "kueue.x-k8s.io"
_RULES: dict[str, Any] = {
    "": "never",
    "Never": "never",
    "LowerPriority": "lower-priority",
    "LowerOrNewerEqualPriority": "lower-or-newer",
    "Any": "any",
}


def read_kueue(path: Path) -> ImportedCluster:
    """Read the objects of a folder or file; quotas of what is no GPU are left out, labels of topologies are levels.

    A workload's duration is from its admission to its end, or what its annotation ``ddlsched.io/duration-s`` says.
    """
    objects = kubernetes.objects_of(path)
    queues = kubernetes.of_kind(objects, "ClusterQueue", _GROUP)
    flavors = {
        kubernetes.name_of(each): each.fields("spec").fields("nodeLabels").told
        for each in kubernetes.of_kind(objects, "ResourceFlavor", _GROUP)
    }
    used = list(dict.fromkeys(flavor for each in queues for flavor in _flavors(each.fields("spec"))))
    kinds = {flavor: flavors.get(flavor, {}) for flavor in used} if len(used) > 1 else {}
    topologies = kubernetes.of_kind(objects, "Topology", _GROUP)
    labels = (level.needed("nodeLabel") for each in topologies for level in each.fields("spec").rows("levels"))
    levels = list(dict.fromkeys(labels))
    notes: list[str] = []
    return ImportedCluster(
        queues=_queues(objects, queues, single=len(used) <= 1),
        servers=kubernetes.servers_of(objects, kinds, levels, notes),
        jobs=_jobs(objects, levels, notes),
        admission=f"kueue:fair_sharing={'true' if any(_weight(each) != 1 for each in queues) else 'false'}",
        notes=notes,
    )


def _flavors(spec: ObjectFields) -> dict[str, Quota]:
    """Return the quota of GPUs of each flavor."""
    found = {}
    for group in spec.rows("resourceGroups"):
        for flavor in group.rows("flavors"):
            for resource in flavor.rows("resources"):
                if resource.text("name").endswith("gpu"):
                    found[flavor.needed("name")] = Quota(
                        gpus=resource.whole("nominalQuota"),
                        borrowing_limit=resource.limit("borrowingLimit"),
                        lending_limit=resource.limit("lendingLimit"),
                    )
    return found


def _queues(objects: Sequence[ObjectFields], queues: Sequence[ObjectFields], *, single: bool) -> tuple[Queue, ...]:
    """Return the cohorts, those too that only queues name, and the queues."""
    names = {kubernetes.name_of(each) for each in queues}
    cohorts = {kubernetes.name_of(each): each for each in kubernetes.of_kind(objects, "Cohort", _GROUP)}
    named = [_parent(each) for each in [*queues, *cohorts.values()]]
    groups = list(dict.fromkeys([*cohorts, *(name for name in named if name)]))
    title = {name: f"cohort {name}" if name in names else name for name in groups}
    untold = ObjectFields("", {"kind": "Cohort"})
    found = (_queue(title[name], cohorts.get(name, untold), title, single=single) for name in groups)
    return (*found, *(_queue(kubernetes.name_of(each), each, title, single=single) for each in queues))


def _parent(found: ObjectFields) -> str | None:
    spec = found.fields("spec")
    names = ("cohortName", "cohort") if found.told["kind"] == "ClusterQueue" else ("parentName", "parent")
    return next((text for name in names if (text := spec.text(name))), None)


def _queue(name: str, found: ObjectFields, title: Mapping[str, str], *, single: bool) -> Queue:
    spec, parent = found.fields("spec"), _parent(found)
    quotas = _flavors(spec)
    return Queue(
        name=name,
        parent=None if parent is None else title[parent],
        quotas={ANY_KIND: next(iter(quotas.values()))} if single and quotas else quotas,
        weight=_weight(found),
        order="strict" if spec.text("queueingStrategy") == "StrictFIFO" else "best-effort",
        preemption=_preemption(spec.fields("preemption")),
    )


def _weight(found: ObjectFields) -> float:
    return found.fields("spec").fields("fairSharing").number("weight", 1.0)


def _preemption(told: ObjectFields) -> Preemption:
    borrow, kinds = told.fields("borrowWithinCohort"), list(_RULES)
    return Preemption(
        within_queue=_rule(told, "withinClusterQueue", kinds[1:-1]),
        reclaim=_rule(told, "reclaimWithinCohort", kinds[1:]),
        borrow=_rule(borrow, "policy", kinds[1:3]),
        borrow_max_priority=borrow.limit("maxPriorityThreshold", at_least=-(2**31)),
    )


def _rule(told: ObjectFields, name: str, allowed: Sequence[str]) -> Any:
    rule = told.text(name)
    if rule and rule not in allowed:
        raise told.fault(name, f"one of {', '.join(allowed)}")
    return _RULES[rule]


def _jobs(objects: Sequence[ObjectFields], levels: Sequence[str], notes: list[str]) -> tuple[TracedJob, ...]:
    """Return the workloads that need GPUs; of others, and those of unknown queues, how many there are is noted."""
    local = {
        (each.fields("metadata").text("namespace"), kubernetes.name_of(each)): each.fields("spec").text("clusterQueue")
        for each in kubernetes.of_kind(objects, "LocalQueue", _GROUP)
    }
    known = {kubernetes.name_of(each) for each in kubernetes.of_kind(objects, "ClusterQueue", _GROUP)}
    jobs, lost, without = [], 0, 0
    for each in kubernetes.of_kind(objects, "Workload", _GROUP):
        spec, space = each.fields("spec"), each.fields("metadata").text("namespace")
        admitted_to = each.fields("status").fields("admission").text("clusterQueue")
        queue = admitted_to or local.get((space, spec.text("queueName")))
        sets = spec.rows("podSets")
        gpus = sum(kubernetes.gpus_of_pods(pods.whole("count", 1), pods.fields("template")) for pods in sets)
        without += not gpus
        lost += queue not in known
        if gpus and queue in known:
            jobs.append(_job(each, str(queue), gpus, levels))
    for count, what in ((lost, "of queues that are not told"), (without, "without GPUs")):
        if count:
            notes.append(f"{count} workloads left out, {what}")
    return tuple(jobs)


def _job(found: ObjectFields, queue: str, gpus: int, levels: Sequence[str]) -> TracedJob:
    spec = found.fields("spec")
    required, preferred = _demand(spec.rows("podSets"), levels)
    return kubernetes.told_job(
        found,
        (_since(found, "Admitted") or _since(found, "QuotaReserved"), _since(found, "Finished")),
        num_gpus=gpus,
        queue=queue,
        priority=spec.whole("priority", at_least=-(2**31)),
        user=spec.text("queueName") or None,
        required_levels=required,
        preferred_levels=preferred,
    )


def _demand(pod_sets: Sequence[ObjectFields], levels: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the levels that a workload's first pods with GPUs require, and their slices, and that they prefer."""
    pods = next(each for each in pod_sets if kubernetes.gpus_of_pods(1, each.fields("template")))
    template, told = pods.fields("template"), pods.fields("topologyRequest")
    notes = template.fields("metadata").fields("annotations")

    def asked(field: str, annotation: str) -> tuple[ObjectFields, str]:
        return (told, field) if told.told.get(field) else (notes, f"{_GROUP}/podset-{annotation}")

    def level(field: str, annotation: str) -> str | None:
        holder, name = asked(field, annotation)
        value = holder.text(name)
        if value not in ("", kubernetes.HOSTNAME, *levels):
            raise holder.fault(name, f"a level of the topology: {', '.join(levels) or 'there is none'}")
        return "server" if value == kubernetes.HOSTNAME else value or None

    holder, name = asked("podSetSliceSize", "slice-size")
    size = holder.whole(name) * kubernetes.gpus_of_pods(1, template)
    slices = level("podSetSliceRequiredTopology", "slice-required-topology")
    required = [level("required", "required-topology"), f"{size}:{slices}" if slices and size else None]
    return " ".join(each for each in required if each) or None, level("preferred", "preferred-topology")


def _since(found: ObjectFields, condition: str) -> float | None:
    conditions = found.fields("status").rows("conditions")
    return next((each.time_s("lastTransitionTime") for each in conditions if each.text("type") == condition), None)
