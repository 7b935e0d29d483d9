"""The nodes of a Chakra trace as a graph: checked, numbered by ascending id, dependencies as arrays."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ddlsched.errors import InputError
from ddlsched.units import MAX_NS
from ddlsched.workload.recorded.chakra_records import Node, read_nodes
from ddlsched.workload.recorded.process_groups import groups_of_text
from ddlsched.workload.recorded.rank_steps import EVERYBODY, Communication

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["NS_PER_US", "ChakraGraph", "rank_of_name", "read_graph"]

NS_PER_US: Final = 1000
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
    path, rank
        The file and the rank that its name tells.
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
    groups
        Ranks of the process groups that the trace defines.
    group_size
        Of the group of all ranks, None if the trace does not tell.
    notes
        What was left out, and how often.
    """

    path: Path
    rank: int | None
    node_ids: list[int]
    durations_ns: list[int]
    is_cpu: bytearray
    communications: dict[int, Communication]
    first: npt.NDArray[np.int64]
    successors: npt.NDArray[np.int32]
    waiting_for: npt.NDArray[np.int32]
    groups: dict[str, tuple[int, ...]]
    group_size: int | None
    notes: Counter[str]


def rank_of_name(path: Path) -> int | None:
    """Return the rank in a name such as ``prefix.3.et``."""
    found = re.search(r"\.(\d+)\.et(\.gz)?$", path.name)
    return int(found[1]) if found else None


def read_graph(path: Path) -> ChakraGraph:
    """Read the trace of a rank.

    Raises
    ------
    InputError
        With file, node and field: a node or collective of an unknown kind, a negative duration, a size that is missing,
        an id that occurs twice.
    """
    import numpy as np

    reading = _Reading(path)
    for node in read_nodes(path):
        reading.add(node)
    ids = np.frombuffer(reading.node_ids, dtype=np.uint64)
    order = np.argsort(ids, kind="stable")
    ascending = ids[order]
    twice = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(twice):
        raise InputError(f"{path}, node {ascending[twice[0]]}: its id occurs twice; expected an id a node")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    first, successors, waiting_for, dangling = _edges(ids, place, ascending, reading)
    if dangling:
        reading.notes["dependencies on nodes that are not in the file, dropped"] += dangling
    return ChakraGraph(
        path=path,
        rank=reading.rank,
        node_ids=ascending.tolist(),
        durations_ns=np.frombuffer(reading.durations_ns, dtype=np.int64)[order].tolist(),
        is_cpu=bytearray(np.frombuffer(bytes(reading.is_cpu), dtype=np.uint8)[order].tobytes()),
        communications={int(place[node]): each for node, each in reading.communications.items()},
        first=first,
        successors=successors,
        waiting_for=waiting_for,
        groups=reading.groups,
        group_size=reading.group_size,
        notes=reading.notes,
    )


def _edges(
    ids: npt.NDArray[np.uint64], place: npt.NDArray[np.int64], ascending: npt.NDArray[np.uint64], reading: _Reading
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Return successors by node (where each one's begin, and which), numbers of predecessors, dangling dependencies."""
    import numpy as np

    wanted = np.frombuffer(reading.dependencies, dtype=np.uint64)
    node = np.repeat(place, np.frombuffer(reading.counts, dtype=np.int64))
    before = np.minimum(np.searchsorted(ascending, wanted), len(ids) - 1)
    there = ascending[before] == wanted
    node, before = node[there].astype(np.int32), before[there].astype(np.int32)
    pairs = np.unique(before.astype(np.int64) << 32 | node)  # one that is there by control and by data counts once
    before, successors = (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32)
    first = np.searchsorted(before, np.arange(len(ids) + 1))
    waiting_for = np.bincount(successors, minlength=len(ids)).astype(np.int32)
    return first, successors, waiting_for, int(len(there) - there.sum())


class _Reading:
    """The nodes read so far, in the order of the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.rank = path, rank_of_name(path)
        self.node_ids, self.durations_ns = array("Q"), array("q")
        self.counts, self.dependencies = array("q"), array("Q")
        self.is_cpu = bytearray()
        self.communications: dict[int, Communication] = {}
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
            raise self._bad(node, "duration_micros", signed, "microseconds from 0")
        duration_ns = node.duration_us * NS_PER_US
        if kind in (_SEND, _RECEIVE, _COLLECTIVE):
            self.communications[len(self.node_ids)] = self._communication(node)
            duration_ns = 0  # which is for the network to say
        elif kind == _METADATA:
            duration_ns = 0
            self._take_groups(node)
        elif duration_ns == 0:
            self.notes["nodes of computation or memory that take 0 us"] += 1
        self.node_ids.append(node.node_id)
        self.durations_ns.append(duration_ns)
        self.is_cpu.append(bool(node.attributes.get("is_cpu_op", False)))
        self.counts.append(len(node.after))
        self.dependencies.extend(node.after)

    def _communication(self, node: Node) -> Communication:
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
        return Communication(kind, size, EVERYBODY if group == "0" else group)

    def _message(self, node: Node, size: int) -> Communication:
        """Return a send, which a receive stands for too; its group says from which rank to which."""
        if self.rank is None:
            raise InputError(f"{self.path}: sends or receives; expected its rank in its name, as in job.0.et")
        if size == 0:
            raise self._bad(node, "comm_size", 0, "the bytes of the message")
        peer = self._whole(node, "comm_dst" if node.kind == _SEND else "comm_src")
        ends = (self.rank, peer) if node.kind == _SEND else (peer, self.rank)
        if peer == self.rank:
            raise self._bad(node, "comm_dst" if node.kind == _SEND else "comm_src", peer, "another rank")
        tag = self._whole(node, "comm_tag") if "comm_tag" in node.attributes else 0
        return Communication("send", size, f"{ends[0]} to {ends[1]}" + (f" (tag {tag})" if tag else ""))

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
