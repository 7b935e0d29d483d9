"""Slurm's own commands, with time limits, and what they answer (Slurm 22.05, and later forms of fields).

Who does not answer and who refuses are told apart.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlsched.errors import DdlschedError, InputError

_TIMEOUT_S = 30.0
_WHOLE_ARRAYS = "SLURM_BITSTR_LEN"
"""How many characters squeue writes of an array's tasks; 0 for all."""
_BUSY = (
    "unable to contact slurm controller",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "unexpected message received",
    "zero bytes were transmitted",
    "slurm backup controller",
    "in standby mode",
    "resource temporarily unavailable",
    "communication connection failure",
    "transport endpoint is not connected",
    "address resolution",
)
"""What commands write while slurmctld is down, restarts or is overloaded."""


class SlurmBusyError(DdlschedError):
    """Slurm's controller does not answer: try again later."""


class SlurmRefusalError(DdlschedError):
    """Slurm refuses a command: no permission, a job that is gone, a node that does not exist."""


Run = Callable[[Sequence[str]], str]
"""Runs one of Slurm's commands and returns what it writes; raises the two errors above, or InputError without Slurm."""


def runner(environment: Mapping[str, str] | None = None) -> Run:
    """Return what runs commands, in an environment that says where Slurm is; by default that of this process."""
    environment = {**(os.environ if environment is None else environment), _WHOLE_ARRAYS: "0"}

    def run(command: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # what users call their jobs need not be UTF-8
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except FileNotFoundError:
            raise InputError(f"{command[0]}: no such program; expected Slurm's commands on this machine") from None
        except subprocess.TimeoutExpired:
            raise SlurmBusyError(f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from None
        if done.returncode:
            raise _failure(command, done.stderr)
        return done.stdout

    return run


def _failure(command: Sequence[str], stderr: str) -> DdlschedError:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    message = f"{' '.join(command[:3])}: {lines[-1]}"
    if any(sign in stderr.lower() for sign in _BUSY):
        return SlurmBusyError(message)
    return SlurmRefusalError(message)


HOLDING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States in which a job has its GPUs."""
_NO_VALUE = 0xFFFFFFFE
"""What Slurm writes for a number that is none."""
_UNLIMITED_S = 365 * 86_400.0
"""What Slurm's own backfilling takes a job without a time limit for."""
_USABLE = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
_GPUS = re.compile(r"gres[:/]gpu(?:[:/](?P<kind>[^:/=,()]+))??[:=](?P<count>\d+)(?=$|[,(])")
_GRES = re.compile(r"gpu(?::([^:,()]+))??:(\d+)(?=$|[,(])")
"""A number is a count only at the end of an item: kinds may begin with digits, as 2080ti does."""
_MOST_TASKS = 4_000_001
"""Of an array, by Slurm itself."""
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """A job, as Slurm says.

    Parameters
    ----------
    job_id, name, user, comment, partition
        What it is and whose.
    state
        Its base state, such as ``PENDING``.
    is_held, reason
        Whether its user holds it back, and why it waits.
    array_id, array_task
        Which task of which array it is; 0 and None if it is none.
    array_tasks
        Tasks for which it stands together, while they wait and have no number of their own.
    array_limit
        How many tasks of its array may run at a time; 0 if that is not said, as it is not of every task.
    num_gpus
        What ``--gpus`` asked for, or ``--gres`` or ``--gpus-per-node`` on all nodes; None if GPUs were asked for
        otherwise, or none.
    gpus_per_node
        What the latter asked for on each node; 0 if any number will do.
    gpu_kind
        Of the GPUs that were asked for; empty if any will do.
    gpus_on
        Of a job that has them: how many GPUs on each node.
    submit_s
        When it was submitted (or last requeued), seconds of Slurm's clock.
    restarts
        How often it was requeued.
    has_dependency, own_nodes
        Whether it waits for another job, and which nodes it is to run on, if that was said (``--nodelist``).
    own_choice
        What else was said of its nodes, with the option that says it; empty if nothing was.
    time_limit_s
        How long it may run, seconds; a year if that is not limited.
    """

    job_id: int
    name: str
    user: str
    comment: str
    partition: str
    state: str
    is_held: bool
    reason: str
    array_id: int
    array_task: int | None
    array_tasks: tuple[int, ...]
    array_limit: int
    num_gpus: int | None
    gpus_per_node: int
    gpu_kind: str
    gpus_on: Mapping[str, int]
    submit_s: float
    restarts: int
    has_dependency: bool
    own_nodes: str
    own_choice: str
    time_limit_s: float

    @property
    def holds(self) -> bool:
        """Whether it has its GPUs."""
        return self.state in HOLDING

    @property
    def place(self) -> tuple[float, int, int]:
        """By which jobs come one after the other: submission, number, task. The last task keeps its array's number."""
        return self.submit_s, self.array_id or self.job_id, self.array_task or 0

    @property
    def name_in_commands(self) -> str:
        """What commands call it: by its number alone they would mean all tasks of an array."""
        return str(self.job_id) if self.array_task is None else f"{self.array_id}_{self.array_task}"


@dataclass(frozen=True, kw_only=True)
class SlurmNode:
    """A node: its name, GPUs and their kind (empty: several, or none), partitions, whether jobs may start there now."""

    name: str
    num_gpus: int
    gpu_kind: str
    partitions: tuple[str, ...]
    is_usable: bool


def jobs_of_squeue(text: str) -> list[SlurmJob]:
    """Return all jobs that Slurm still knows.

    Raises
    ------
    SlurmBusyError
        The answer says that it is none: without its controller ``squeue`` writes an empty list and ends well.
    InputError
        The text is not of the expected form.
    """
    return _rows("squeue", text, "jobs", _job)


def nodes_of_sinfo(text: str) -> list[SlurmNode]:
    """Return all nodes, in Slurm's order.

    Raises
    ------
    SlurmBusyError, InputError
        As of :func:`jobs_of_squeue`.
    """
    return _rows("sinfo", text, "nodes", _node)


def _rows(program: str, text: str, key: str, read: Callable[[Any], Any]) -> list[Any]:
    try:
        answer = json.loads(text, strict=False)  # names may hold control characters
        if errors := answer.get("errors"):
            raise SlurmBusyError(f"{program} --json: {errors[0].get('description') or errors[0].get('error')}")
        return [read(row) for row in answer[key]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        form = f"{program} --json: {type(error).__name__} {error}"
        raise InputError(f"{form}; expected the form that Slurm 22.05 writes") from None


def _job(row: Mapping[str, Any]) -> SlurmJob:
    state, flags = _states(row["job_state"])
    limit_minutes = _number(row["time_limit"])
    priority = _number(row["priority"])
    per_node, per_job = (_GPUS.search(str(row.get(name) or "")) for name in ("tres_per_node", "tres_per_job"))
    on_each = 0 if per_node is None else int(per_node["count"])
    array_id = int(_number(row["array_job_id"]) or 0)
    task = _task(row) if array_id else None
    reason = str(row["state_reason"])
    return SlurmJob(
        job_id=int(row["job_id"]),
        name=str(row["name"]),
        user=str(row["user_name"]),
        comment=str(_text(row["comment"])),
        partition=str(row["partition"]),
        state="COMPLETING" if "COMPLETING" in flags else state,
        is_held=state == "PENDING" and priority == 0 and reason != "JobHeldAdmin",
        reason=reason,
        array_id=array_id,
        array_task=task,
        array_tasks=_tasks(str(row["array_task_string"] or "")) if task is None else (),
        array_limit=int(_number(row.get("array_max_tasks")) or 0),
        num_gpus=_num_gpus(per_job, on_each, int(_number(row.get("node_count")) or 1)),
        gpus_per_node=on_each,
        gpu_kind=next((str(asked["kind"] or "") for asked in (per_node, per_job) if asked is not None), ""),
        gpus_on=_gpus_on(row),
        submit_s=float(_number(row["submit_time"]) or 0),
        restarts=int(_number(row["restart_cnt"]) or 0),
        has_dependency=bool(row["dependency"]),
        own_nodes=str(row.get("required_nodes") or ""),
        own_choice=_own_choice(row, on_each),
        time_limit_s=_UNLIMITED_S if not limit_minutes else limit_minutes * 60.0,
    )


def _own_choice(row: Mapping[str, Any], on_each: int) -> str:
    """Return what a user said of the nodes; so many with GPUs on each is a number of GPUs."""
    said = {"--exclude": row.get("excluded_nodes"), "--constraint": row.get("features")}
    said["--nodes"] = None if on_each else int(_number(row.get("max_nodes")) or 0)
    return " ".join(f"{option}={value}" for option, value in said.items() if value)


def _num_gpus(per_job: re.Match[str] | None, on_each: int, nodes: int) -> int | None:
    if on_each:
        return on_each * nodes
    return None if per_job is None else int(per_job["count"])


def _task(row: Mapping[str, Any]) -> int | None:
    """Return which task of its array a row is; None if it stands for several."""
    task = _number(row["array_task_id"])
    return None if task is None or task >= _NO_VALUE else int(task)


def _tasks(text: str) -> tuple[int, ...]:
    """Return the tasks of a text such as ``0-3,8-12:2%4``; parts that Slurm has cut off are left out."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if (match := _TASKS.fullmatch(part)) is not None:
            first, last, step = match[1], match[2] or match[1], match[3] or "1"
            found += range(int(first), min(int(last), _MOST_TASKS) + 1, max(int(step), 1))
    return tuple(found)


def _gpus_on(row: Mapping[str, Any]) -> dict[str, int]:
    nodes = (row.get("job_resources") or {}).get("allocated_nodes") or []
    counts = [_GRES.search(detail) for detail in row["gres_detail"] or []]
    return {
        str(node["nodename"]): int(count[2]) for node, count in zip(nodes, counts, strict=False) if count is not None
    }


def _node(row: Mapping[str, Any]) -> SlurmNode:
    state, flags = _states(row["state"])
    flags |= {str(flag).upper() for flag in row.get("state_flags") or []}
    gpus = _GRES.findall(str(row["gres"] or ""))
    kinds = {kind for kind, _ in gpus}
    return SlurmNode(
        name=str(row["name"]),
        num_gpus=sum(int(count) for _, count in gpus),
        gpu_kind=kinds.pop() if len(kinds) == 1 else "",
        partitions=tuple(row["partitions"]),
        is_usable=state in _USABLE and flags <= _HARMLESS,
    )


def _states(given: Any) -> tuple[str, set[str]]:
    """Return the base state and what else is said; newer Slurms write a list of both."""
    states = [str(state).upper() for state in given] if isinstance(given, list) else [str(given).upper()]
    return states[0], set(states[1:])


def _number(given: Any) -> float | None:
    """Return a number, which newer Slurms write with whether it is set."""
    if isinstance(given, Mapping):
        return float(given["number"]) if given.get("set") and not given.get("infinite") else None
    return None if given is None else float(given)


def _text(given: Any) -> Any:
    """Return a text; newer Slurms tell apart whose comment it is."""
    return given.get("job", "") if isinstance(given, Mapping) else given or ""
