"""Slurm's tables, as ``-P`` prints them: ``sacctmgr show assoc``, ``sacct``, and ``scontrol show node``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ddlsched.cluster.cluster import Server
from ddlsched.cluster.tenants import ANY_KIND, Queue, Quota
from ddlsched.comparisons.cluster_imports import ImportedCluster
from ddlsched.comparisons.cluster_imports.kubernetes import seconds_of
from ddlsched.errors import InputError
from ddlsched.io.files import read_bytes
from ddlsched.io.tables import located, readable
from ddlsched.workload.traces.traced import TracedJob

_ROOT = "root"
_NO_LIMIT = 1_000_000_000
_BACKFILL = ":backfill=slurm-backfill:placement=whole-servers"
_LEFT_OUT = "steps, without GPUs, never started, of no lowest account, told twice, or with | in a name"
_GPUS = re.compile(r"gres/gpu:?([\w.-]*)=(\d{1,9})\b")
_OUT = re.compile(r"\bState=\S*\b(?:DOWN|DRAIN|FAIL|FUTURE)")
_NODE_GPUS = re.compile(r"gpu(?::[\w.-]+)?:(\d{1,9})\b")


def read_slurm(path: Path) -> ImportedCluster:
    """Read a folder's files: tables are told apart by their columns.

    Accounts are from one with Account, ParentName (``Par Name``), Share and GrpTRES; jobs from one with JobID, Account,
    Submit, Start, End and AllocTRES, and perhaps User and Timelimit; servers from ``scontrol show node``, those that
    take jobs. Who has no limit may use all that is free, so the root has as many GPUs as there may be.
    """
    files = [file for file in sorted(path.iterdir()) if not file.is_dir()] if path.is_dir() else []
    if not files:
        raise InputError(f"{path}: is no folder with files; expected what sacctmgr, sacct and scontrol print")
    accounts, logged, nodes, notes = list[dict[str, str]](), list[dict[str, str]](), list[str](), list[str]()
    for file in files:
        text = readable(file, "a table of Slurm", read_bytes).decode("utf-8-sig", "replace")
        told = [*_rows(text, "Account", "Share")], [*_rows(text, "JobID", "AllocTRES")], _nodes(text)
        if not any(told):
            notes.append(f"{file}: left out: holds no nodes with GPUs and no table, as -P prints it")
        accounts, logged, nodes = accounts + told[0], logged + told[1], nodes + told[2]
    named = [row for row in accounts if row["Account"] not in ("", _ROOT) and not row.get("User")]
    queues = {row["Account"]: _queue(row) for row in named}
    jobs = {job.job_id: job for row in logged if "." not in row["JobID"] and (job := _job(row)) is not None}
    leaves = queues.keys() - {queue.parent for queue in queues.values()}
    known = tuple(job for job in jobs.values() if job.queue in leaves)
    if lost := len(logged) - len(known):
        notes.append(f"{lost} rows of jobs left out: {_LEFT_OUT}")
    servers = tuple(Server(gpus=_gpus_of(node), gpu_memory_mb=80_000.0) for node in nodes if not _OUT.search(node))
    if out := len(nodes) - len(servers):
        notes.append(f"{out} nodes left out, which take no jobs: DOWN, DRAIN, FAIL or FUTURE")
    if accounts and not accounts[0].keys() & {"Par Name", "ParentName"}:
        notes.append(f"no ParentName is told: all accounts are below {_ROOT}")
    root = Queue(name=_ROOT, quotas={ANY_KIND: Quota(gpus=_NO_LIMIT)})
    return ImportedCluster(
        queues=(root, *queues.values()) if queues else (),
        servers=servers,
        jobs=known,
        admission=f"slurm-multifactor{'' if any(math.isnan(job.time_limit_s) for job in known) else _BACKFILL}",
        notes=notes,
    )


def _rows(text: str, *needed: str) -> Iterator[dict[str, str]]:
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.strip()]
    if lines and set(needed) <= set(lines[0]):
        for line in lines[1:]:  # Slurm prints a name's own "|" as it is: whose cells are whose is then not known
            yield dict(zip(lines[0], line if len(line) == len(lines[0]) else [""] * len(lines[0]), strict=True))


def _queue(row: dict[str, str]) -> Queue:
    share = row.get("Share", "1")
    quota = Quota(gpus=0, borrowing_limit=_gpus(row.get("GrpTRES", "")))
    parent = row.get("Par Name") or row.get("ParentName") or _ROOT
    weight = float(share) if share.isdecimal() else 1.0
    return Queue(name=row["Account"], parent=parent, quotas={ANY_KIND: quota}, weight=weight)


def _job(row: dict[str, str]) -> TracedJob | None:
    gpus = _gpus(row["AllocTRES"])
    submit_s, start_s, end_s = (_time_s(row, name) for name in ("Submit", "Start", "End"))
    if not gpus or submit_s is None or start_s is None or (end_s is not None and end_s <= start_s):
        return None
    return TracedJob(
        job_id=row["JobID"],
        queue=row.get("Account", ""),
        arrival_s=submit_s,
        num_gpus=gpus,
        duration_s=math.nan if end_s is None else end_s - start_s,
        user=row.get("User") or None,
        time_limit_s=_limit_s(row.get("Timelimit", "")),
    )


def _gpus(text: str) -> int | None:
    """Return the GPUs of all kinds, told together or kind by kind; None if none are told."""
    told = {kind: int(count) for kind, count in _GPUS.findall(text)}
    return told.get("", sum(told.values())) if told else None


def _time_s(row: dict[str, str], name: str) -> float | None:
    text = row.get(name, "").replace("Unknown", "").replace("None", "")  # of what has not begun or ended
    return located(f"job {row['JobID']}: {name}", lambda: seconds_of(text))


def _limit_s(text: str) -> float:
    """Return a limit such as 1-02:03:04, seconds; NaN for none."""
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}):(\d\d?):(\d\d?)", text)
    if found is None:
        return math.nan
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _nodes(text: str) -> list[str]:
    """Return what is told of each node with GPUs."""
    return [node for node in re.split(r"(?=NodeName=)", text) if node.startswith("NodeName=") and _gpus_of(node)]


def _gpus_of(node: str) -> int:
    found = re.search(r"Gres=(\S+)", node)
    return sum(int(count) for count in _NODE_GPUS.findall(found[1])) if found else 0
