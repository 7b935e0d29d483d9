"""Time of collectives on a hierarchy of networks, in closed form.

A group of GPUs is a sequence of :class:`Span`: how many of its members share each tier of the network, innermost first.
A ring is one on each tier: a collective is cut into chunks that are pipelined over the tiers, reduce-scatter on the
inner ones, all-reduce on the outermost, all-gather back. Of other algorithms the busiest tier counts for what their
phases put on it, as in the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ddlsched.network.collectives import ROUNDS, Message, Rank, busiest
from ddlsched.network.contention import moved_by_ring
from ddlsched.network.traffic import collective_for, phases_of
from ddlsched.plugins.names import resolve
from ddlsched.training.estimate import Amount

Kind: TypeAlias = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]

CHUNKS = 64
"""Equal parts of a message, as in the runs of COMET's author."""


class Span(NamedTuple):
    """A tier of the network, or the part of a group of GPUs that lies on it.

    Parameters
    ----------
    size
        Members: GPUs of a node, nodes of a cluster; those of the group, 1 where it does not extend over this tier.
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

    On a ring every tier is busy for the sum of its stages, and idle while the first chunk comes to it and after the
    last one has left it: T = max over tiers of (bytes / bandwidth + one chunk through the stages before its first and
    after its last), plus the latency of all steps once. Of other algorithms nothing is idle.

    Parameters
    ----------
    kind
        Of an all-gather, ``message_bytes`` is the shard that each GPU brings; of the others, each GPU's whole buffer.
    message_bytes
        Bytes, >= 0.
    group
        Innermost tier first.
    algorithm
        Its name, as :func:`sent_by` has it.
    chunks
        Equal parts that are pipelined over the tiers.

    Raises
    ------
    InputError
        There is no algorithm of that name.

    References
    ----------
    Kadiyala et al., "COMET", arXiv 2211.16648; Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication
    Operations in MPICH", 2005, for the steps and bytes of each algorithm.
    """
    algorithm = sent_by(kind, algorithm)
    found = collective_for(kind, algorithm)
    if not hasattr(found, "round_on"):
        return _busiest_s(kind, message_bytes, group, algorithm)
    stages = _stages(kind, message_bytes, group, found)
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


@lru_cache
def sent_by(kind: str, algorithm: str) -> str:
    """Return the algorithm of a kind of collective in a step where all-reduces are to have this one.

    A ring is one on each tier; so are kinds that the algorithm has not, and all-to-alls go by rail.
    """
    own = algorithm != "ring" and kind != "all-to-all" and kind in resolve("collective", algorithm).kinds
    return algorithm if own else "hierarchical"


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


def _busiest_s(kind: Kind, message_bytes: Amount, group: Sequence[Span], algorithm: str) -> Amount:
    """Return the time by what the busiest tier carries, element by element."""
    messages, *sizes = np.broadcast_arrays(message_bytes, *(span.size for span in group))
    each = zip(messages.ravel().tolist(), *(size.ravel().tolist() for size in sizes), strict=True)
    found = np.array([_busiest(kind, algorithm, message, tuple(map(int, own))) for message, *own in each])
    sent_bytes, steps = np.moveaxis(found, 0, -1).reshape(2, len(group), *messages.shape)
    busy_s = [own / span.bytes_per_s for own, span in zip(sent_bytes, group, strict=True)]
    return np.max(busy_s, axis=0) + sum(count * span.latency_s for count, span in zip(steps, group, strict=True))


@lru_cache(maxsize=10_000)
def _busiest(kind: Kind, algorithm: str, message_bytes: float, sizes: tuple[int, ...]) -> tuple[list[float], list[int]]:
    """Return what members of a group that lies evenly on its tiers put on each, and in how many steps."""
    inside, *outside = sizes
    servers = list(accumulate(outside, mul, initial=1))
    ranks = [Rank(server, place, place) for server in range(servers[-1]) for place in range(inside)]
    total_bytes = message_bytes * (len(ranks) if kind == "all-gather" else 1)
    message = Message(total_bytes, lambda count: moved_by_ring(total_bytes, count))
    return busiest(phases_of(kind, algorithm, ranks, message, has_inside=True), servers[:-1])


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
