"""Idle nodes from what batch schedulers write down: SWF logs and the output of Slurm's ``sacct``.

What jobs held is known, so what lies between is idle; from the first start to the last end in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.errors import InputError
from ddlsched.io.tables import abbreviated, cell_number, cell_whole, located, read_text, readable

__all__ = ["SACCT_COMMAND", "Busy", "expand_hosts", "from_sacct", "from_swf", "idle_between"]

SACCT_COMMAND = "sacct --allusers --allocations --parsable2 --format=JobID,Start,End,State,NodeList"
"""What writes the table that :func:`from_sacct` reads; give it the nodes and times of interest too."""

_SACCT_COLUMNS = ("JobID", "Start", "End", "State", "NodeList")
_SWF_FIELDS = 18
_NO_NODES = {"", "None assigned"}


class Busy(NamedTuple):
    """A node that a job of the main scheduler holds, seconds."""

    node: int
    from_s: float
    to_s: float


def idle_between(busy: Iterable[Busy], num_nodes: int, *, at_least_s: float = 0.0) -> IdleTrace:
    """Return when nodes 0 to ``num_nodes - 1`` are not busy, from the first beginning (time 0) to the last end.

    Parameters
    ----------
    busy
        In any order; those of a node may overlap, as jobs share nodes.
    num_nodes
        How many nodes there are.
    at_least_s
        Shorter gaps are left out.

    Raises
    ------
    InputError
        No node is ever busy, or no gap is left.
    """
    held = sorted(busy)
    if not held:
        raise InputError("idle nodes: no job held a node; expected a log with jobs that ran")
    first_s, last_s = min(each.from_s for each in held), max(each.to_s for each in held)
    by_node = {node: list(of_node) for node, of_node in groupby(held, key=lambda each: each.node)}
    gaps = [
        (node, from_s - first_s, to_s - first_s)
        for node in range(num_nodes)
        for from_s, to_s in _gaps(by_node.get(node, []), first_s, last_s)
        if to_s - from_s > max(at_least_s, 0.0)
    ]
    if not gaps:
        raise InputError(f"idle nodes: none of the {num_nodes} nodes is idle for more than {at_least_s:g} s")
    nodes, starts, ends = np.array(sorted(gaps, key=lambda gap: (gap[1], gap[0])), np.float64).T
    return IdleTrace(nodes.astype(np.int64), starts, ends)


def _gaps(held: list[Busy], first_s: float, last_s: float) -> Iterator[tuple[float, float]]:
    free_from_s = first_s
    for each in held:
        if each.from_s > free_from_s:
            yield free_from_s, each.from_s
        free_from_s = max(free_from_s, each.to_s)
    if free_from_s < last_s:
        yield free_from_s, last_s


def from_swf(path: str | Path, num_nodes: int, *, processors_per_node: int = 1, at_least_s: float = 0.0) -> IdleTrace:
    """Read a log in the Standard Workload Format; it does not say on which nodes jobs ran, so the lowest free ones do.

    Raises
    ------
    InputError
        With file, line, field, value and what is expected; also if jobs need more nodes than there are.
    """
    path = Path(path)
    text = readable(path, "a log in the Standard Workload Format", read_text)
    jobs = sorted(_swf_jobs(path, text, processors_per_node))
    busy = list(_on_lowest_free(jobs, num_nodes))
    return located(str(path), lambda: idle_between(busy, num_nodes, at_least_s=at_least_s))


def _swf_jobs(path: Path, text: str, per_node: int) -> Iterator[tuple[float, float, int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        where, fields = f"{path}, line {number}", line.split()
        if len(fields) != _SWF_FIELDS:
            raise InputError(f"{where}: has {len(fields)} values; expected {_SWF_FIELDS}")
        processors = fields[4] if fields[4] not in ("-1", "0") else fields[7]
        if fields[10] in ("2", "3", "4") or fields[3] in ("-1", "0") or processors in ("-1", "0"):
            continue  # A part of a job that has its own line, or a job that never ran.
        submit_s = cell_number(where, "submit time", fields[1])
        start_s = submit_s + (0.0 if fields[2] == "-1" else cell_number(where, "wait time", fields[2]))
        run_s = cell_number(where, "run time", fields[3])
        yield start_s, start_s + run_s, -(-cell_whole(where, "processors", processors) // per_node), where


def _on_lowest_free(jobs: list[tuple[float, float, int, str]], num_nodes: int) -> Iterator[Busy]:
    free, running = list(range(num_nodes)), list[tuple[float, int]]()
    heapify(free)
    for start_s, end_s, count, where in jobs:
        while running and running[0][0] <= start_s:
            heappush(free, heappop(running)[1])
        if count > len(free):
            raise InputError(f"{where}: the job needs {count} nodes and {len(free)} are free; expected more nodes")
        for _ in range(count):
            node = heappop(free)
            heappush(running, (end_s, node))
            yield Busy(node, start_s, end_s)


def from_sacct(path: str | Path, *, at_least_s: float = 0.0) -> tuple[IdleTrace, list[str]]:
    """Read the table that :data:`SACCT_COMMAND` writes; return the idle nodes and their names, in the order of numbers.

    Jobs that still run hold their nodes to the end of the log. Only nodes that the log names are known.

    Raises
    ------
    InputError
        With file, line, field, value and what is expected.
    """
    path = Path(path)
    lines = readable(path, "a table of sacct", read_text).splitlines()
    header = lines[0].split("|") if lines else []
    if tuple(header) != _SACCT_COLUMNS:
        shown = abbreviated("|".join(header))
        raise InputError(f"{path}: the header is {shown}; expected {'|'.join(_SACCT_COLUMNS)}, as of: {SACCT_COMMAND}")
    rows = [
        row for number, line in enumerate(lines[1:], start=2) for row in _sacct_rows(f"{path}, line {number}", line)
    ]
    names = sorted({name for name, _, _ in rows})
    numbers = {name: number for number, name in enumerate(names)}
    last_s = max((end_s for *_, end_s in rows if end_s is not None), default=0.0)
    last_s = max([last_s, *(start_s for _, start_s, _ in rows)])
    busy = [
        Busy(numbers[name], start_s, last_s if end_s is None else end_s)
        for name, start_s, end_s in rows
        if end_s is None or end_s > start_s
    ]
    return located(str(path), lambda: idle_between(busy, len(names), at_least_s=at_least_s)), names


def _sacct_rows(where: str, line: str) -> Iterator[tuple[str, float, float | None]]:
    cells = line.split("|")
    if len(cells) != len(_SACCT_COLUMNS):
        raise InputError(f"{where}: has {len(cells)} values; expected {len(_SACCT_COLUMNS)}")
    _, start, end, _, nodes = cells
    if nodes in _NO_NODES or start in ("Unknown", "None"):
        return
    start_s = _time_s(where, "Start", start)
    end_s = None if end == "Unknown" else _time_s(where, "End", end)
    for name in located(where, lambda: expand_hosts(nodes)):
        yield name, start_s, end_s


def _time_s(where: str, column: str, text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        expected = "expected a time such as 2026-01-31T12:00:00, or Unknown"
        raise InputError(f"{where}, column {column}: {abbreviated(text)}; {expected}") from None


_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """Return the host names that a host list stands for, in its order.

    Raises
    ------
    InputError
        Brackets that do not match, a range that is none, or more than a million hosts.
    """
    hosts: list[str] = []
    place = 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or not part.group():
            raise _refused(text)
        for host in _expanded(part.group(), text):
            hosts.append(host)
            if len(hosts) > _MOST:
                raise _refused(text)
        place = part.end()
        if place < len(text) and (text[place] != "," or place + 1 == len(text)):
            raise _refused(text)
        place += 1
    return hosts


def _expanded(part: str, text: str) -> Iterator[str]:
    prefix, bracket, rest = part.partition("[")
    if not bracket:
        yield prefix
        return
    inside, _, suffix = rest.partition("]")
    for piece in inside.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None:
            raise _refused(text)
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) > _MOST:
            raise _refused(text)
        for number in range(int(first), int(last) + 1):
            for end in _expanded(suffix, text):
                yield f"{prefix}{number:0{len(first)}}{end}"


def _refused(text: str) -> InputError:
    return InputError(f"host list {abbreviated(text)}: expected names such as nid[0001-0003,0007],login1")
