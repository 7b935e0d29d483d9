"""Kueue's objects: ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Topology, Workload, and Nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddlsched.cluster.tenants import ANY_KIND, Preemption, Queue, Quota
from ddlsched.comparisons.cluster_imports import ImportedCluster, kubernetes
from ddlsched.errors import InputError
from ddlsched.workload.traces.traced import TracedJob

_GROUP = "kueue.x-k8s.io"
_RULES: dict[Any, Any] = {
    None: "never",
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
        kubernetes.name_of(each): kubernetes.spec_of(each).get("nodeLabels") or {}
        for each in kubernetes.of_kind(objects, "ResourceFlavor", _GROUP)
    }
    used = list(dict.fromkeys(flavor for each in queues for flavor in _flavors(kubernetes.spec_of(each))))
    kinds = {flavor: flavors.get(flavor, {}) for flavor in used} if len(used) > 1 else {}
    labels = (
        str(level["nodeLabel"]) for each in kubernetes.of_kind(objects, "Topology", _GROUP) for level in _levels(each)
    )
    levels = list(dict.fromkeys(labels))
    notes: list[str] = []
    return ImportedCluster(
        queues=_queues(objects, queues, single=len(used) <= 1),
        servers=kubernetes.servers_of(objects, kinds, levels),
        jobs=_jobs(objects, levels, notes),
        admission=f"kueue:fair_sharing={'true' if any(_weight(each) != 1 for each in queues) else 'false'}",
        notes=notes,
    )


def _levels(topology: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(kubernetes.spec_of(topology).get("levels") or [])


def _flavors(spec: Mapping[str, Any]) -> dict[str, Quota]:
    """Return the quota of GPUs of each flavor."""
    found = {}
    for group in spec.get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if str(resource.get("name")).endswith("gpu"):
                    found[str(flavor["name"])] = _quota(resource)
    return found


def _quota(resource: Mapping[str, Any]) -> Quota:
    def gpus(field: str) -> int | None:
        value = resource.get(field)
        return None if value is None else kubernetes.gpus_of_resources({"gpu": value})

    limits = gpus("borrowingLimit"), gpus("lendingLimit")
    return Quota(gpus=gpus("nominalQuota") or 0, borrowing_limit=limits[0], lending_limit=limits[1])


def _queues(objects: Sequence[dict[str, Any]], queues: Sequence[dict[str, Any]], *, single: bool) -> tuple[Queue, ...]:
    """Return the cohorts, those too that only queues name, and the queues."""
    names = {kubernetes.name_of(each) for each in queues}
    cohorts = {kubernetes.name_of(each): each for each in kubernetes.of_kind(objects, "Cohort", _GROUP)}
    named = [_parent(each) for each in [*queues, *cohorts.values()]]
    groups = list(dict.fromkeys([*cohorts, *(name for name in named if name)]))
    title = {name: f"cohort {name}" if name in names else name for name in groups}
    found = []
    for name in groups:
        cohort = cohorts.get(name, {"kind": "Cohort"})
        found.append(_queue(title[name], cohort, title, single=single))
    return (*found, *(_queue(kubernetes.name_of(each), each, title, single=single) for each in queues))


def _parent(found: Mapping[str, Any]) -> str | None:
    spec = kubernetes.spec_of(found)
    names = ("cohortName", "cohort") if found["kind"] == "ClusterQueue" else ("parentName", "parent")
    return next((str(spec[name]) for name in names if spec.get(name)), None)


def _queue(name: str, found: Mapping[str, Any], title: Mapping[str, str], *, single: bool) -> Queue:
    spec, parent = kubernetes.spec_of(found), _parent(found)
    quotas = _flavors(spec)
    return Queue(
        name=name,
        parent=None if parent is None else title[parent],
        quotas={ANY_KIND: next(iter(quotas.values()))} if single and quotas else quotas,
        weight=_weight(found),
        order="strict" if spec.get("queueingStrategy") == "StrictFIFO" else "best-effort",
        preemption=_preemption(name, spec.get("preemption") or {}),
    )


def _weight(found: Mapping[str, Any]) -> float:
    text = str((kubernetes.spec_of(found).get("fairSharing") or {}).get("weight", 1))
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _preemption(name: str, told: Mapping[str, Any]) -> Preemption:
    borrow = told.get("borrowWithinCohort") or {}
    try:
        return Preemption(
            within_queue=_RULES[told.get("withinClusterQueue")],
            reclaim=_RULES[told.get("reclaimWithinCohort")],
            borrow=_RULES[borrow.get("policy")],
            borrow_max_priority=borrow.get("maxPriorityThreshold"),
        )
    except KeyError as error:
        raise InputError(f"ClusterQueue {name}: preemption {error} is no rule; expected {list(_RULES)[1:]}") from None


def _jobs(objects: Sequence[dict[str, Any]], levels: Sequence[str], notes: list[str]) -> tuple[TracedJob, ...]:
    """Return the workloads that need GPUs; of others, and those of unknown queues, how many there are is noted."""
    local = {
        (each["metadata"].get("namespace", ""), kubernetes.name_of(each)): str(
            kubernetes.spec_of(each).get("clusterQueue")
        )
        for each in kubernetes.of_kind(objects, "LocalQueue", _GROUP)
    }
    known = {kubernetes.name_of(each) for each in kubernetes.of_kind(objects, "ClusterQueue", _GROUP)}
    jobs, lost, without = [], 0, 0
    for each in kubernetes.of_kind(objects, "Workload", _GROUP):
        spec, space = kubernetes.spec_of(each), each["metadata"].get("namespace", "")
        admitted_to = (each.get("status") or {}).get("admission", {}).get("clusterQueue")
        queue = admitted_to or local.get((space, str(spec.get("queueName"))))
        gpus = sum(
            kubernetes.gpus_of_pods(int(pods.get("count", 1)), pods.get("template") or {}) for pods in spec["podSets"]
        )
        without += not gpus
        lost += queue not in known
        if gpus and queue in known:
            jobs.append(_job(each, str(queue), gpus, levels))
    for count, what in ((lost, "of queues that are not told"), (without, "without GPUs")):
        if count:
            notes.append(f"{count} workloads left out, {what}")
    return tuple(jobs)


def _job(found: Mapping[str, Any], queue: str, gpus: int, levels: Sequence[str]) -> TracedJob:
    required, preferred = _demand(kubernetes.spec_of(found)["podSets"], levels)
    return kubernetes.told_job(
        found,
        (_since(found, "Admitted") or _since(found, "QuotaReserved"), _since(found, "Finished")),
        num_gpus=gpus,
        queue=queue,
        priority=int(kubernetes.spec_of(found).get("priority") or 0),
        user=str(kubernetes.spec_of(found).get("queueName") or "") or None,
        required_levels=required,
        preferred_levels=preferred,
    )


def _demand(pod_sets: Sequence[Mapping[str, Any]], levels: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the levels that a workload's first pods with GPUs require, and their slices, and that they prefer."""
    pods = next(each for each in pod_sets if kubernetes.gpus_of_pods(1, each.get("template") or {}))
    template, told = pods.get("template") or {}, pods.get("topologyRequest") or {}
    notes = (template.get("metadata") or {}).get("annotations") or {}

    def asked(field: str, annotation: str) -> str | None:
        value = told.get(field) or notes.get(f"{_GROUP}/podset-{annotation}")
        if value is not None and field.endswith("Size") and not str(value).isdecimal():
            raise InputError(f"a workload's {annotation} is {value!r}; expected a whole number of pods")
        if not field.endswith("Size") and value not in (None, kubernetes.HOSTNAME, *levels):
            raise InputError(f"a workload asks for the topology level {value!r}; expected one of {', '.join(levels)}")
        return "server" if value == kubernetes.HOSTNAME else None if value is None else str(value)

    size = int(asked("podSetSliceSize", "slice-size") or 0) * kubernetes.gpus_of_pods(1, template)
    slices = asked("podSetSliceRequiredTopology", "slice-required-topology")
    required = [asked("required", "required-topology"), f"{size}:{slices}" if slices and size else None]
    return " ".join(level for level in required if level) or None, asked("preferred", "preferred-topology")


def _since(found: Mapping[str, Any], condition: str) -> float | None:
    conditions = (found.get("status") or {}).get("conditions") or []
    times = [each.get("lastTransitionTime") for each in conditions if each.get("type") == condition]
    return kubernetes.seconds_of(times[0]) if times else None
