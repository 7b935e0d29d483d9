"""The estimate: time, memory, energy and cost of a training step, from model, parallelism and machine.

The step of a model whose layers run one after the other, with each layer's own collectives (COMET's rules).

A forward collective blocks the next layer. Backward, a layer computes its input gradient, starts that one's
collective, computes its weight gradient meanwhile, starts that one's collective, and waits for the first. The second
is awaited only when the layer runs forward again, or at the end; those of all layers go over the network one after
the other. All-to-alls of embeddings do not block: they are awaited before the layer that needs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.energy_costs import Costs, PassTimes
from ddlsched.training.estimate.hardware import Machine, Precision
from ddlsched.training.estimate.layers import Layer, LayerCollective, Layers
from ddlsched.training.estimate.memory import (
    GRADIENT_BYTES,
    WEIGHT_BYTES,
    Memory,
    memory_per_gpu,
    offloaded_bytes,
    stage_parameters,
)
from ddlsched.training.estimate.models import Model, forward_flops_per_sample
from ddlsched.training.estimate.parallel_layout import Parallelism, refuse_broken, stage_blocks


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Times of one layer on one GPU, all in seconds.

    Parameters
    ----------
    name
        For tables.
    forward_s, input_gradient_s, weight_gradient_s
        Computation.
    forward_collective_s, input_gradient_collective_s, weight_gradient_collective_s
        Communication that follows each.
    awaited_before
        Name of the layer before which the forward collective must have ended; by default it blocks the next layer.
        Backward, its input-gradient collective starts after that layer and is awaited before this one.
    """

    name: str
    forward_s: Amount
    input_gradient_s: Amount
    weight_gradient_s: Amount
    forward_collective_s: Amount = 0.0
    input_gradient_collective_s: Amount = 0.0
    weight_gradient_collective_s: Amount = 0.0
    awaited_before: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """A step, in seconds: computation by kind, and the communication during which nothing is computed."""

    forward_s: Amount
    backward_s: Amount
    exposed_forward_s: Amount
    exposed_input_gradient_s: Amount
    exposed_weight_gradient_s: Amount

    @property
    def step_s(self) -> Amount:
        """The whole step."""
        return self.compute_s + self.exposed_s

    @property
    def compute_s(self) -> Amount:
        """Computation."""
        return self.forward_s + self.backward_s

    @property
    def exposed_s(self) -> Amount:
        """Communication that nothing hides."""
        return self.exposed_forward_s + self.exposed_input_gradient_s + self.exposed_weight_gradient_s


def layerwise_step(layers: Sequence[LayerTimes]) -> StepTimes:
    """Return the time of a forward and backward pass over layers in forward order.

    Raises
    ------
    InputError
        A layer awaits one that does not come after it.
    """
    forward_s, exposed_forward_s = _forward(layers)
    exposed_input_s, exposed_weight_s = _backward(layers)
    return StepTimes(
        forward_s=forward_s,
        backward_s=sum(layer.input_gradient_s + layer.weight_gradient_s for layer in layers),
        exposed_forward_s=exposed_forward_s,
        exposed_input_gradient_s=exposed_input_s,
        exposed_weight_gradient_s=exposed_weight_s,
    )


def _forward(layers: Sequence[LayerTimes]) -> tuple[Amount, Amount]:
    """Return the computation of a pass and the communication that nothing hides."""
    now_s: Amount = 0.0
    exposed_s: Amount = 0.0
    pending: dict[str, Amount] = {}
    for layer in layers:
        wait_s = np.maximum(0.0, pending.pop(layer.name, now_s) - now_s)
        now_s += wait_s + layer.forward_s
        exposed_s += wait_s
        if layer.awaited_before is not None:
            end_s = now_s + layer.forward_collective_s
            pending[layer.awaited_before] = np.maximum(pending.get(layer.awaited_before, 0.0), end_s)
        else:
            now_s += layer.forward_collective_s
            exposed_s += layer.forward_collective_s
    if pending:
        raise InputError(f"a layer awaits {min(pending)!r}; expected the name of a layer that comes after it")
    return sum(layer.forward_s for layer in layers), exposed_s


