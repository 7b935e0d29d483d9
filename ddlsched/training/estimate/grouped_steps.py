"""A training step as a graph whose tensor, context, expert, pipeline and data traffic are collectives over groups.

The schedule is that of the estimate: 1F1B, plain or interleaved, each stage its blocks. What a chunk's layers send in
one pass of a micro-batch is one collective of each kind. Computation that the estimate hides it behind runs beside it,
the rest before it, so that a pass alone on the estimate's network takes the estimate's time. The simulator then finds
what the closed form assumes: bubbles, what waits for sends, and what contention adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate.collectives import Kind, collective_s, sent_by
from ddlsched.training.estimate.energy_costs import Costs, PassTimes, copies_sent
from ddlsched.training.estimate.layers import GroupName, Layer, LayerCollective, Layers
from ddlsched.training.estimate.memory import GRADIENT_BYTES, stage_parameters
from ddlsched.training.estimate.parallel_layout import Parallelism, stage_blocks
from ddlsched.training.estimate.step_estimate import Estimate, reduction_rounds
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag, Task

_MANY = 1 << 40

Direction: TypeAlias = Literal["forward", "backward"]


class Sent(NamedTuple):
    """What a stage sends: kind, first word of the group's name, and ``message_bytes`` of a task."""

    kind: str
    group: str
    message_bytes: float


class Pass(NamedTuple):
    """A pass of a micro-batch over a chunk: seconds of computation before its collectives and beside them, and these.

    ``whole_s`` is its time alone.
    """

    before_s: float
    beside_s: float
    sent: tuple[Sent, ...]
    whole_s: float


class Turn(NamedTuple):
    """What a stage does next: a pass of a micro-batch over one of its chunks."""

    direction: Direction
    chunk: int
    number: int


def worker_groups(plan: Parallelism) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the groups of each pipeline stage, ``"tensor 0"`` and so on, and the pairs between neighbouring stages.

    Workers are numbered tensor-parallel neighbours first, then context, then data, then pipeline. ``data`` are those
    over which ZeRO spreads, ``mirrors`` those that hold the same shard. Groups of one worker are left out.
    """
    tensor, context, copies, pipeline, expert, shards = (
        int(n) for n in (plan.tensor, plan.context, plan.copies, plan.pipeline, plan.expert, plan.spread_over)
    )
    inner = 1 if plan.own_experts else tensor
    numbers = np.arange(tensor * copies * pipeline).reshape(pipeline, -1)
    groups: dict[str, np.ndarray] = {}
    for stage, own in enumerate(numbers):
        groups[f"stage {stage}"] = own.reshape(1, -1)
        groups[f"tensor {stage}"] = own.reshape(-1, tensor)
        groups[f"context {stage}"] = _strided(own, context, tensor)
        groups[f"data {stage}"] = _strided(own, shards, tensor)
        groups[f"mirrors {stage}"] = _strided(own, copies // shards, shards * tensor)
        groups[f"expert {stage}"] = _strided(own, expert, inner)
        groups[f"replicas {stage}"] = _strided(own, own.size // (expert * inner), expert * inner)
    # With several chunks the last stage sends on to the first.
    for stage in range(pipeline if int(plan.interleave) > 1 else pipeline - 1):
        following = (stage + 1) % pipeline
        ends = np.stack([numbers[stage], numbers[following]], axis=1)
        groups[f"on {stage}"], groups[f"back {following}"] = ends, ends[:, ::-1]
    return {
        name: tuple(map(tuple, tuples.tolist()))
        for name, tuples in groups.items()
        if tuples.shape[1] > 1 or name.startswith("stage")
    }


def _strided(workers: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Return groups of so many workers that lie a stride apart, a row each."""
    return workers.reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)


def grouped_step(found: Estimate, layers: Layers, costs: Costs) -> IterationDag:
    """Return the tasks of a step.

    Parameters
    ----------
    found
        The estimate, for its optimiser, memory expansion and exposed reduction of gradients.
    layers, costs
        What it was made of.

    Raises
    ------
    InputError
        The model has no blocks to deal out to stages, or weight gradients are to fill bubbles.
    """
    if not layers.block:
        raise InputError("a step with groups: the model has no blocks to deal out to stages; expected an LLM")
    if costs.parallelism.zero_bubble:
        raise InputError("a step with groups: zero_bubble is set; expected 1F1B, plain or interleaved")
    return _Step(found, layers, costs).dag()


