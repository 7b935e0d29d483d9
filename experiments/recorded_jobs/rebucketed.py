"""What if the buckets were larger: an iteration whose all-reduces are joined, without recording it anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ddlsched.workload.dag import AllReduceTask, IterationDag, Task


def rebucketed(dag: IterationDag, bucket_bytes: float) -> IterationDag:
    """Join all-reduces that follow each other until they have ``bucket_bytes``, as DistributedDataParallel does.

    A joined all-reduce starts when the last of its parts could; what waited for a part waits for all of it.
    """
    parts: list[list[AllReduceTask]] = []
    for task in dag.tasks:
        if isinstance(task, AllReduceTask):
            if not parts or sum(each.message_bytes for each in parts[-1]) >= bucket_bytes:
                parts.append([])
            parts[-1].append(task)
    name_of = {task.name: own[0].name for own in parts for task in own}
    before = {own[0].name: previous[0].name for previous, own in pairwise(parts)}
    joined = {own[0].name: own for own in parts}
    tasks: list[Task] = []
    for task in dag.tasks:
        if task.name in joined:
            own = joined[task.name]
            others = dict.fromkeys(name for each in own for name in each.after if name not in name_of)
            after = (*([before[task.name]] if task.name in before else []), *others)
            size = sum(each.message_bytes for each in own)
            tasks.append(AllReduceTask(name=task.name, message_bytes=size, after=after))
        elif task.name not in name_of:
            renamed = tuple(dict.fromkeys(name_of.get(name, name) for name in task.after))
            tasks.append(replace(task, after=renamed))
    return IterationDag(tuple(tasks))
