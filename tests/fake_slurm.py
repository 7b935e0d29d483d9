"""Slurm's commands as functions of a state in memory, with a clock that the test sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ddlsched.real.slurm.commands import SlurmBusyError, SlurmRefusalError

Node = TypeVar("Node")


@dataclass
class FakeJob:
    """A job as this Slurm knows it."""

    job_id: int
    gpus: int
    comment: str = ""
    user: str = "me"
    partition: str = "gpus"
    state: str = "PENDING"
    held: bool = True
    reason: str = "JobHeldUser"
    wanted: tuple[str, ...] = ()
    own_nodes: str = ""
    not_on: str = ""
    features: str = ""
    most_nodes: int | None = None
    name: str = "train"
    given: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    dependency: str = ""
    array: int = 0
    task: int | None = None
    tasks: tuple[int, ...] = ()
    array_limit: int = 0
    on_each: int = 0
    kind: str = ""
    limit_minutes: int | None = None
    starts: int = 0


class FakeSlurm:
    """Nodes of equally many GPUs in a partition ``gpus``; :meth:`turn` starts what may start, as Slurm does."""

    def __init__(self, nodes: int = 4, gpus_per_node: int = 4, kinds: Sequence[str] = ()) -> None:
        self.now_s = 100.0
        self.nodes = {f"n{number}": "idle" for number in range(1, nodes + 1)}
        self.kinds = dict(zip(self.nodes, kinds, strict=False))
        self.gpus_per_node = gpus_per_node
        self.jobs: dict[int, FakeJob] = {}
        self.commands: list[tuple[str, ...]] = []
        self.before: Callable[[tuple[str, ...]], None] = lambda command: None
        self.down = False
        self.forbidden: set[int] = set()

    def submit(self, gpus: int, comment: str = "ddlsched:iterations=10,forward_s=1", **values: object) -> int:
        job_id = len(self.jobs) + 1
        self.jobs[job_id] = FakeJob(job_id, gpus, comment, **values)  # type: ignore[arg-type]
        return job_id

    def submit_array(self, tasks: Sequence[int], gpus: int, limit: int = 0) -> int:
        """Submit an array, whose tasks have one number as long as they are not held for themselves."""
        job_id = self.submit(gpus)
        self.jobs[job_id].array, self.jobs[job_id].tasks, self.jobs[job_id].array_limit = job_id, tuple(tasks), limit
        return job_id

    def turn(self) -> None:
        """Start the released jobs that fit on the nodes that they want, in order."""
        for job in self.jobs.values():
            if job.state == "PENDING" and not job.held and job.wanted:
                free = {node: self.free(node) for node in sorted(job.wanted)}
                up = all(self.nodes[node] == "idle" and job.kind in ("", self.kinds.get(node)) for node in free)
                if job.on_each:
                    free = {node: job.on_each * (count >= job.on_each) for node, count in free.items()}
                if up and min(free.values()) > 0 and sum(free.values()) >= job.gpus:
                    more = [node for node in self.nodes if node not in free and self.free(node)]
                    if job.most_nodes is None and more and job.gpus > len(free):  # a minimum alone is no maximum
                        free[more[0]] = self.free(more[0])
                    job.given = greedy(free, job.gpus)
                    job.state, job.starts = "RUNNING", job.starts + 1

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        self.jobs[job_id].state, self.jobs[job_id].given = state, {}

    def free(self, node: str) -> int:
        return self.gpus_per_node - sum(job.given.get(node, 0) for job in self.jobs.values())

    def states(self) -> dict[int, str]:
        return {job.job_id: "HELD" if job.held and job.state == "PENDING" else job.state for job in self.jobs.values()}

    def __call__(self, command: Sequence[str]) -> str:
        self.before(tuple(command))
        if self.down:
            raise SlurmBusyError(f"{command[0]}: Unable to contact slurm controller (connect failure)")
        if command[0] == "squeue":
            return json.dumps({"errors": [], "jobs": [_row(job) for job in self.jobs.values()]})
        if command[0] == "sinfo":
            return json.dumps({"errors": [], "nodes": [self._node(name) for name in self.nodes]})
        self.commands.append(tuple(command))
        self._scontrol(command[1], list(command[2:]))
        return ""

    def _scontrol(self, what: str, rest: list[str]) -> None:
        values = dict(part.split("=", 1) for part in rest if "=" in part)
        job_id = self._called(values.get("JobId", rest[0].partition("=")[2] or rest[0]))
        job = self.jobs[job_id]
        if job_id in self.forbidden:
            raise SlurmRefusalError(f"scontrol {what}: Access/permission denied for job {job_id}")
        if what == "update":
            job.wanted = tuple(values["ReqNodeList"].split(","))
            least, _, most = values["NumNodes"].partition("-")
            assert int(least) == len(job.wanted)
            job.most_nodes = int(most) if most else None
        elif what == "release":
            job.held, job.reason = False, "None"
        elif what == "uhold":
            job.held, job.reason = True, "JobHeldUser"
        elif what == "requeuehold":
            job.state, job.held, job.given, job.reason = "PENDING", True, {}, "JobHeldUser"
            job.restarts += 1
        else:
            raise AssertionError(what)

    def _called(self, name: str) -> int:
        """Return the number of a job; a task that waits with others gets one by being called by its name."""
        array, _, task = name.partition("_")
        if not task:
            assert not self.jobs[int(array)].array, "would mean the whole array"
            return int(array)
        for job in self.jobs.values():
            if job.array == int(array) and job.task == int(task):
                return job.job_id
        together = self.jobs[int(array)]
        assert int(task) in together.tasks
        together.tasks = tuple(other for other in together.tasks if other != int(task))
        if not together.tasks:
            together.task = int(task)
            return together.job_id
        apart = replace(together, job_id=len(self.jobs) + 1, task=int(task), tasks=(), array_limit=0)
        self.jobs[apart.job_id] = apart
        return apart.job_id

    def _node(self, name: str) -> dict[str, object]:
        gres = f"gpu:{self.kinds[name]}:{self.gpus_per_node}" if self.kinds else f"gpu:{self.gpus_per_node}"
        return {"name": name, "gres": gres, "partitions": ["gpus"], "state": self.nodes[name], "state_flags": []}


def greedy(free: dict[Node, int], gpus: int) -> dict[Node, int]:
    """Return how Slurm shares GPUs out among nodes: all of each in order, but one at least for each that follows."""
    given, left = {}, gpus
    for place, (node, count) in enumerate(free.items()):
        given[node] = min(count, left - (len(free) - place - 1))
        left -= given[node]
    return given


def _row(job: FakeJob) -> dict[str, object]:
    kind = f":{job.kind}" if job.kind else ""
    return {
        "job_id": job.job_id,
        "name": job.name,
        "user_name": job.user,
        "comment": job.comment,
        "partition": job.partition,
        "job_state": job.state,
        "state_reason": job.reason if job.state == "PENDING" else "None",
        "priority": 0 if job.held else 4294901759,
        "array_job_id": job.array,
        "array_task_id": job.task,
        "array_task_string": ",".join(map(str, job.tasks)),
        "array_max_tasks": job.array_limit,
        "tres_per_job": f"gres:gpu{kind}:{job.gpus}" if job.gpus and not job.on_each else "",
        "tres_per_node": f"gres:gpu{kind}:{job.on_each}" if job.on_each else "",
        "node_count": job.gpus // job.on_each if job.on_each else 1,
        "gres_detail": [f"gpu:{count}(IDX:0)" for count in job.given.values()],
        "job_resources": {"allocated_nodes": [{"nodename": node} for node in job.given]},
        "submit_time": 1000 + (job.array or job.job_id),
        "restart_cnt": job.restarts,
        "dependency": job.dependency,
        "required_nodes": job.own_nodes,
        "excluded_nodes": job.not_on,
        "features": job.features,
        "max_nodes": {"set": True, "infinite": False, "number": job.most_nodes or 0},
        "time_limit": job.limit_minutes,
    }
