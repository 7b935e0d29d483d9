"""Nodes that a main scheduler leaves idle, and for how long: the Scavenger's view of a cluster's past."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, pairwise, product
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.deferred import pd
from ddlsched.errors import InputError, abbreviated
from ddlsched.io import tables
from ddlsched.io.files import from_parquet

Seconds: TypeAlias = "npt.NDArray[np.float64]"
COLUMNS = ("node", "idle_from_s", "idle_to_s")


class IdleChange(NamedTuple):
    """What changed in the set of idle nodes at one time; a node that goes and comes back at once did not change."""

    time_s: float
    joined: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class IdleTrace:
    """Idle fragments: which node was idle from when to when.

    Parameters
    ----------
    node
        Numbers from 0, shape (fragments,).
    idle_from_s, idle_to_s
        Seconds, of the same shape; a node is idle at its beginning and no longer at its end.

    Raises
    ------
    InputError
        A fragment without length, or two of a node that overlap.
    """

    node: npt.NDArray[np.int64]
    idle_from_s: Seconds
    idle_to_s: Seconds

    def __post_init__(self) -> None:
        order = np.lexsort((self.idle_from_s, self.node))
        node, start, end = self.node[order], self.idle_from_s[order], self.idle_to_s[order]
        if (bad := np.flatnonzero(start >= end)).size:
            raise InputError(_said(node, start, end, bad[0], "a fragment that ends after it begins"))
        if (bad := np.flatnonzero((node[1:] == node[:-1]) & (start[1:] < end[:-1]))).size:
            expected = f"one that begins after that node's last ended, at {end[bad[0]]:g} s"
            raise InputError(_said(node, start, end, bad[0] + 1, expected))

    def __len__(self) -> int:
        return len(self.node)

    @property
    def lengths_s(self) -> Seconds:
        """How long each fragment is, seconds."""
        return self.idle_to_s - self.idle_from_s

    def of_nodes(self, first: int, beyond: int) -> IdleTrace:
        """Return the fragments of nodes ``first`` to ``beyond - 1``, numbered from 0."""
        chosen = (self.node >= first) & (self.node < beyond)
        return IdleTrace(self.node[chosen] - first, self.idle_from_s[chosen], self.idle_to_s[chosen])

    def between(self, from_s: float, to_s: float = np.inf) -> IdleTrace:
        """Return what lies within a span, cut at its ends; times stay as they are."""
        chosen = (self.idle_to_s > from_s) & (self.idle_from_s < to_s)
        starts, ends = np.maximum(self.idle_from_s[chosen], from_s), np.minimum(self.idle_to_s[chosen], to_s)
        return IdleTrace(self.node[chosen], starts, ends)

    def since(self, from_s: float) -> IdleTrace:
        """Return the same with ``from_s`` as time 0, without what was before."""
        later = self.between(from_s)
        return IdleTrace(later.node, later.idle_from_s - from_s, later.idle_to_s - from_s)

    def changes(self) -> Iterator[IdleChange]:
        """Yield the changes of the set of idle nodes, in order of time."""
        times = np.concatenate([self.idle_from_s, self.idle_to_s])
        steps = np.repeat([1, -1], len(self))
        nodes = np.concatenate([self.node, self.node])
        order = np.argsort(times, kind="stable")
        times, steps, nodes = times[order], steps[order], nodes[order]
        bounds = np.flatnonzero(np.diff(times, prepend=-np.inf, append=np.inf))
        for first, beyond in pairwise(bounds.tolist()):
            came, went = (set(nodes[first:beyond][steps[first:beyond] == step].tolist()) for step in (1, -1))
            if came != went:
                yield IdleChange(float(times[first]), tuple(sorted(came - went)), tuple(sorted(went - came)))

    def capacity(self) -> CapacityTrace:
        """Return the same as servers that join and leave a cluster without warning."""
        return CapacityTrace.of(
            zip(self.node.tolist(), self.idle_from_s.tolist(), self.idle_to_s.tolist(), strict=True)
        )

    def mean_idle(self, from_s: float, to_s: float) -> float:
        """Return how many nodes are idle on average within a span."""
        within = self.between(from_s, to_s)
        return float(within.lengths_s.sum()) / (to_s - from_s)

    def frame(self) -> pd.DataFrame:
        """Return a table with a row a fragment."""
        return pd.DataFrame(dict(zip(COLUMNS, (self.node, self.idle_from_s, self.idle_to_s), strict=True)))


def _said(node: npt.NDArray[np.int64], start: Seconds, end: Seconds, place: int, expected: str) -> str:
    fragment = f"node {node[place]} is idle from {start[place]:g} to {end[place]:g} s"
    return f"idle nodes: {fragment}; expected {expected}"


def read_fragments(path: str | Path) -> IdleTrace:
    """Read a table of idle fragments, CSV or Parquet, with the columns node, idle_from_s, idle_to_s.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    path = Path(path)
    read = _from_parquet if path.suffix == ".parquet" else _from_csv
    trace = tables.readable(path, "a table of idle fragments (CSV or Parquet)", read)
    if not len(trace):
        raise InputError(f"{path}: holds no fragment; expected at least one row")
    return trace


