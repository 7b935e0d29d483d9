"""Layers as the estimate sees them: operations with their work and traffic, parameters, activations, collectives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from ddlsched.training.estimate import Amount
from ddlsched.training.estimate.collectives import Kind

GroupName: TypeAlias = Literal["tensor", "context", "expert", "data", "shards", "mirrors", "replicas", "world"]
"""Which GPUs take part: those that share a layer's matrices, a sequence, its experts, its copies, of these those that
shard it together and those that hold the same shard, copies of its experts, or all."""

Work: TypeAlias = Literal["matrix", "attention", "experts", "output", "dispatch"]
"""Kinds of kernels whose speed is measured apart: products with weights, fused attention, products of experts, those of
the output layer, which stay in half precision, and sorting tokens by expert; what moves bytes has no flops."""

Role: TypeAlias = Literal["attention", "other"]
"""Selective recomputation runs the attention's scores, softmax and context again, and nothing else."""


class Operation(NamedTuple):
    """Work that one GPU does in ``kernels`` kernels of equal size.

    Parameters
    ----------
    flops
        Of matrix products, in all; 0 for what only moves bytes.
    traffic_bytes
        Read from and written to memory, in all.
    kernels
        How many are launched.
    odd
        How badly the columns of a product's matrix are aligned: 1 of an odd number, a third less for each factor of 2,
        0 of a multiple of 8 (16 bytes).
    work
        Which kind of kernel it is.
    rows
        Of products of experts: tokens of each expert; of attention: numbers of each head.
    """

    flops: Amount
    traffic_bytes: Amount
    kernels: Amount = 1
    odd: Amount = 0.0
    work: Work = "matrix"
    rows: Amount = 1.0


class LayerCollective(NamedTuple):
    """A collective that follows a layer; ``message_bytes`` as in :func:`~.collectives.collective_s`.

    Of an all-to-all, ``copies`` says to how many members each token goes; it crosses to a node once for all there.
    """

    kind: Kind
    message_bytes: Amount
    group: GroupName = "tensor"
    copies: Amount = 1


BothWays: TypeAlias = tuple[tuple[LayerCollective, ...], tuple[LayerCollective, ...]]
"""What follows a layer forward, and backward."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one GPU does and keeps for one layer and one micro-batch.

    Parameters
    ----------
    name
        Unique within a model's block.
    forward, input_gradient, weight_gradient
        The operations of each pass.
    parameters
        Held by this GPU and updated by it.
    expert_parameters
        Of these, those of experts, of which only some data-parallel GPUs hold copies.
    table_parameters
        Of these, those of embedding tables: no other GPU holds them, and only rows looked up are updated.
    activation_bytes
        Kept from forward to backward.
    forward_collectives, backward_collectives
        Run after each pass.
    role
        Whether selective recomputation runs it again.
    alternate
        Share of it that is computed again if every second product is.
    output_bytes
        Of products and attention: what they give, after a reduce-scatter.
    awaited_before
        Layer before which the forward collective must have ended; by default the next.
    """

    name: str
    forward: tuple[Operation, ...]
    input_gradient: tuple[Operation, ...] = ()
    weight_gradient: tuple[Operation, ...] = ()
    parameters: Amount = 0
    expert_parameters: Amount = 0
    table_parameters: Amount = 0
    activation_bytes: Amount = 0
    forward_collectives: tuple[LayerCollective, ...] = ()
    backward_collectives: tuple[LayerCollective, ...] = ()
    role: Role = "other"
    alternate: Amount = 1.0
    output_bytes: Amount = 0.0
    awaited_before: str | None = None

    def times(self, share: Amount) -> Layer:
        """Return the layer done ``share`` times: of blocks that differ, the mean of one block has a share of each."""

        def scaled(of: Any, *names: str) -> dict[str, Any]:
            return {name: getattr(of, name) * share for name in names}

        new = scaled(self, "parameters", "expert_parameters", "activation_bytes", "output_bytes")
        for name in ("forward", "input_gradient", "weight_gradient"):
            new[name] = tuple(
                one._replace(**scaled(one, "flops", "traffic_bytes", "kernels")) for one in getattr(self, name)
            )
        for name in ("forward_collectives", "backward_collectives"):
            new[name] = tuple(one._replace(**scaled(one, "message_bytes")) for one in getattr(self, name))
        return dataclasses.replace(self, **new)


class Layers(NamedTuple):
    """A model for one GPU: what comes before its equal blocks, one block, what comes after.

    ``num_blocks`` is how many blocks the whole model has; pipeline parallelism deals them out to its stages.
    """

    first: tuple[Layer, ...]
    block: tuple[Layer, ...]
    num_blocks: Amount
    last: tuple[Layer, ...]


def matrix_product(
    name: str,
    m: Amount,
    k: Amount,
    n: Amount,
    *,
    batch: Amount = 1,
    weights: bool = True,
    bias: Amount = 0,
    activation_bytes: Amount | None = None,
    collectives: BothWays = ((), ()),
    role: Role = "other",
    alternate: Amount = 0.5,
    output_shards: Amount = 1,
    odd: Amount = 0.0,
    work: Work = "matrix",
) -> Layer:
    """Return the layer Y (m x n) = X (m x k) W (k x n), ``batch`` times.

    Backward it computes the gradients of X and of W, two products of the same size. With ``weights`` false W is no
    parameter but an activation too (attention scores). ``bias`` adds parameters. X is kept for backward, unless
    ``activation_bytes`` says how much is. Of Y, a reduce-scatter leaves one of ``output_shards``.
    """
    traffic_bytes = 2 * batch * (m * k + k * n + m * n)
    product = Operation(2 * batch * m * k * n, traffic_bytes, odd=odd, work=work, rows=m)
    return Layer(
        name=name,
        forward=(product,),
        input_gradient=(product,),
        weight_gradient=(product,),
        parameters=batch * k * n + bias if weights else 0,
        activation_bytes=2 * batch * m * k if activation_bytes is None else activation_bytes,
        forward_collectives=collectives[0],
        backward_collectives=collectives[1],
        role=role,
        alternate=alternate,
        output_bytes=2 * batch * m * n / output_shards,
    )


def elementwise(
    name: str,
    elements: Amount,
    passes: tuple[float, float],
    *,
    kernels: int = 1,
    element_bytes: Amount = 2,
    parameters: Amount = 0,
    activation_bytes: Amount = 0,
    collectives: BothWays = ((), ()),
    role: Role = "other",
) -> Layer:
    """Return a layer that only moves bytes: norms, activations, softmax, dropout, lookups.

    ``passes`` is how often its ``elements`` are read or written, forward and backward.
    """
    forward, backward = (Operation(0.0, times * (element_bytes * elements), kernels) for times in passes)
    return Layer(
        name=name,
        forward=(forward,),
        input_gradient=(backward,),
        parameters=parameters,
        activation_bytes=activation_bytes,
        forward_collectives=collectives[0],
        backward_collectives=collectives[1],
        role=role,
    )