@dataclass
class _Step:
    found: Estimate
    layers: Layers
    costs: Costs
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = self.costs.parallelism
        self.stages, self.chunks = int(self.plan.pipeline), int(self.plan.interleave)
        self.passes = int(self.plan.micro_batches)
        self.hiding = int(self.plan.overlapped_passes) * self.chunks
        self.groups = worker_groups(self.plan)
        kept = self.layers.block[0].activation_bytes * self.plan.norm_shards / self.plan.tensor
        self.activation_bytes = float(kept)
        self.pass_of = cache(self._pass_of)

    def dag(self) -> IterationDag:
        """Return the graph, stage by stage."""
        for stage in range(self.stages):
            self._add_stage(stage)
        used = {task.group for task in self.tasks}
        return IterationDag(tuple(self.tasks), {name: group for name, group in self.groups.items() if name in used})

    def _add_stage(self, stage: int) -> None:
        before: tuple[str, ...] = ()
        reduced: tuple[str, ...] = ()
        left = self.passes * self.chunks
        for turn in _turns(self.stages, stage, self.passes, self.chunks):
            if turn.direction == "backward":
                if left <= self.hiding:
                    reduced = self._add_reductions(stage, f" {left}" if self.hiding > 1 else "", (*before, *reduced))
                left -= 1
            else:
                before = (*before, *reduced)  # gradients hide behind backward only
            before = self._add_pass(stage, turn, before)
        reduced = reduced or self._add_reductions(stage, "", before)
        end_s = float(self.found.optimiser_s + self.found.offload_s) + self._unhidden_s
        self._compute(stage, f"optimiser {stage}", end_s, tuple(dict.fromkeys((*before, *reduced))))

    def _add_pass(self, stage: int, turn: Turn, before: tuple[str, ...]) -> tuple[str, ...]:
        """Add one pass of a micro-batch, and return what the next on the stage waits for."""
        direction, place = turn.direction, turn.chunk * self.stages + stage
        step = 1 if direction == "forward" else -1
        name = f"{direction} {place}.{turn.number}"
        of_pass = self.pass_of(direction, place == 0, place == self.stages * self.chunks - 1)
        source, target = place - step, place + step
        received = (_send_name(direction, source, turn.number),) if self._is_place(source) else ()
        self._compute(stage, name, of_pass.before_s, (*before, *received))
        ended: tuple[str, ...] = (name,)
        for sent in of_pass.sent:
            ended = (self._collective(stage, f"{sent.kind} {sent.group} {name}", sent, ended),)
        if of_pass.beside_s:
            beside = name.replace("backward", "weights").replace("forward", "beside")
            self._compute(stage, beside, of_pass.beside_s, (name,))
            ended = (*ended, beside)
        if self._is_place(target):
            sent = Sent("send", "on" if direction == "forward" else "back", self.activation_bytes)
            self._collective(stage, _send_name(direction, place, turn.number), sent, ended)
        return ended

    def _is_place(self, place: int) -> bool:
        return 0 <= place < self.stages * self.chunks

    def _add_reductions(self, stage: int, name: str, after: tuple[str, ...]) -> tuple[str, ...]:
        """Add a part of what reduces the gradients, and return what waits for it."""
        return tuple(
            self._collective(stage, f"all-reduce {sent.group} {stage}{name}", sent, after) for sent in self._reductions
        )

    @cached_property
    def _reductions(self) -> list[Sent]:
        """What reduces the gradients, behind each pass that hides it."""
        copied, own = (GRADIENT_BYTES * float(part) for part in stage_parameters(self.layers, self.plan))
        rounds = float(reduction_rounds(self.plan))
        all_bytes = {
            "data": rounds * copied,
            "replicas": rounds * own,
            "mirrors": copied / float(self.plan.spread_over),
        }
        return [
            Sent("all-reduce", group, message_bytes / max(1, self.hiding))
            for group, message_bytes in all_bytes.items()
            if message_bytes and f"{group} 0" in self.groups
        ]

    @cached_property
    def _unhidden_s(self) -> float:
        """Return what the estimate adds for the reduction of gradients, beyond bytes that nothing hides."""
        groups: dict[str, GroupName] = {"data": "shards", "replicas": "replicas", "mirrors": "mirrors"}
        each_s = sum(self._wire_s("all-reduce", sent.message_bytes, groups[sent.group]) for sent in self._reductions)
        wire_s = each_s * max(1, self.hiding)
        last_s = sum(self.pass_of("backward", chunk == 0, self.stages == 1).whole_s for chunk in range(self.chunks))
        return max(0.0, float(self.found.data_s) - max(0.0, wire_s - float(self.plan.overlapped_passes) * last_s))

    def _compute(self, stage: int, name: str, seconds: float, after: tuple[str, ...]) -> None:
        self.tasks.append(ComputeTask(name=name, duration_ns=ns_from_s(seconds), group=f"stage {stage}", after=after))

    def _collective(self, stage: int, name: str, sent: Sent, after: tuple[str, ...]) -> str:
        task = CollectiveTask(
            name=name,
            kind=sent.kind,
            message_bytes=sent.message_bytes,
            group=f"{sent.group} {stage}",
            algorithm="ring" if sent.kind == "send" else sent_by(sent.kind, self.costs.algorithm),
            after=after,
        )
        self.tasks.append(task)
        return name

    def _parts(self, is_first: bool, is_last: bool) -> Iterator[tuple[Iterable[Layer], float, bool]]:
        """Yield the layers of a chunk, how often they occur, and whether they may be recomputed."""
        end, middle = (float(count) for count in stage_blocks(self.layers.num_blocks, self.plan))
        blocks = middle / self.chunks - (middle - end) * max(is_first, is_last)
        yield self.layers.block, blocks, True
        if is_first:
            yield self.layers.first, 1.0, False
        if is_last:
            yield self.layers.last, 1.0, False

    def _pass_of(self, direction: Direction, is_first: bool, is_last: bool) -> Pass:
        total: dict[str, float] = defaultdict(float)
        weights_s = 0.0
        sent: dict[tuple[Kind, GroupName], float] = defaultdict(float)
        for layers, count, recomputed in self._parts(is_first, is_last):
            for name, seconds in vars(self.costs.part(layers, recomputed=recomputed)).items():
                total[name] += count * float(seconds)
            for layer in layers:
                if direction == "backward" and layer.backward_collectives:
                    weights_s += count * float(self.costs.computing_s(layer.weight_gradient))
                for one in self._collectives(layer, direction, recomputed):
                    sent[one.kind, one.group] += count * float(one.message_bytes) * self._reached(one)
        wire_s = sum(self._wire_s(kind, message_bytes, group) for (kind, group), message_bytes in sent.items())
        own_s, exposed_s = _own_and_exposed_s(PassTimes(**total), direction)
        beside_s = min(own_s, max(weights_s, wire_s - exposed_s)) if sent else 0.0
        before_s = max(0.0, own_s + exposed_s - max(wire_s, beside_s))
        all_sent = tuple(Sent(*pair, message_bytes * self._members(*pair)) for pair, message_bytes in sent.items())
        return Pass(before_s, beside_s, all_sent, own_s + exposed_s)

    def _collectives(self, layer: Layer, direction: Direction, recomputed: bool) -> Sequence[LayerCollective]:
        """Return what a layer sends in one pass, what is computed again included."""
        sent = layer.forward_collectives if direction == "forward" else layer.backward_collectives
        if recomputed and direction == "backward" and bool(self.costs.again(layer) > 0):
            sent += layer.forward_collectives
        return [one for one in sent if f"{one.group} 0" in self.groups and np.any(one.message_bytes)]

    def _members(self, kind: Kind, group: GroupName) -> int:
        """Return by how much a task's message is larger: it counts what every worker has after an all-gather."""
        return len(self.groups[f"{group} 0"][0]) if kind == "all-gather" else 1

    def _reached(self, one: LayerCollective) -> float:
        """Return which part of an all-to-all's message crosses between nodes: a token goes to each of them once."""
        nodes = math.prod(float(span.size) for span in self.costs.groups[one.group][1:])
        return float(copies_sent(nodes, one.copies) / one.copies) if one.kind == "all-to-all" and nodes > 1 else 1.0

    def _wire_s(self, kind: Kind, message_bytes: float, group: GroupName) -> float:
        """Return the time of bytes alone, without steps and in ever so many parts, as the simulator has it."""
        spans = [span._replace(latency_s=0.0) for span in self.costs.groups[group]]
        return float(collective_s(kind, message_bytes, spans, algorithm=self.costs.algorithm, chunks=_MANY))


