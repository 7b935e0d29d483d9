"""A rank's Chakra trace as a step: its nodes one after another, as a host and a GPU would run them.

Each runs one node at a time, of those that are ready the one with the smallest id, as ASTRA-sim does. Communications
take no time here: what is left is compute time, and the marks are where it meets them.

The nodes of a Chakra trace as a graph: checked, numbered by ascending id, dependencies as arrays.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddlsched.deferred import np
from ddlsched.errors import InputError
from ddlsched.training.recorded.chakra_records import Node, read_nodes
from ddlsched.training.recorded.collective_names import groups_of_text
from ddlsched.training.recorded.rank_steps import (
    EVERYBODY,
    Mark,
    MarkKind,
    RankCommunication,
    RankStep,
    RankTrace,
    message_group,
)
from ddlsched.units import MAX_NS

if TYPE_CHECKING:
    import numpy.typing as npt

NS_PER_US: Final = 1000
NO_TIME: Final = "nodes of computation or memory that take 0 us, kept"
_METADATA, _MEMORY_LOAD, _MEMORY_STORE, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = range(1, 8)
_KINDS: Final = {
    0: "all-reduce",
    2: "all-gather",
    5: "broadcast",
    6: "all-to-all",
    7: "reduce-scatter",
    8: "reduce-scatter",
    9: "barrier",
}
"""Of the numbers of ``CollectiveCommType``; REDUCE, GATHER and SCATTER have no task of their own."""


@dataclass(frozen=True, slots=True)
class ChakraGraph:
    """A rank's trace as a graph without dangling dependencies; nodes are numbered by ascending id.

    Parameters
    ----------
    path
        The file.
    node_ids, durations_ns
        An entry a node.
    is_cpu
        Whether a node runs on the host, an entry a node.
    communications
        By node.
    first, successors
        Those of node i are ``successors[first[i]:first[i + 1]]``.
    waiting_for
        How many predecessors a node has, an entry a node.
    notes
        What was left out, and how often.
    """

    path: Path
    node_ids: list[int]
    durations_ns: list[int]
    is_cpu: bytearray
    communications: dict[int, RankCommunication]
    first: npt.NDArray[np.int64]
    successors: npt.NDArray[np.int32]
    waiting_for: npt.NDArray[np.int32]
    notes: Counter[str]


def rank_of_name(path: Path) -> int | None:
    """Return the rank in a name such as ``prefix.3.et``."""
    found = re.search(r"\.(\d+)\.(?:et|json)(\.gz)?$", path.name)
    return int(found[1]) if found else None


class _Dependencies:
    """Ids of the nodes that each node waits for, in the order of the file."""

    def __init__(self) -> None:
        self._counts, self._ids = array("q"), array("Q")

    def add(self, ids: Sequence[int]) -> None:
        """Take those of the next node."""
        self._counts.append(len(ids))
        self._ids.extend(ids)

    def pairs(
        self, place: npt.NDArray[np.int64], ascending: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return a number for each pair (node, node that waits for it), and how many name no node of the file."""
        wanted = np.frombuffer(self._ids, dtype=np.uint64)
        node = np.repeat(place, np.frombuffer(self._counts, dtype=np.int64))
        before = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
        there = ascending[before] == wanted
        return before[there] << 32 | node[there], int(len(there) - there.sum())