def _backward(layers: Sequence[LayerTimes]) -> tuple[Amount, Amount]:
    """Return the exposed input-gradient and weight-gradient communication."""
    now_s: Amount = 0.0
    exposed_s: Amount = 0.0
    last_s: Amount = 0.0
    ended_s: dict[str, Amount] = {}
    for layer in reversed(layers):
        if layer.awaited_before is not None:
            # The gradient of what this layer sent comes back while the layers between are computed.
            wait_s = np.maximum(0.0, ended_s[layer.awaited_before] + layer.input_gradient_collective_s - now_s)
            now_s, exposed_s = now_s + wait_s, exposed_s + wait_s
        start_s = now_s + layer.input_gradient_s
        computed_s = start_s + layer.weight_gradient_s
        last_s = np.maximum(last_s, computed_s) + layer.weight_gradient_collective_s
        blocking_s = 0.0 if layer.awaited_before is not None else layer.input_gradient_collective_s
        now_s = np.maximum(computed_s, start_s + blocking_s)
        exposed_s += now_s - computed_s
        ended_s[layer.name] = now_s
    return exposed_s, np.maximum(0.0, last_s - now_s)


OPTIMISER_TRAFFIC_BYTES = 2 * 12 + 2 * GRADIENT_BYTES + WEIGHT_BYTES
"""Of a parameter in Adam: its states in and out, its gradient read twice (norm, update), its weight written."""


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """What a schedule of the passes takes, seconds."""

    compute_s: Amount
    tensor_s: Amount
    pipeline_s: Amount
    bubble_s: Amount
    data_s: Amount
    forward_s: Amount
    backward_s: Amount

    @property
    def passes_s(self) -> Amount:
        """All passes of a step, with what they wait for."""
        return self.compute_s + self.tensor_s + self.pipeline_s + self.bubble_s + self.data_s


@dataclass(frozen=True, kw_only=True)
class Estimate(_Schedule):
    """A training step.

    The parts of ``step_s`` in seconds: ``compute_s`` on the slowest pipeline stage, recomputation included;
    ``tensor_s`` exposed collectives of tensor and expert parallelism (of a model without blocks: those between layers);
    ``pipeline_s`` sends between stages; ``bubble_s`` stages waiting for the pipeline to fill and drain; ``data_s``
    exposed reduction of gradients and gathering of weights; ``optimiser_s``; ``offload_s`` what the memory expansion,
    slower than the GPU's own, or activations sent to the host, add.

    ``reduced_bytes`` is what each GPU brings to the all-reduces of a step (or what moves as much) among the replicas of
    its weights; ``reduced_expert_bytes`` among those of its experts.

    ``forward_s`` and ``backward_s`` are one GPU's passes over all its micro-batches, without bubble and gradients.
    """

    optimiser_s: Amount
    offload_s: Amount
    memory: Memory
    missing_bytes: Amount
    reduced_bytes: Amount
    reduced_expert_bytes: Amount
    model_flops: Amount
    num_gpus: Amount
    peak_flops_per_s: Amount
    power_w: Amount
    price_per_hour: Amount

    @property
    def step_s(self) -> Amount:
        """The whole step."""
        return self.passes_s + self.optimiser_s + self.offload_s

    @property
    def mfu(self) -> Amount:
        """Model FLOPs utilisation: the model's operations, none of them recomputed, over the GPUs' peak."""
        return self.model_flops / (self.step_s * self.num_gpus * self.peak_flops_per_s)

    @property
    def fits(self) -> Amount:
        """Whether the memory is enough."""
        return self.missing_bytes <= 0

    @property
    def energy_j(self) -> Amount:
        """Energy of the step, all GPUs at full load throughout, with their share of the rest of the cluster."""
        return self.power_w * self.num_gpus * self.step_s

    @property
    def cost(self) -> Amount:
        """Cost of the step in US dollars, the GPUs rented by the hour."""
        return self.price_per_hour * self.num_gpus * self.step_s / 3600.0


