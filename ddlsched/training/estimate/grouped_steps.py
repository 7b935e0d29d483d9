"""A training step as a graph whose tensor, pipeline, data and expert traffic are collectives over groups of workers.

The schedule is that of the estimate: 1F1B, each stage its blocks. What a stage's layers send in one pass of a
micro-batch is one collective of each kind, behind the pass's computation; in backward it runs beside the weight
gradients. The simulator then finds what the closed form assumes: bubbles, and what hides behind what. Alone a job takes
up to 6 % less than the estimate, as the weight gradients of all a stage's layers together hide more than each its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate.energy_costs import Costs, PassTimes
from ddlsched.training.estimate.layers import Layer, LayerCollective, Layers
from ddlsched.training.estimate.memory import GRADIENT_BYTES, stage_parameters
from ddlsched.training.estimate.parallel_layout import Parallelism, stage_blocks
from ddlsched.training.estimate.step_estimate import Estimate, reduction_rounds
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag, Task

__all__ = ["grouped_step", "worker_groups"]

Direction: TypeAlias = Literal["forward", "backward"]


class Sent(NamedTuple):
    """What a stage sends in one pass of a micro-batch: kind, name of the group, and ``message_bytes`` of a task."""

    kind: str
    group: str
    message_bytes: float


def worker_groups(plan: Parallelism) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the groups of each pipeline stage, ``"tensor 0"`` and so on, and the pairs between neighbouring stages.

    Workers are numbered tensor-parallel neighbours first, then data, then pipeline. Groups of one worker are left out.
    """
    tensor, data, pipeline, expert = (int(n) for n in (plan.tensor, plan.data, plan.pipeline, plan.expert))
    numbers = np.arange(tensor * data * pipeline).reshape(pipeline, data // expert, expert, tensor)
    groups: dict[str, np.ndarray] = {}
    for stage, own in enumerate(numbers):
        flat = own.reshape(data, tensor)
        groups[f"stage {stage}"] = own.reshape(1, -1)
        groups[f"tensor {stage}"] = flat
        groups[f"data {stage}"] = flat.T
        groups[f"expert {stage}"] = own.swapaxes(1, 2).reshape(-1, expert)
        groups[f"replicas {stage}"] = own.transpose(1, 2, 0).reshape(-1, data // expert)
    for stage in range(pipeline - 1):
        ends = np.stack([numbers[stage].ravel(), numbers[stage + 1].ravel()], axis=1)
        groups[f"on {stage}"], groups[f"back {stage + 1}"] = ends, ends[:, ::-1]
    return {
        name: tuple(tuple(members) for members in tuples.tolist())
        for name, tuples in groups.items()
        if tuples.shape[1] > 1 or name.startswith("stage")
    }


def grouped_step(found: Estimate, layers: Layers, costs: Costs) -> IterationDag:
    """Return the tasks of a step.

    Parameters
    ----------
    found
        The estimate, for its optimiser and memory expansion.
    layers, costs
        What it was made of.

    Raises
    ------
    InputError
        The model has no blocks to deal out to stages, or stages hold several chunks.
    """
    plan = costs.parallelism
    if not layers.block:
        raise InputError("a step with groups: the model has no blocks to deal out to stages; expected an LLM")
    if int(plan.interleave) > 1:
        raise InputError(f"a step with groups: interleave is {plan.interleave}; expected 1, plain 1F1B")
    return _Step(found, layers, costs).dag()


@dataclass
class _Step:
    found: Estimate
    layers: Layers
    costs: Costs
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = self.costs.parallelism
        self.stages, self.passes = int(self.plan.pipeline), int(self.plan.micro_batches)
        self.groups = worker_groups(self.plan)
        kept = self.layers.block[0].activation_bytes * self.plan.norm_shards / self.plan.tensor
        self.activation_bytes = float(kept)

    def dag(self) -> IterationDag:
        """Return the graph, stage by stage."""
        for stage in range(self.stages):
            self._add_stage(stage)
        used = {task.group for task in self.tasks}
        return IterationDag(tuple(self.tasks), {name: group for name, group in self.groups.items() if name in used})

    def _add_stage(self, stage: int) -> None:
        before: tuple[str, ...] = ()
        overlapped = before
        for direction, number in _order(self.stages, stage, self.passes):
            overlapped = before
            before = self._add_pass(stage, direction, number, before)
        reduced = self._add_reductions(stage, (overlapped if bool(self.plan.overlap) else before) or before)
        end_s = float(self.found.optimiser_s + self.found.offload_s)
        self._compute(stage, f"optimiser {stage}", end_s, tuple(dict.fromkeys((*before, *reduced))))

    def _add_pass(self, stage: int, direction: Direction, number: int, before: tuple[str, ...]) -> tuple[str, ...]:
        """Add one pass of a micro-batch, and return what the next on the stage waits for."""
        name = f"{direction} {stage}.{number}"
        source = stage - 1 if direction == "forward" else stage + 1
        received = (_send_name(direction, source, number),) if 0 <= source < self.stages else ()
        self._compute(stage, name, self._pass_s(stage, direction), (*before, *received))
        last = name
        for sent in self._sent(stage, direction):
            last = self._collective(f"{sent.kind} {sent.group.split()[0]} {name}", sent, (last,))
        target = stage + 1 if direction == "forward" else stage - 1
        if 0 <= target < self.stages:
            group = f"on {stage}" if direction == "forward" else f"back {stage}"
            self._collective(_send_name(direction, stage, number), Sent("send", group, self.activation_bytes), (last,))
        if direction == "forward":
            return (last,)
        self._compute(stage, f"weights {stage}.{number}", self._weights_s(stage), (name,))
        return tuple(dict.fromkeys((last, f"weights {stage}.{number}")))

    def _add_reductions(self, stage: int, after: tuple[str, ...]) -> list[str]:
        copied, own = stage_parameters(self.layers, self.plan)
        rounds, names = float(reduction_rounds(self.plan)), []
        for group, parameters in (("data", copied), ("replicas", own)):
            message_bytes = rounds * GRADIENT_BYTES * float(parameters)
            if message_bytes and f"{group} {stage}" in self.groups:
                sent = Sent("all-reduce", f"{group} {stage}", message_bytes)
                names.append(self._collective(f"all-reduce {group} {stage}", sent, after))
        return names

    def _compute(self, stage: int, name: str, seconds: float, after: tuple[str, ...]) -> None:
        self.tasks.append(ComputeTask(name=name, duration_ns=ns_from_s(seconds), group=f"stage {stage}", after=after))

    def _collective(self, name: str, sent: Sent, after: tuple[str, ...]) -> str:
        task = CollectiveTask(
            name=name,
            kind=sent.kind,
            message_bytes=sent.message_bytes,
            group=sent.group,
            algorithm="ring" if sent.kind == "send" else "hierarchical",
            after=after,
        )
        self.tasks.append(task)
        return name

    def _parts(self, stage: int) -> Iterator[tuple[Iterable[Layer], float, bool]]:
        """Yield the layers of a stage, how often they occur, and whether they may be recomputed."""
        at_end, between = stage_blocks(self.layers.num_blocks, self.plan)
        yield self.layers.block, float(at_end if stage in (0, self.stages - 1) else between), True
        if stage == 0:
            yield self.layers.first, 1.0, False
        if stage == self.stages - 1:
            yield self.layers.last, 1.0, False

    def _times(self, stage: int) -> PassTimes:
        total: dict[str, float] = defaultdict(float)
        for layers, count, recomputed in self._parts(stage):
            for name, seconds in vars(self.costs.part(layers, recomputed=recomputed)).items():
                total[name] += count * float(seconds)
        return PassTimes(**total)

    def _pass_s(self, stage: int, direction: Direction) -> float:
        """Return for how long a pass computes, and waits for steps: the collective sends the bytes of many at once."""
        times = self._times(stage)
        own_s = times.forward_s if direction == "forward" else times.backward_s + times.again_s - self._weights_s(stage)
        waits_s = sum(count * self._latency_s(one) for count, one in self._collectives(stage, direction))
        return float(own_s) + waits_s

    def _latency_s(self, collective: LayerCollective) -> float:
        return float(self.costs.group_s(collective.kind, 0.0, collective.group))

    def _collectives(self, stage: int, direction: Direction) -> Iterator[tuple[float, LayerCollective]]:
        """Yield how often a stage's layers send what in one pass, what is computed again included."""
        for layers, count, recomputed in self._parts(stage):
            for layer in layers:
                sent = layer.forward_collectives if direction == "forward" else layer.backward_collectives
                if recomputed and direction == "backward" and self._is_again(layer):
                    sent += layer.forward_collectives
                for collective in sent:
                    if f"{collective.group} {stage}" in self.groups and np.any(collective.message_bytes):
                        yield count, collective

    def _weights_s(self, stage: int) -> float:
        """Return the time of the weight gradients of the layers that send meanwhile."""
        return sum(
            count * float(self.costs.computing_s(layer.weight_gradient))
            for layers, count, _ in self._parts(stage)
            for layer in layers
            if layer.backward_collectives
        )

    def _sent(self, stage: int, direction: Direction) -> list[Sent]:
        """Return what a stage sends in one pass: each kind in each group added up."""
        total: dict[tuple[str, str], float] = defaultdict(float)
        for count, (kind, message_bytes, group, _) in self._collectives(stage, direction):
            members = len(self.groups[f"{group} {stage}"][0])
            total[kind, f"{group} {stage}"] += count * float(message_bytes) * (members if kind == "all-gather" else 1)
        return [Sent(*pair, message_bytes) for pair, message_bytes in total.items()]

    def _is_again(self, layer: Layer) -> bool:
        return bool(self.costs.again(layer) > 0)


def _send_name(direction: Direction, stage: int, number: int) -> str:
    return f"send {'on' if direction == 'forward' else 'back'} {stage}.{number}"


def _order(stages: int, stage: int, passes: int) -> list[tuple[Direction, int]]:
    """Return a stage's passes in the order of 1F1B: forwards until the pipeline is full, then one of each in turn."""
    ahead = min(stages - stage - 1, passes)
    order: list[tuple[Direction, int]] = [("forward", number) for number in range(ahead)]
    for number in range(passes - ahead):
        order += [("forward", ahead + number), ("backward", number)]
    return order + [("backward", number) for number in range(passes - ahead, passes)]
