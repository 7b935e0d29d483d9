"""A rank's Chakra trace as a step: its nodes one after another, as a host and a GPU would run them.

Each runs one node at a time, of those that are ready the one with the smallest id, as ASTRA-sim does. Communications
take no time here: what is left is compute time, and the marks are where it meets them.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.training.recorded.chakra_graph import NO_TIME, ChakraGraph, read_chakra_file
from ddlsched.training.recorded.rank_steps import Mark, MarkKind, RankCommunication, RankStep, RankTrace


def read_chakra(path: Path) -> RankTrace:
    """Read the trace of a rank; its iteration is all of the file.

    Raises
    ------
    InputError
        As :func:`~.chakra_graph.read_chakra_file`; its dependencies form a cycle, none of its computation takes
        time, or no node communicates.
    """
    file = read_chakra_file(path)
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