def estimate_checked(model: Model, parallelism: Parallelism, machine: Machine, **options: Any) -> Estimate:
    """Return the estimate of one configuration.

    Raises
    ------
    InputError
        With the rule that the combination breaks.
    """
    refuse_broken([*parallelism.rules(machine.num_gpus), *model.rules(parallelism)])
    return estimate(model, parallelism, machine, **options)


def estimate(
    model: Model, parallelism: Parallelism, machine: Machine, *, precision: Precision = "half", algorithm: str = "ring"
) -> Estimate:
    """Return the estimate, element by element; combinations are not checked.

    Parameters
    ----------
    model, parallelism, machine
        Any numbers in them may be arrays.
    precision
        Of matrix products.
    algorithm
        Of collectives other than all-to-alls.
    """
    layers = model.layers(parallelism)
    memory = memory_per_gpu(layers, parallelism)
    costs = Costs(parallelism=parallelism, machine=machine, precision=precision, algorithm=algorithm)
    schedule, optimiser_s = _schedule(layers, costs), _optimiser_s(layers, parallelism, machine)
    rounds, gpu = reduction_rounds(parallelism), machine.gpu
    reduced_bytes, reduced_expert_bytes = (rounds * part for part in _gradient_bytes(layers, parallelism))
    return Estimate(
        **vars(schedule),
        optimiser_s=optimiser_s,
        offload_s=_offload_s(layers, costs, memory, schedule.passes_s, optimiser_s)
        + _to_host_s(layers, costs, schedule),
        memory=memory,
        missing_bytes=np.maximum(0.0, memory.total_bytes - _capacity_bytes(machine)),
        reduced_bytes=reduced_bytes,
        reduced_expert_bytes=reduced_expert_bytes,
        model_flops=3 * forward_flops_per_sample(model) * parallelism.global_batch,
        num_gpus=parallelism.num_gpus,
        peak_flops_per_s=gpu.peak(precision),
        power_w=(gpu.power_w + machine.overhead_w) * machine.power_usage_effectiveness,
        price_per_hour=gpu.price_per_hour,
    )


def _capacity_bytes(machine: Machine) -> Amount:
    beside = 0.0 if machine.expansion is None else machine.expansion.capacity_per_gpu
    return machine.gpu.memory_bytes + beside


def _offload_s(layers: Layers, costs: Costs, memory: Memory, passes_s: Amount, optimiser_s: Amount) -> Amount:
    """Return what the memory expansion adds to the passes and the optimiser.

    Every byte of the footprint is touched alike, so that bandwidth is a blend weighted by time.
    """
    machine = costs.machine
    if machine.expansion is None:
        return 0.0
    own = machine.gpu.memory_bytes_per_s
    spilled = np.maximum(0.0, 1.0 - machine.gpu.memory_bytes / memory.total_bytes)
    longer = (1 - spilled) + spilled * own / machine.expansion.bytes_per_s_per_gpu
    slowed_s = _schedule(layers, dataclasses.replace(costs, memory_bytes_per_s=own / longer)).passes_s
    return np.where(spilled > 0, slowed_s - passes_s + optimiser_s * (longer - 1), 0.0)


def _to_host_s(layers: Layers, costs: Costs, schedule: _Schedule) -> Amount:
    """Return the time to send activations to the host and back that computation does not hide."""
    plan = costs.parallelism
    if not np.any(plan.offload):
        return 0.0
    sent_bytes = offloaded_bytes(layers, plan) * plan.micro_batches
    return np.maximum(0.0, 2 * sent_bytes / costs.machine.gpu.host_bytes_per_s - schedule.compute_s)