def _from_csv(path: Path) -> IdleTrace:
    rows = []
    for where, row in tables.csv_rows(path, COLUMNS, ()):
        node = tables.cell_whole(where, "node", row["node"], at_least=0)
        rows.append((node, *(tables.cell_time_s(where, column, row[column]) for column in COLUMNS[1:])))
    return _made(path, np.array(rows, np.float64).reshape(-1, 3).T)


def _from_parquet(path: Path) -> IdleTrace:
    frame = from_parquet(path, lambda table: table.to_pandas())
    tables.check_columns(path, [str(name) for name in frame.columns], COLUMNS, ())
    for column in COLUMNS:
        numbers = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        whole = np.ones(len(numbers), bool) if column != "node" else numbers % 1 == 0
        if (bad := np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0) & whole))).size:
            shown, expected = frame[column].tolist()[bad[0]], "a whole number" if column == "node" else "seconds"
            raise InputError(f"{path}, row {bad[0] + 1}, column {column}: {shown!r}; expected {expected} from 0")
    return _made(path, frame[list(COLUMNS)].to_numpy(np.float64).T)


def _made(path: Path, columns: npt.NDArray[np.float64]) -> IdleTrace:
    return tables.located(str(path), lambda: IdleTrace(columns[0].astype(np.int64), columns[1], columns[2]))


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
        Gaps that last no longer are left out.

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
        if to_s - from_s > at_least_s
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
    text = tables.readable(path, "a log in the Standard Workload Format", tables.read_text)
    jobs = sorted(_swf_jobs(path, text, processors_per_node))
    busy = list(_on_lowest_free(jobs, num_nodes))
    return tables.located(str(path), lambda: idle_between(busy, num_nodes, at_least_s=at_least_s))


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
        submit_s = tables.cell_number(where, "submit time", fields[1])
        start_s = submit_s + (0.0 if fields[2] == "-1" else tables.cell_number(where, "wait time", fields[2]))
        run_s = tables.cell_number(where, "run time", fields[3])
        yield start_s, start_s + run_s, -(-tables.cell_whole(where, "processors", processors) // per_node), where


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
    lines = tables.readable(path, "a table of sacct", tables.read_text).splitlines()
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
    return tables.located(str(path), lambda: idle_between(busy, len(names), at_least_s=at_least_s)), names


def _sacct_rows(where: str, line: str) -> Iterator[tuple[str, float, float | None]]:
    cells = line.split("|")
    if len(cells) != len(_SACCT_COLUMNS):
        raise InputError(f"{where}: has {len(cells)} values; expected {len(_SACCT_COLUMNS)}")
    _, start, end, _, nodes = cells
    if nodes in _NO_NODES or start in ("Unknown", "None"):
        return
    start_s = _time_s(where, "Start", start)
    end_s = None if end == "Unknown" else _time_s(where, "End", end)
    for name in tables.located(where, lambda: expand_hosts(nodes)):
        yield name, start_s, end_s


def _time_s(where: str, column: str, text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        expected = "expected a time such as 2026-01-31T12:00:00, or Unknown"
        raise InputError(f"{where}, column {column}: {abbreviated(text)}; {expected}") from None


_PART = r"(?:[^,\[\]]|\[[^\[\]]*\])+"
"""A name, or several that differ in what is in brackets."""
_RANGE = re.compile(r"(\d{1,99})(?:-(\d{1,99}))?")
_MOST = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """Return the host names that a host list stands for, in its order.

    Raises
    ------
    InputError
        Brackets that do not match, a range that is none, or more than a million hosts.
    """
    if text and not re.fullmatch(f"{_PART}(?:,{_PART})*", text):
        raise _refused(text)
    hosts: list[str] = []
    for part in re.findall(_PART, text):
        choices = [[piece] for piece in re.split(r"\[([^\[\]]*)\]", part)]
        for place in range(1, len(choices), 2):  # those that were in brackets
            choices[place] = list(islice(_numbers(choices[place][0], text), _MOST + 1))
        hosts += islice(map("".join, product(*choices)), _MOST + 1)
        if len(hosts) > _MOST:
            raise _refused(text)
    return hosts


def _numbers(ranges: str, text: str) -> Iterator[str]:
    """Yield the numbers that are in brackets, with as many digits as the first of their range."""
    for piece in ranges.split(","):
        found = _RANGE.fullmatch(piece)
        if found is None or not 0 <= int(found[2] or found[1]) - int(found[1]) <= _MOST:
            raise _refused(text)
        for number in range(int(found[1]), int(found[2] or found[1]) + 1):
            yield f"{number:0{len(found[1])}}"


def _refused(text: str) -> InputError:
    return InputError(f"host list {abbreviated(text)}: expected names such as nid[0001-0003,0007],login1")
