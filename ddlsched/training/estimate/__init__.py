"""Training time from first principles: a model, a parallelism and a cluster in, the time of a step out.

It knows no scheduling: :mod:`~.estimated_jobs` hands its estimates to the simulator as ordinary jobs.

Everything here works element by element: wherever a quantity is an :data:`Amount`, a number gives one estimate and
numpy arrays give one estimate an entry. A sweep is the same code as a single estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Amount: TypeAlias = Any
"""A number, or a numpy array of numbers with an entry a configuration; arithmetic broadcasts."""

Recompute: TypeAlias = Literal["none", "selective", "elementwise", "alternate", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)


class Widths(NamedTuple):
    """Bytes of a number, where programs differ: of a logit (4: the loss works in place), a gradient, a weight sent.

    ``whole_inputs`` is whether products keep the input that sequence parallelism gathers for them (PyTorch's DTensor),
    or their part of it, to gather it again (Megatron). ``kept_logit`` is what the last pipeline stage keeps of each to
    the end of the step, for all micro-batches, and then joins to one tensor (PyTorch's ``merge_chunks``).
    """

    logit: Amount = 4
    gradient: Amount = 2
    gathered: Amount = 2
    whole_inputs: bool = False
    kept_logit: Amount = 0


_USUAL = Widths()


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Degrees of parallelism; GPUs are numbered tensor-parallel neighbours first, then data, then pipeline.

    Parameters
    ----------
    tensor
        Tensor-parallel GPUs.
    pipeline
        Pipeline stages.
    data
        Data-parallel GPUs.
    expert
        Of the data-parallel GPUs, those that share a set of experts.
    expert_skew
        Tokens of the busiest of these GPUs over the mean (1: balanced).
    expert_capacity
        How many times the mean an expert takes at most; further tokens are dropped; in Python 0 for all, and what is
        short of it is not padded.
    context
        GPUs that share each sequence; in Python a part of its tokens each (context parallelism); they hold the same
        weights.
    ring_attention
        Send keys and values round these behind attention; in Python over those that are there (Liu, Zaharia, Abbeel,
        "Ring Attention with Blockwise Transformers", ICLR 2024), in place of gathering them before it.
    micro_batch
        Samples of one pass; in Python a forward pass on one pipeline.
    global_batch
        Samples of a step.
    interleave
        Model chunks of each pipeline stage; in Python 1: plain 1F1B.
    zero
        ZeRO stage, 0 to 3; in Python 0: everything on every GPU. 1: optimiser states, 2: gradients too, 3: weights too,
        spread over the data-parallel GPUs.
    shards
        Of the data-parallel GPUs, those that ZeRO spreads over (HSDP); in Python, of the GPUs that hold the same
        weights; 0: all.
    recompute
        What backward computes again: none, selective, elementwise, alternate or full; in Python in place of keeping it:
        nothing; the attention's core (``selective``); all but products and attention (``elementwise``), or of products
        every second too (``alternate``, torchtitan's); or all layers (``full``). A name, or an array of names.
    offload
        Share of kept activations that waits in the host's memory; in Python of what the blocks keep for backward.
    zero_bubble
        Fill bubbles with weight gradients (ZB-H1); in Python of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
        2024.
    asynchronous
        Cut tensor parallelism's collectives up behind their products; in Python into as many parts as it has GPUs.
    sequence_parallel
        Split norms along the sequence; in Python and dropouts, over the tensor-parallel GPUs.
    overlap
        Reduce gradients behind the last backward; in Python while the last micro-batch's still runs; with ZeRO 2 and 3,
        which communicate for every micro-batch, behind each one's.
    balanced
        Whether stages were cut so that all take about as long, output layer and further predictions counted.
    own_experts
        Whether tensor-parallel GPUs hold experts of their own, whole, in place of a part of each expert.
    widths
        Bytes of logits, gradients and gathered weights.
    """

    tensor: Amount = 1
    pipeline: Amount = 1
    data: Amount = 1
    expert: Amount = 1
    expert_skew: Amount = 1.0
    expert_capacity: Amount = 0.0
    context: Amount = 1
    ring_attention: bool = False
    micro_batch: Amount = 1
    global_batch: Amount = 1
    interleave: Amount = 1
    zero: Amount = 0
    shards: Amount = 0
    recompute: Recompute | Any = "none"
    offload: Amount = 0.0
    zero_bubble: bool = False
    asynchronous: bool = False
    sequence_parallel: Amount = False
    overlap: Amount = False
    balanced: bool = False
    own_experts: bool = False
    widths: Widths = _USUAL