def _schedule(layers: Layers, costs: Costs) -> _Schedule:
    """Return the 1F1B schedule over the blocks, or, of a model without any, its layers one after the other."""
    return _pipelined(layers, costs) if layers.block else _by_layer(layers, costs)


def _pipelined(layers: Layers, costs: Costs) -> _Schedule:
    """Return the time of 1F1B, plain or interleaved.

    A micro-batch goes through all stages; the others follow at the pace of the slowest. With t_i the time of stage i
    for both passes: m max(t_i) + (sum(t_i) - max(t_i)) / v.
    """
    plan = costs.parallelism
    block = costs.part(layers.block)
    first, last = costs.part(layers.first, recomputed=False), costs.part(layers.last, recomputed=False)
    staged = np.asarray(plan.pipeline) > 1
    ends = _choose(staged, _choose(first.whole_s > last.whole_s, first, last), first.plus(last))
    at_end, between = stage_blocks(layers.num_blocks, plan)
    slowest, inner = ends.plus(block, at_end), PassTimes().plus(block, between)
    slowest = _choose((np.asarray(plan.pipeline) > 2) & (inner.whole_s > slowest.whole_s), inner, slowest)
    if plan.balanced:
        total = first.plus(last).plus(block, layers.num_blocks)
        slowest = PassTimes().plus(total, 1 / np.asarray(plan.pipeline))
    send_s = np.where(staged, 2 * plan.interleave * _send_s(layers, costs), 0.0)
    longest_s = slowest.whole_s + send_s
    through_s = first.whole_s + last.whole_s + block.whole_s * layers.num_blocks + send_s * (plan.pipeline - 1)
    # With chunks of the model, a stage computes one while it sends another's.
    hidden = np.asarray(plan.overlap) & (np.asarray(plan.interleave) > 1)
    # ZB-H1: of 1F1B's (p - 1) (f + b + w), each w fills a bubble in place of being one.
    filled_s = 2 * (plan.pipeline - 1) * slowest.weight_s if plan.zero_bubble else 0.0
    count = plan.micro_batches
    backward_s = slowest.backward_s + slowest.again_s + slowest.backward_exposed_s + slowest.again_exposed_s
    return _Schedule(
        compute_s=count * slowest.compute_s,
        tensor_s=count * slowest.exposed_s,
        pipeline_s=count * np.where(hidden, 0.0, send_s),
        bubble_s=np.where(staged, np.maximum(0.0, through_s - longest_s + send_s - filled_s) / plan.interleave, 0.0),
        data_s=_data_s(layers, costs, backward_s),
        forward_s=count * (slowest.forward_s + slowest.forward_exposed_s),
        backward_s=count * backward_s,
    )


def _by_layer(layers: Layers, costs: Costs) -> _Schedule:
    """Return the time of layers one after the other; with overlap, gradients are reduced behind backward."""
    plan, rows = costs.parallelism, [*layers.first, *layers.last]
    reduced = [_layer_times(layer, costs) for layer in rows]
    quiet = layerwise_step([dataclasses.replace(layer, weight_gradient_collective_s=0.0) for layer in reduced])
    exposed_s = layerwise_step(reduced).step_s - quiet.step_s
    count = plan.micro_batches
    return _Schedule(
        compute_s=count * quiet.compute_s,
        tensor_s=count * quiet.exposed_s,
        pipeline_s=0.0,
        bubble_s=0.0,
        data_s=np.where(
            np.asarray(plan.overlap), exposed_s, sum(layer.weight_gradient_collective_s for layer in reduced)
        ),
        forward_s=count * (quiet.forward_s + quiet.exposed_forward_s),
        backward_s=count * (quiet.backward_s + quiet.exposed_input_gradient_s),
    )


