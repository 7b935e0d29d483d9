"""The step of a model whose layers run one after the other, with each layer's own collectives (COMET's rules).

A forward collective blocks the next layer. Backward, a layer computes its input gradient, starts that one's
collective, computes its weight gradient meanwhile, starts that one's collective, and waits for the first. The second
is awaited only when the layer runs forward again, or at the end; those of all layers go over the network one after
the other. All-to-alls of embeddings do not block: they are awaited before the layer that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.estimate import Amount


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

    forward_s: Amount = 0.0
    recompute_s: Amount = 0.0
    backward_s: Amount = 0.0
    exposed_forward_s: Amount = 0.0
    exposed_recompute_s: Amount = 0.0
    exposed_input_gradient_s: Amount = 0.0
    exposed_weight_gradient_s: Amount = 0.0

    @property
    def step_s(self) -> Amount:
        """The whole step."""
        return self.compute_s + self.exposed_s

    @property
    def compute_s(self) -> Amount:
        """Computation, recomputation included."""
        return self.forward_s + self.recompute_s + self.backward_s

    @property
    def exposed_s(self) -> Amount:
        """Communication that nothing hides."""
        forward_s = self.exposed_forward_s + self.exposed_recompute_s
        return forward_s + self.exposed_input_gradient_s + self.exposed_weight_gradient_s


def layerwise_step(layers: Sequence[LayerTimes], *, segments: Sequence[int] = ()) -> StepTimes:
    """Return the time of a forward and backward pass.

    Parameters
    ----------
    layers
        In forward order.
    segments
        Number of layers of each checkpointed segment, in order. Before a segment's backward its forward runs again,
        collectives included, but for its last layer. Empty: nothing is recomputed.

    Raises
    ------
    InputError
        The segments do not add up to the layers, or a layer awaits one that does not come after it.
    """
    if segments and sum(segments) != len(layers):
        raise InputError(f"segments hold {sum(segments)} layers; expected {len(layers)}, as many as there are")
    forward_s, exposed_forward_s = _forward(layers)
    recompute_s: Amount = 0.0
    exposed_recompute_s: Amount = 0.0
    for segment in _segments(layers, segments):
        again_s, exposed_s = _forward(segment[:-1])
        recompute_s, exposed_recompute_s = recompute_s + again_s, exposed_recompute_s + exposed_s
    exposed_input_s, exposed_weight_s = _backward(layers)
    return StepTimes(
        forward_s=forward_s,
        recompute_s=recompute_s,
        backward_s=sum(layer.input_gradient_s + layer.weight_gradient_s for layer in layers),
        exposed_forward_s=exposed_forward_s,
        exposed_recompute_s=exposed_recompute_s,
        exposed_input_gradient_s=exposed_input_s,
        exposed_weight_gradient_s=exposed_weight_s,
    )


def _segments(layers: Sequence[LayerTimes], sizes: Sequence[int]) -> list[Sequence[LayerTimes]]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [layers[end - size : end] for size, end in zip(sizes, ends, strict=True)]


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
