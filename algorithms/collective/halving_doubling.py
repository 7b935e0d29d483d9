"""Halves, quarters, eighths of the message with partners ever nearer, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from algorithms.collective import Flow
from ddlsched.network.collectives import ROUNDS, Message, Phase, Rank


@dataclass(frozen=True, kw_only=True)
class HalvingDoubling:
    """Recursive halving for reduce-scatters, doubling for all-gathers, both for all-reduces, in log2 n steps each.

    Of ranks that are no power of two, the first so many pairs as are too many have one that does all for both: it gets
    the other's message first and gives it its result at the end. An all-to-all goes in log2 n steps as well, in each of
    which a rank sends about half of its buffer on (Bruck). Ranks count in the order of servers and GPUs.

    References
    ----------
    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", International Journal
    of High Performance Computing Applications 19 (2005).
    """

    by_order: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = (*ROUNDS, "all-to-all")

    def phases(self, kind: str, ranks: Sequence[Rank], message: Message) -> Sequence[Phase]:
        """Return a phase a step."""
        order = sorted(ranks)
        if kind == "all-to-all":
            return _bruck(order, message.bytes)
        alone = len(order) - (1 << len(order).bit_length() - 1)
        pairs = list(zip(order[1 : 2 * alone : 2], order[: 2 * alone : 2], strict=True))
        core = [*order[: 2 * alone : 2], *order[2 * alone :]]
        whole = kind == "all-reduce"
        parts = [1 if whole else 2] * alone + [1] * (len(core) - alone)
        halving = _halving(core, [message.bytes * part / sum(parts) for part in parts])
        ends_bytes = message.bytes if whole else message.bytes / len(order)
        first, last = (ends_bytes, message.bytes) if kind == "all-gather" else (message.bytes, ends_bytes)
        before = [Phase([(source, target, first) for source, target in pairs], 1)] if pairs else []
        after = [Phase([(target, source, last) for source, target in pairs], 1)] if pairs else []
        doubling = [Phase([(b, a, sent) for a, b, sent in phase.flows], 1) for phase in reversed(halving)]
        steps = {"all-reduce": [*halving, *doubling], "reduce-scatter": halving, "all-gather": doubling}[kind]
        return [*before, *steps, *after]


def _halving(ranks: Sequence[Rank], parts_bytes: Sequence[float]) -> list[Phase]:
    """Return the steps after which each of a power of two of ranks has its part."""
    phases, distance = [], len(ranks) // 2
    while distance:
        flows = list[Flow]()
        for number, source in enumerate(ranks):
            partner = number ^ distance
            first = partner // distance * distance
            flows.append((source, ranks[partner], sum(parts_bytes[first : first + distance])))
        phases.append(Phase(flows, 1))
        distance //= 2
    return phases


def _bruck(ranks: Sequence[Rank], message_bytes: float) -> list[Phase]:
    phases, count, distance = [], len(ranks), 1
    while distance < count:
        blocks = sum(bool(number & distance) for number in range(count))
        sent_bytes = message_bytes / count * blocks
        phases.append(Phase([(ranks[n], ranks[(n + distance) % count], sent_bytes) for n in range(count)], 1))
        distance *= 2
    return phases