def _layer_times(layer: Layer, costs: Costs) -> LayerTimes:
    gradient_bytes = GRADIENT_BYTES * (layer.parameters - layer.table_parameters)
    reduction = LayerCollective("all-reduce", gradient_bytes, "data")
    return LayerTimes(
        name=layer.name,
        forward_s=costs.launched_s(layer.forward),
        input_gradient_s=costs.launched_s(layer.input_gradient),
        weight_gradient_s=costs.launched_s(layer.weight_gradient),
        forward_collective_s=costs.collectives_s(layer.forward_collectives),
        input_gradient_collective_s=costs.collectives_s(layer.backward_collectives),
        weight_gradient_collective_s=costs.collectives_s((reduction,)),
        awaited_before=layer.awaited_before,
    )


def _choose(condition: Amount, one: PassTimes, other: PassTimes) -> PassTimes:
    return PassTimes(**{name: np.where(condition, getattr(one, name), getattr(other, name)) for name in vars(one)})


def _send_s(layers: Layers, costs: Costs) -> Amount:
    """Return the time to send a micro-batch's activations to the next stage, each tensor-parallel GPU its share."""
    kept = layers.block[0].activation_bytes * costs.parallelism.norm_shards / costs.parallelism.tensor
    seconds: Amount = 0.0
    for span in costs.groups["pipeline"]:
        # The boundary that crosses the outermost tier used is the slowest, and sets the pace.
        lost_s = span.latency_s + costs.machine.gpu.efficiency.collective_s
        seconds = np.where(np.asarray(span.size) > 1, kept / span.bytes_per_s + lost_s, seconds)
    return seconds


def _gradient_bytes(layers: Layers, parallelism: Parallelism) -> tuple[Amount, Amount]:
    copied, own = stage_parameters(layers, parallelism)
    return GRADIENT_BYTES * copied, GRADIENT_BYTES * own


def _data_s(layers: Layers, costs: Costs, backward_s: Amount) -> Amount:
    """Return the communication of data parallelism that backward, given for one micro-batch, does not hide.

    What is hidden takes a share of its time from the computation that it hides behind, which lasts longer and so hides
    more.
    """
    plan, efficiency = costs.parallelism, costs.machine.gpu.efficiency
    copied_bytes, expert_bytes = _gradient_bytes(layers, plan)
    reductions = (
        LayerCollective("all-reduce", copied_bytes, "shards"),
        LayerCollective("all-reduce", expert_bytes, "replicas"),
    )
    between = LayerCollective("all-reduce", copied_bytes / plan.spread_over, "mirrors")
    total_s = reduction_rounds(plan) * costs.collectives_s(reductions) + costs.collectives_s((between,))
    hidden_s = np.minimum(total_s, efficiency.slowed_s(plan.overlapped_passes * backward_s))
    return total_s - (1 - efficiency.taken) * hidden_s


def reduction_rounds(parallelism: Parallelism) -> Amount:
    """Return how many all-reduces of the gradients move as much as a step does.

    ZeRO 1 and 2 scatter gradients and gather weights, in all the bytes of an all-reduce; stage 2 scatters after every
    micro-batch; stage 3 also gathers the weights before each forward and each backward.
    """
    zero, count, widths = np.asarray(parallelism.zero), parallelism.micro_batches, parallelism.widths
    scatter, gather = (size / (2 * GRADIENT_BYTES) for size in (widths.gradient, widths.gathered))
    if_sharded = np.where(zero == 2, scatter * count + gather, (scatter + 2 * gather) * count)
    return np.where(zero >= 2, if_sharded, np.where(zero == 1, scatter + gather, 2 * scatter))


def _optimiser_s(layers: Layers, parallelism: Parallelism, machine: Machine) -> Amount:
    copied, own = stage_parameters(layers, parallelism)
    spread = np.asarray(parallelism.zero) >= 1
    updated = copied / np.where(spread, parallelism.spread_over, 1) + own / np.where(spread, parallelism.replicas, 1)
    return OPTIMISER_TRAFFIC_BYTES * updated / (machine.gpu.memory_bytes_per_s * machine.gpu.efficiency.memory)