def _own_and_exposed_s(times: PassTimes, direction: Direction) -> tuple[float, float]:
    if direction == "forward":
        return float(times.forward_s), float(times.forward_exposed_s)
    return float(times.backward_s + times.again_s), float(times.backward_exposed_s + times.again_exposed_s)


def _send_name(direction: Direction, place: int, number: int) -> str:
    return f"send {'on' if direction == 'forward' else 'back'} {place}.{number}"


def _turns(stages: int, stage: int, passes: int, chunks: int) -> list[Turn]:
    """Return a stage's passes in the order of 1F1B: forwards until the pipeline is full, then one of each in turn.

    With several chunks micro-batches go round in rounds of as many as there are stages, chunk by chunk (Narayanan et
    al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021).
    """
    total = passes * chunks
    filling = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(filling, total)
    order = [_dealt(place, stages, chunks) for place in range(total)]
    forward = [Turn("forward", chunk, number) for chunk, number in order]
    backward = [Turn("backward", chunks - 1 - chunk, number) for chunk, number in order]
    pairs = [turn for pair in zip(forward[ahead:], backward, strict=False) for turn in pair]
    return [*forward[:ahead], *pairs, *backward[total - ahead :]]


def _dealt(place: int, stages: int, chunks: int) -> tuple[int, int]:
    """Return chunk and micro-batch of the n-th pass of a stage."""
    turn, inside = divmod(place, stages * chunks)
    chunk, number = divmod(inside, stages)
    return chunk, turn * stages + number
