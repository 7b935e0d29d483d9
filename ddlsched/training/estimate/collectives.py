"""Time of collectives on a hierarchy of networks, in closed form.

A group of GPUs is a sequence of :class:`Span`: how many of its members share each tier of the network, innermost first.
A collective is cut into chunks that are pipelined over the tiers: reduce-scatter on the inner tiers, all-reduce on
the outermost, all-gather back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ddlsched.errors import InputError
from ddlsched.network.collectives import ROUNDS
from ddlsched.plugins.names import names, resolve
from ddlsched.training.estimate import Amount

Kind: TypeAlias = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]

CHUNKS = 64
"""Equal parts of a message, as in the runs of COMET's author."""


class Span(NamedTuple):
    """The part of a group of GPUs that lies on one tier of the network.

    Parameters
    ----------
    size
        Members on this tier; 1 where the group does not extend over it.
    bytes_per_s
        Bandwidth of one GPU on this tier, one direction.
    latency_s
        Of one step between two members.
    carries_outer
        Whether what goes over tiers further out takes the same cables.
    """

    size: Amount
    bytes_per_s: Amount
    latency_s: Amount = 0.0
    carries_outer: bool = False


class _Stage(NamedTuple):
    tier: int
    seconds: Amount
    steps: Amount


def collective_s(
    kind: Kind, message_bytes: Amount, group: Sequence[Span], *, algorithm: str = "ring", chunks: int = CHUNKS
) -> Amount:
    """Return the time of a collective, seconds.

    Every tier is busy for the sum of its stages, and idle while the first chunk comes to it and after the last one
    has left it: T = max over tiers of (bytes / bandwidth + one chunk through the stages before its first and after
    its last), plus the latency of all steps once.

    Parameters
    ----------
    kind
        Of an all-gather, ``message_bytes`` is the shard that each GPU brings; of the others, each GPU's whole buffer.
    message_bytes
        Bytes, >= 0.
    group
        Innermost tier first.
    algorithm
        On each tier: name of a collective algorithm that has a closed form. Halving-doubling needs sizes that are
        powers of two.
    chunks
        Equal parts that are pipelined over the tiers.

    References
    ----------
    Kadiyala et al., "COMET", arXiv 2211.16648; Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
    Operations in MPICH", 2005, for the steps and bytes of each algorithm.
    """
    stages = _stages(kind, message_bytes, group, closed_form(algorithm))
    longest_s: Amount = 0.0
    for tier in range(len(group)):
        places = [place for place, stage in enumerate(stages) if stage.tier == tier]
        busy_s = sum(stages[place].seconds for place in places)
        if group[tier].carries_outer:
            outer_bytes = sum(each.seconds * group[each.tier].bytes_per_s for each in stages if each.tier > tier)
            busy_s = busy_s + outer_bytes / group[tier].bytes_per_s
        outside = [*stages[: places[0]], *stages[places[-1] + 1 :]]
        # A tier that moves nothing must not count as waiting for the others' chunks.
        idle_s = np.where(busy_s > 0, sum(stage.seconds for stage in outside) / chunks, 0.0)
        longest_s = np.maximum(longest_s, busy_s + idle_s)
    latency_s = sum(stage.steps * group[stage.tier].latency_s for stage in stages)
    return longest_s + latency_s


def _stages(kind: Kind, message_bytes: Amount, group: Sequence[Span], algorithm: Any) -> list[_Stage]:
    """Return what a chunk goes through, in order."""
    if kind == "all-to-all":
        return [_stage(kind, tier, message_bytes, span, algorithm) for tier, span in enumerate(group)]
    if kind == "all-gather":
        shards, shard = [], message_bytes
        for tier in reversed(range(len(group))):
            shards.append(_stage(kind, tier, shard * group[tier].size, group[tier], algorithm))
            shard = shard * group[tier].size
        return shards
    inward, part = [], message_bytes
    for tier, span in enumerate(group):
        outermost = kind == "all-reduce" and tier == len(group) - 1
        inward.append(_stage("all-reduce" if outermost else "reduce-scatter", tier, part, span, algorithm))
        part = part / span.size
    return inward if kind == "reduce-scatter" else [*inward, *reversed(inward[:-1])]


def _stage(kind: Kind, tier: int, buffer_bytes: Amount, span: Span, algorithm: Any) -> _Stage:
    rounds, (moved, steps) = ROUNDS.get(kind, 1), algorithm.round_on(kind, span.size)
    return _Stage(tier, rounds * moved * buffer_bytes / span.bytes_per_s, rounds * steps)


@lru_cache
def closed_form(algorithm: str) -> Any:
    """Return the collective algorithm that a text names, which knows its bytes and steps for any number of ranks.

    Raises
    ------
    InputError
        There is none of that name, or it has no ``round_on``, or not all of the kinds of a step.
    """
    found = resolve("collective", algorithm)
    lacks = ", ".join(kind for kind in ROUNDS if kind not in found.kinds)
    if lacks or not hasattr(found, "round_on"):
        lacks = lacks or "round_on: bytes and steps that are the same for any size of message"
        known = ", ".join(name for name in names("collective") if hasattr(resolve("collective", name), "round_on"))
        raise InputError(f"collective {algorithm}: an estimate needs its {lacks}; expected one of {known}")
    return found


def split_group(sizes: Sequence[Amount], tiers: Sequence[Amount]) -> list[list[Amount]]:
    """Return how many members of each nested group lie on each tier; both are innermost first.

    Each group takes what is left of the innermost tiers, as far as it divides them: model parallelism over 128 GPUs on
    tiers of [16, 64] becomes 16 x 8, and the 8 data-parallel groups get the remaining 8 of the outer tier. What divides
    no tier goes to the outermost.

    Parameters
    ----------
    sizes
        Of the groups: tensor, then data, then pipeline parallelism. Whole numbers.
    tiers
        Members of each tier. Whole numbers.

    Returns
    -------
    list
        A list a group, with an entry a tier.
    """
    free = [np.asarray(size) for size in tiers]
    result: list[list[Amount]] = []
    for size in sizes:
        left, parts = np.asarray(size), []
        for number, room in enumerate(free):
            part = np.gcd(left, room)
            left, free[number] = left // part, room // part
            parts.append(part)
        parts[-1] = parts[-1] * left
        result.append(parts)
    return result