def _edges(
    pairs: npt.NDArray[np.int64], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return successors by node (where each one's begin, and which) and numbers of predecessors."""
    pairs = np.unique(pairs)  # one that is there by control and by data counts once
    before, successors = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
    first = np.searchsorted(before, np.arange(count + 1))
    return first, successors, np.bincount(successors, minlength=count).astype(np.int32)


def _is_call_on_host(node: Node) -> bool:
    """Return whether a node is a host operator that launches a collective, which has a node of its own on the GPU.

    PyTorch's converter of 2024 gave both the type of a collective, but sizes to the GPU's alone.
    """
    told = {"comm_type", "comm_size"} & set(node.attributes)
    is_call = node.kind == _COLLECTIVE and node.name.startswith("c10d::")
    return is_call and bool(node.attributes.get("is_cpu_op")) and not told


class ChakraFile:
    """The nodes of a file, in its order."""

    def __init__(self, path: Path) -> None:
        self.path, self.rank = path, rank_of_name(path)
        self.node_ids, self.durations_ns = array("Q"), array("q")
        self.control, self.data = _Dependencies(), _Dependencies()
        self.is_cpu = bytearray()
        self.communications: dict[int, RankCommunication] = {}
        self.groups: dict[str, tuple[int, ...]] = {}
        self.group_size: int | None = None
        self.notes: Counter[str] = Counter()

    def add(self, node: Node) -> None:
        """Take a node.

        Raises
        ------
        InputError
            It is of an unknown kind, or a field of it cannot be used.
        """
        kind = node.kind
        if not _METADATA <= kind <= _COLLECTIVE:
            raise self._bad(node, "type", kind, "1 (metadata) to 7 (collective)")
        if node.duration_us > MAX_NS // NS_PER_US:
            signed = node.duration_us - (1 << 64) if node.duration_us >> 63 else node.duration_us
            raise self._bad(node, "duration_micros", signed, f"microseconds from 0 to {MAX_NS // NS_PER_US}")
        duration_ns = node.duration_us * NS_PER_US
        if _is_call_on_host(node):
            self.notes["host calls of collectives, whose own nodes tell their sizes, kept as host computation"] += 1
        elif kind in (_SEND, _RECEIVE, _COLLECTIVE):
            self.communications[len(self.node_ids)] = self._communication(node)
            duration_ns = 0  # which is for the network to say
        elif kind == _METADATA:
            duration_ns = 0
            self._take_groups(node)
        elif duration_ns == 0:
            self.notes[NO_TIME] += 1
        self.node_ids.append(node.node_id)
        self.durations_ns.append(duration_ns)
        self.is_cpu.append(bool(node.attributes.get("is_cpu_op", False)))
        self.control.add(node.control)
        self.data.add(node.data)

    def graph(self, *, with_control: bool) -> ChakraGraph:
        """Return the nodes as a graph, with dependencies of data, and of control if these are wanted.

        Raises
        ------
        InputError
            An id occurs twice.
        """
        ids = np.frombuffer(self.node_ids, dtype=np.uint64)
        order = np.argsort(ids, kind="stable")
        ascending = ids[order]
        twice = np.flatnonzero(ascending[1:] == ascending[:-1])
        if len(twice):
            raise InputError(f"{self.path}, node {ascending[twice[0]]}: its id occurs twice; expected an id a node")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        pairs, dangling = [], 0
        for dependencies in (self.data, self.control) if with_control else (self.data,):
            own, missing = dependencies.pairs(place, ascending)
            pairs.append(own)
            dangling += missing
        first, successors, waiting_for = _edges(np.concatenate(pairs), len(ids))
        notes = Counter(self.notes)
        if dangling:
            notes["dependencies on nodes that are not in the file, dropped"] += dangling
        return ChakraGraph(
            path=self.path,
            node_ids=ascending.tolist(),
            durations_ns=np.frombuffer(self.durations_ns, dtype=np.int64)[order].tolist(),
            is_cpu=bytearray(np.frombuffer(bytes(self.is_cpu), dtype=np.uint8)[order].tobytes()),
            communications={int(place[node]): each for node, each in self.communications.items()},
            first=first,
            successors=successors,
            waiting_for=waiting_for,
            notes=notes,
        )

    def _communication(self, node: Node) -> RankCommunication:
        size = self._whole(node, "comm_size")
        if node.kind != _COLLECTIVE:
            return self._message(node, size)
        number = self._whole(node, "comm_type")
        kind = _KINDS.get(number)
        if kind is None:
            known = ", ".join(f"{each} ({name})" for each, name in _KINDS.items())
            raise self._bad(node, "comm_type", number, f"one of {known}")
        if size == 0 and kind != "barrier":
            raise self._bad(node, "comm_size", 0, "the bytes of this rank's input")
        group = str(node.attributes.get("pg_name") or EVERYBODY)
        return RankCommunication(kind, size, EVERYBODY if group == "0" else group)

    def _message(self, node: Node, size: int) -> RankCommunication:
        """Return a send, which a receive stands for too; its group says from which rank to which."""
        if self.rank is None:
            raise InputError(f"{self.path}: sends or receives; expected its rank in its name, as in job.0.et")
        if size == 0:
            raise self._bad(node, "comm_size", 0, "the bytes of the message")
        kind, told = ("send", "comm_dst") if node.kind == _SEND else ("receive", "comm_src")
        peer = self._whole(node, told)
        if peer == self.rank:
            raise self._bad(node, told, peer, "another rank")
        tag = self._whole(node, "comm_tag") if "comm_tag" in node.attributes else 0
        group = message_group(kind, self.rank, peer) + (f" (tag {tag})" if tag else "")
        return RankCommunication("send", size, group)

    def _whole(self, node: Node, name: str) -> int:
        value: Any = node.attributes.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NS:
            raise self._bad(node, name, value, "a whole number from 0")
        return value

    def _take_groups(self, node: Node) -> None:
        if "process_group:init" not in node.name:
            return
        where = f"{self.path}, node {node.node_id} ({node.name!r}), field inputs"
        groups, size = groups_of_text(where, node.input_values)
        self.groups |= groups
        self.group_size = self.group_size or size

    def _bad(self, node: Node, name: str, value: object, expected: str) -> InputError:
        found = "is missing" if value is None else f"is {value}"
        return InputError(
            f"{self.path}, node {node.node_id} ({node.name!r}), field {name}: {found}; expected {expected}"
        )


def read_chakra(path: Path) -> RankTrace:
    """Read the trace of a rank; its iteration is all of the file.

    Raises
    ------
    InputError
        With file, node and field: a node or collective of an unknown kind, a negative duration, a size that is missing;
        its dependencies form a cycle, none of its computation takes time, or no node communicates.
    """
    file = ChakraFile(path)
    for node in read_nodes(path):
        file.add(node)
    walk = _Walk(file.graph(with_control=True))
    walk.run()
    if not walk.has_ended:
        # PyTorch's control dependencies are its call stack, which may contradict the order of execution.
        walk = _Walk(file.graph(with_control=False))
        walk.graph.notes["control dependencies contradict those of data: all of control left out"] += 1
        walk.run()
    step = walk.step()
    if step.compute_ns == 0 and walk.graph.notes[NO_TIME]:
        why = "no node takes time; expected duration_micros, which tells how long each computes"
        raise InputError(f"{path}, field duration_micros: {why}")
    nodes = len(walk.graph.node_ids)
    trace = RankTrace(str(path), file.rank, file.group_size, file.groups, {0: step}, nodes, notes=walk.graph.notes)
    trace.refuse_no_communication()
    return trace


class _Walk:
    """The nodes that have begun and ended so far."""

    def __init__(self, graph: ChakraGraph) -> None:
        self.graph = graph
        self.now_ns = 0
        self.marks: list[Mark] = []
        self.communications: list[RankCommunication] = []
        self._ready: tuple[list[int], list[int]] = ([], [])
        """Of the GPU, of the host."""
        self._waiting = graph.waiting_for.tolist()
        self._number_of: dict[int, int] = {}
        self._behind: dict[int, list[int]] = {}
        """The communications that a node waits for at once."""
        self._waited: dict[str, int] = {}
        """By group, the last communication that the rank has waited for."""
        self._ended = 0

    @property
    def has_ended(self) -> bool:
        """Whether all nodes have."""
        return self._ended == len(self.graph.node_ids)

    def step(self) -> RankStep:
        """Return what has run.

        Raises
        ------
        InputError
            Some nodes were never ready.
        """
        if not self.has_ended:
            self._refuse_cycle()
        return RankStep(self.now_ns, tuple(self.communications), tuple(self.marks))

    def run(self) -> None:
        """Run all nodes that ever are ready."""
        self._end(self._release([node for node, count in enumerate(self._waiting) if count == 0]))
        durations_ns = self.graph.durations_ns
        running: list[tuple[int, int]] = []
        while True:
            busy = {self.graph.is_cpu[node] for _, node in running}
            for place in (0, 1):
                if place not in busy and self._ready[place]:
                    node = heappop(self._ready[place])
                    self._wait(node)
                    heappush(running, (self.now_ns + durations_ns[node], node))
            if not running:
                break
            self.now_ns, node = heappop(running)
            self._end([node])

    def _end(self, ending: list[int]) -> None:
        """End nodes, and the communications that start by that, which take no time here."""
        first, successors = self.graph.first, self.graph.successors
        while ending:
            node = ending.pop()
            self._ended += 1
            number = self._number_of.get(node)
            ready = []
            for successor in successors[first[node] : first[node + 1]].tolist():
                if number is not None:
                    self._behind.setdefault(successor, []).append(number)
                self._waiting[successor] -= 1
                if self._waiting[successor] == 0:
                    ready.append(successor)
            ending += reversed(self._release(ready))

    def _release(self, nodes: list[int]) -> list[int]:
        """Start those of the nodes that communicate and return them; queue the others."""
        started = []
        for node in nodes:
            if node in self.graph.communications:
                self._start(node)
                started.append(node)
            else:
                heappush(self._ready[self.graph.is_cpu[node]], node)
        return started

    def _start(self, node: int) -> None:
        communication = self.graph.communications[node]
        number = len(self.communications)
        self._number_of[node] = number
        behind = (each for each in self._behind.pop(node, ()) if self._group(each) != communication.group)
        self.communications.append(replace(communication, after=tuple(sorted(behind))))
        self.marks.append(Mark(MarkKind.STARTS, number, self.now_ns))

    def _wait(self, node: int) -> None:
        """Mark what a node of computation waits for; the last of a group stands for those before it."""
        for number in sorted(self._behind.pop(node, ())):
            if number > self._waited.get(self._group(number), -1):
                self._waited[self._group(number)] = number
                self.marks.append(Mark(MarkKind.WAITS, number, self.now_ns))

    def _group(self, number: int) -> str:
        return self.communications[number].group

    def _refuse_cycle(self) -> None:
        graph = self.graph
        stuck = {node for node, count in enumerate(self._waiting) if count > 0}
        before: dict[int, int] = {}
        for node in stuck:
            for successor in graph.successors[graph.first[node] : graph.first[node + 1]].tolist():
                before[successor] = node
        node, seen = next(iter(before)), dict[int, None]()
        while node not in seen:
            seen[node] = None
            node = before[node]
        cycle = list(seen)[list(seen).index(node) :]
        shown = " after ".join(str(graph.node_ids[each]) for each in [*cycle[:6], node])
        raise InputError(f"{graph.path}, field data_deps: nodes wait for each other ({shown}); expected no cycle")
