"""Time of layers and groups of GPUs on a machine: what the schedules are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.collectives import Kind, Span, collective_s, split_group
from ddlsched.training.estimate.hardware import Machine, Precision, operations_s
from ddlsched.training.estimate.layers import GroupName, Layer, LayerCollective, Operation
from ddlsched.training.estimate.parallel_layout import Parallelism

Group = tuple[Span, ...]

_CROWD = 8


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """A part of a model, for one micro-batch on one GPU; seconds.

    ``forward_exposed_s`` and ``backward_exposed_s`` are the collectives during which nothing is computed;
    ``again_s`` and ``again_exposed_s`` are what recomputation adds; ``weight_s`` is the part of backward for weights.
    """

    forward_s: Amount = 0.0
    backward_s: Amount = 0.0
    forward_exposed_s: Amount = 0.0
    backward_exposed_s: Amount = 0.0
    again_s: Amount = 0.0
    again_exposed_s: Amount = 0.0
    weight_s: Amount = 0.0

    @property
    def compute_s(self) -> Amount:
        """All computation."""
        return self.forward_s + self.backward_s + self.again_s

    @property
    def exposed_s(self) -> Amount:
        """All communication that nothing hides."""
        return self.forward_exposed_s + self.backward_exposed_s + self.again_exposed_s

    @property
    def whole_s(self) -> Amount:
        """Computation and exposed communication."""
        return self.compute_s + self.exposed_s

    def plus(self, other: PassTimes, times: Amount = 1.0) -> PassTimes:
        """Return the times of this part and of another that occurs so often."""
        return PassTimes(**{name: own + times * getattr(other, name) for name, own in vars(self).items()})


def groups_of(parallelism: Parallelism, machine: Machine) -> dict[str, Group]:
    """Return the groups of each kind of parallelism on the machine's tiers.

    ``shards`` spread a copy, ``mirrors`` hold the same shard; ``replicas`` are data-parallel GPUs that hold the same
    experts; ``world`` is every GPU that trains.
    """
    expert = parallelism.expert
    copies, own = parallelism.copies, parallelism.own_experts
    tiers = [tier.size for tier in machine.tiers]
    tensor, data, pipeline = split_group([parallelism.tensor, copies, parallelism.pipeline], tiers)
    sharded = parallelism.spread_over
    _, shards, mirrors = split_group([parallelism.tensor, sharded, copies // sharded], tiers)
    context = split_group([parallelism.tensor, parallelism.context], tiers)[1]
    inner = np.where(own, 1, parallelism.tensor)
    _, experts, replicas = split_group([inner, expert, copies * parallelism.tensor // inner // expert], tiers)
    world = [a * b * c for a, b, c in zip(tensor, data, pipeline, strict=True)]
    named = {"tensor": tensor, "context": context, "data": data, "expert": experts, "replicas": replicas}
    named |= {"shards": shards, "mirrors": mirrors}
    return {
        name: tuple(tier._replace(size=size) for size, tier in zip(sizes, machine.tiers, strict=True))
        for name, sizes in (named | {"pipeline": pipeline, "world": world}).items()
    }


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times on one machine under one parallelism; each may hold arrays.

    Parameters
    ----------
    parallelism, machine
        Who computes what, and where.
    precision
        Of matrix products.
    algorithm
        Of collectives other than all-to-alls.
    memory_bytes_per_s
        In place of the GPU's own bandwidth.
    """

    parallelism: Parallelism
    machine: Machine
    precision: Precision = "half"
    algorithm: str = "ring"
    memory_bytes_per_s: Amount = None

    @cached_property
    def groups(self) -> dict[str, Group]:
        """The groups of :func:`groups_of`."""
        return groups_of(self.parallelism, self.machine)

    def computing_s(self, operations: Iterable[Operation]) -> Amount:
        """Return the time of operations one after the other."""
        gpu, bandwidth = self.machine.gpu, self.memory_bytes_per_s
        return sum(operations_s(one, gpu, precision=self.precision, bytes_per_s=bandwidth) for one in operations)

    def launched_s(self, operations: Sequence[Operation]) -> Amount:
        """Return the same, or the time to launch them if that is longer."""
        launches = sum(one.kernels for one in operations)
        return np.maximum(self.computing_s(operations), launches * self.machine.gpu.efficiency.launch_s)

    def collectives_s(self, collectives: Iterable[LayerCollective]) -> Amount:
        """Return the time of collectives one after the other; one of no bytes takes none."""
        total_s: Amount = 0.0
        for kind, message_bytes, group, copies in collectives:
            if np.any(message_bytes):
                seconds = self.group_s(kind, message_bytes, group, copies)
                total_s = total_s + np.where(np.asarray(message_bytes) > 0, seconds, 0.0)
        return total_s

    def group_s(self, kind: Kind, message_bytes: Amount, group: GroupName, copies: Amount = 1) -> Amount:
        """Return the time of one collective in a named group."""
        spans, efficiency = self.groups[group], self.machine.gpu.efficiency
        if kind == "all-to-all":
            spans = (*spans[:1], *(_scattered(one, efficiency.scattered, copies) for one in spans[1:]))
        seconds = collective_s(kind, message_bytes, spans, algorithm=self.algorithm)
        if group in ("tensor", "context", "expert"):
            leaves_node = self._members(group) > spans[0].size
            seconds = seconds * np.where(leaves_node, 1.0, efficiency.exposed)
        return seconds + np.where(self._members(group) > 1, efficiency.collective_s, 0.0)

    def _members(self, group: GroupName) -> Amount:
        return np.prod([np.asarray(span.size) for span in self.groups[group]], axis=0)

    def part(self, layers: Iterable[Layer], *, recomputed: bool = True) -> PassTimes:
        """Return the times of layers one after the other; ``recomputed`` if they are within what is checkpointed.

        A pass over them takes no less than its launches.
        """
        total, launches = PassTimes(), PassTimes()
        for layer in layers:
            total = total.plus(self._layer(layer, recomputed))
            launches = launches.plus(self._launches_s(layer, recomputed))
        if not np.any(self.machine.gpu.efficiency.launch_s):
            return total
        return dataclasses.replace(
            total,
            forward_s=np.maximum(total.forward_s, launches.forward_s - total.forward_exposed_s),
            backward_s=np.maximum(total.backward_s, launches.backward_s - total.backward_exposed_s),
            again_s=np.maximum(total.again_s, launches.again_s - total.again_exposed_s),
        )

    def _launches_s(self, layer: Layer, recomputed: bool) -> PassTimes:
        """Return the time of a layer's launches, its collectives' included."""
        efficiency = self.machine.gpu.efficiency
        crowded = np.asarray(self.parallelism.tensor) >= _CROWD
        launch_s = efficiency.launch_s * np.where(crowded, efficiency.crowded, 1.0)
        backward = (*layer.input_gradient, *layer.weight_gradient)
        forward_s, backward_s = (
            launch_s * (sum(one.kernels for one in operations) + sum(map(self._is_sent, collectives)))
            for operations, collectives in (
                (layer.forward, layer.forward_collectives),
                (backward, layer.backward_collectives),
            )
        )
        return PassTimes(forward_s=forward_s, backward_s=backward_s, again_s=recomputed * forward_s * self.again(layer))

    def _is_sent(self, collective: LayerCollective) -> Amount:
        return (np.asarray(collective.message_bytes) > 0) & (self._members(collective.group) > 1)

    def again(self, layer: Layer) -> Amount:
        """Return the share of a layer of a block that backward computes again."""
        kind, moves = np.asarray(self.parallelism.recompute), not np.any(layer.output_bytes)
        share = np.where(kind == "full", 1.0, np.where(kind == "alternate", layer.alternate, 0.0))
        whole = ((kind == "selective") & (layer.role == "attention")) | ((kind == "elementwise") & moves)
        return np.where(whole, 1.0, share)

    def _layer(self, layer: Layer, recomputed: bool) -> PassTimes:
        forward_s, input_s, weight_s = map(
            self.computing_s, (layer.forward, layer.input_gradient, layer.weight_gradient)
        )
        sent_s = self.collectives_s(layer.forward_collectives)
        returned_s = self.collectives_s(layer.backward_collectives)
        plan, attends = self.parallelism, layer.role == "attention"
        if plan.ring_attention if attends else plan.asynchronous:
            parts = plan.context if attends else plan.tensor
            sent_s, returned_s = _behind(sent_s, forward_s, parts), _behind(returned_s, input_s, parts)
        again = recomputed * self.again(layer)
        return PassTimes(
            forward_s=forward_s,
            backward_s=input_s + weight_s,
            weight_s=weight_s,
            forward_exposed_s=sent_s,
            # The weight gradient is computed while the input gradient is reduced.
            backward_exposed_s=np.maximum(0.0, returned_s - weight_s),
            again_s=forward_s * again,
            again_exposed_s=sent_s * again,
        )


def _behind(sent_s: Amount, computing_s: Amount, parts: Amount) -> Amount:
    """Return what is exposed of a collective that is cut into parts, each behind a part of what is computed."""
    return sent_s - np.minimum(sent_s, computing_s) * (1 - 1 / np.asarray(parts))


def _scattered(span: Span, share: Amount, copies: Amount) -> Span:
    """Return a tier between nodes as an all-to-all finds it, for which each token crosses once to each node."""
    return span._replace(bytes_per_s=span.bytes_per_s * share * copies / copies_sent(span.size, copies))


def copies_sent(nodes: Amount, copies: Amount) -> Amount:
    """Return to how many nodes a token goes, on average, that goes to so many members anywhere."""
    nodes = np.asarray(nodes)
    return nodes * (1 - (1 - 1 / nodes) ** copies)
