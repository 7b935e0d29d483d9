"""Volcano's and KAI's objects: Queue, Volcano's Job, PodGroup, and Nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ddlsched.cluster.tenants import ANY_KIND, Queue, Quota
from ddlsched.comparisons.cluster_imports import ImportedCluster, kubernetes
from ddlsched.comparisons.cluster_imports.kubernetes import ObjectFields, Span
from ddlsched.workload.traces.traced import TracedJob

_ROOT = "cluster"


def read_volcano(path: Path) -> ImportedCluster:
    """Read Volcano's queues and jobs; what a job's pods need is what its tasks say."""
    objects = kubernetes.objects_of(path)
    queues = kubernetes.of_kind(objects, "Queue", "scheduling.volcano.sh")
    deserved = any(each.fields("spec").told.get("deserved") for each in queues)
    priorities = kubernetes.priorities_of(objects)
    jobs = [_volcano_job(each, priorities) for each in kubernetes.of_kind(objects, "Job", "batch.volcano.sh")]
    below = [_volcano_queue(each) for each in queues if kubernetes.name_of(each) != "root"]
    return _imported(objects, below, jobs, f"volcano:plugin={'capacity' if deserved else 'proportion'}")


def _imported(
    objects: Sequence[ObjectFields], queues: Sequence[Queue], jobs: Sequence[TracedJob], admission: str
) -> ImportedCluster:
    """Return the cluster with those of the jobs that have GPUs and a queue; how many others there are is noted."""
    names = {queue.name for queue in queues}
    known = tuple(job for job in jobs if job.num_gpus and job.queue in names)
    lost = len(jobs) - len(known)
    notes = [f"{lost} jobs left out, without GPUs or of queues that are not told"] if lost else []
    return ImportedCluster(
        queues=_under_root(queues),
        servers=kubernetes.servers_of(objects, {}, (), notes),
        jobs=known,
        admission=admission,
        notes=notes,
    )


def _volcano_queue(found: ObjectFields) -> Queue:
    spec = found.fields("spec")
    deserved = kubernetes.gpus_of_resources(spec.fields("deserved"))
    guaranteed = kubernetes.gpus_of_resources(spec.fields("guarantee").fields("resource"))
    gpus = max(deserved, guaranteed)
    most = kubernetes.gpus_of_resources(spec.fields("capability")) if spec.told.get("capability") else None
    quota = Quota(
        gpus=gpus, borrowing_limit=None if most is None else max(0, most - gpus), lending_limit=gpus - guaranteed
    )
    parent = spec.text("parent") or _ROOT
    return Queue(
        name=kubernetes.name_of(found),
        parent=_ROOT if parent == "root" else parent,
        quotas={ANY_KIND: quota},
        weight=spec.number("weight", 1.0),
    )


def _volcano_job(found: ObjectFields, priorities: Mapping[str, int]) -> TracedJob:
    spec, conditions = found.fields("spec"), found.fields("status").rows("conditions")
    tasks = spec.rows("tasks")
    gpus = sum(kubernetes.gpus_of_pods(task.whole("replicas", 1), task.fields("template")) for task in tasks)
    changed = {each.text("status"): each.time_s("lastTransitionTime") for each in conditions}
    begin_s = changed.get("Running")
    end_s = next((changed[name] for name in ("Completed", "Failed", "Terminated") if name in changed), None)
    return _told(found, spec.text("queue", "default"), gpus, (begin_s, end_s), priorities)


def _told(found: ObjectFields, queue: str, gpus: int, span: Span, priorities: Mapping[str, int]) -> TracedJob:
    priority = priorities.get(found.fields("spec").text("priorityClassName"), 0)
    user = found.fields("metadata").text("namespace") or None
    return kubernetes.told_job(found, span, num_gpus=gpus, queue=queue, priority=priority, user=user)


def read_kai(path: Path) -> ImportedCluster:
    """Read KAI's queues and pod groups; a group's GPUs are those of its annotation ``ddlsched.io/gpus`` or its pods."""
    objects = kubernetes.objects_of(path)
    queues = kubernetes.of_kind(objects, "Queue", "scheduling.run.ai")
    priorities = kubernetes.priorities_of(objects)
    pods = kubernetes.of_kind(objects, "Pod")
    jobs = [_kai_job(each, pods, priorities) for each in kubernetes.of_kind(objects, "PodGroup", "scheduling.run.ai")]
    return _imported(objects, [_kai_queue(each) for each in queues], jobs, "kai")


def _kai_queue(found: ObjectFields) -> Queue:
    spec = found.fields("spec")
    told = spec.fields("resources").fields("gpu")
    quota, limit = max(0, int(told.number("quota", 0, -1))), told.number("limit", -1, -1)
    bound = None if limit < 0 else max(0, int(limit) - quota)
    return Queue(
        name=kubernetes.name_of(found),
        parent=spec.text("parentQueue") or _ROOT,
        quotas={ANY_KIND: Quota(gpus=quota, borrowing_limit=bound)},
        weight=told.number("overQuotaWeight", 1.0),
    )


def _kai_job(found: ObjectFields, pods: Sequence[ObjectFields], priorities: Mapping[str, int]) -> TracedJob:
    name, told = kubernetes.name_of(found), kubernetes.told_number(found, "gpus")
    own = [each for each in pods if each.fields("metadata").fields("annotations").text("pod-group-name") == name]
    gpus = sum(kubernetes.gpus_of_pods(1, each) for each in own) if told is None else int(told)
    return _told(found, found.fields("spec").text("queue"), gpus, (None, None), priorities)


def _under_root(queues: Sequence[Queue]) -> tuple[Queue, ...]:
    """Return the queues below one; a group's own quota is what it has beyond those of its queues."""
    below: dict[str, int] = {}
    for queue in queues:
        below[str(queue.parent)] = below.get(str(queue.parent), 0) + queue.quotas[ANY_KIND].gpus
    fitted = [Queue(**{**vars(queue), "quotas": {ANY_KIND: _beyond(queue, below)}}) for queue in queues]
    return (Queue(name=_ROOT), *fitted) if queues else ()


def _beyond(queue: Queue, below: Mapping[str, int]) -> Quota:
    own = queue.quotas[ANY_KIND]
    gpus = max(0, own.gpus - below.get(queue.name, 0))
    lent = None if own.lending_limit is None else min(own.lending_limit, own.gpus)
    return Quota(gpus=gpus, borrowing_limit=own.borrowing_limit, lending_limit=lent)
