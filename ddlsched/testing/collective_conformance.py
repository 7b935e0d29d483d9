"""The conformance class of collective algorithms. Subclass it and give it ``make``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ddlsched.network.collectives import KINDS, ROUNDS, Message, Phase, Rank
from ddlsched.network.contention import moved_by_ring
from ddlsched.network.traffic import phases_of
from ddlsched.testing.conformance_runs import Conformance

__all__ = ["CollectiveConformance"]

_BYTES = 840.0
"""Parts of 1 to 8 ranks are whole."""
_LAYOUTS = ((1, 2), (1, 5), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3), (3, 2))
"""Servers, and ranks in each."""


class CollectiveConformance(Conformance):
    """Checks that an algorithm sends what its kinds promise, for few ranks in every layout."""

    def _phases(self, kind: str, ranks: Sequence[Rank], message_bytes: float = _BYTES) -> list[Phase]:
        message = Message(message_bytes, lambda members: moved_by_ring(message_bytes, members))
        return phases_of(kind, self.make(), ranks, message, has_inside=True)

    def test_has_kinds(self) -> None:
        """It has at least one of the kinds, and no other."""
        assert set(self.make().kinds) & set(KINDS) == set(self.make().kinds) != set()

    def test_every_cut_carries_what_the_ranks_behind_it_need(self) -> None:
        """From any of the ranks to the others go at least the bytes without which these cannot end with their result.

        Of an all-reduce one message each way; of an all-gather the parts brought, of a reduce-scatter the parts kept.
        """
        for kind in self.make().kinds:
            for ranks in _groups(kind):
                phases = self._phases(kind, ranks)
                for count in range(1, len(ranks)):
                    for some in combinations(ranks, count):
                        sent, needed = _sent_by(phases, set(some)), _needed(kind, ranks, set(some))
                        assert sent >= needed * (1 - 1e-12), f"{kind}: {some} send the others {sent} of {needed} bytes"

    def test_steps_are_there_where_bytes_go(self) -> None:
        """What sends takes at least a step."""
        for kind in self.make().kinds:
            for ranks in _groups(kind):
                phases = self._phases(kind, ranks)
                assert any(phase.flows for phase in phases), f"{kind}: nothing is sent"
                assert sum(phase.steps for phase in phases) > 0, f"{kind}: no step"

    def test_bytes_are_in_proportion_to_the_message(self) -> None:
        """Twice the message, twice the bytes, on the same ways in as many steps."""
        for kind in self.make().kinds:
            for ranks in _groups(kind):
                once, twice = self._phases(kind, ranks), self._phases(kind, ranks, 2 * _BYTES)
                for one, other in zip(once, twice, strict=True):
                    assert (one.steps, one.merged) == (other.steps, other.merged)
                    for flow, larger in zip(one.flows, other.flows, strict=True):
                        assert flow[:2] == larger[:2]
                        assert abs(2 * flow[2] - larger[2]) <= 1e-9 * larger[2]

    def test_the_closed_form_is_what_it_sends(self) -> None:
        """``round_on``, if it has that, counts the bytes and steps of ranks on servers of their own."""
        algorithm = self.make()
        round_on = getattr(algorithm, "round_on", None)
        sizes = (2, 4, 8) if getattr(algorithm, "powers_of_two", False) else (2, 3, 4, 5, 8)
        for kind in [kind for kind in algorithm.kinds if kind in ROUNDS and round_on]:
            for size in sizes:
                ranks = [Rank(server, 0, 0) for server in range(size)]
                phases = self._phases(kind, ranks)
                most = max(_sent_by(phases, {rank}) for rank in ranks)
                moved, steps = round_on(kind, size)  # type: ignore[misc]
                assert abs(ROUNDS[kind] * moved * _BYTES - most) <= 1e-9 * most, f"{kind} over {size}: bytes"
                assert ROUNDS[kind] * steps == sum(phase.steps for phase in phases), f"{kind} over {size}: steps"


def _groups(kind: str) -> Iterator[list[Rank]]:
    """Yield ranks in every layout, whose GPUs have a card each or one together."""
    for servers, places in _LAYOUTS:
        for own in (True, False):
            ranks = [Rank(server, place, place if own else 0) for server in range(servers) for place in range(places)]
            yield ranks[:: len(ranks) - 1] if kind == "send" else ranks
            if kind != "send":
                yield ranks[::-1]


def _sent_by(phases: Sequence[Phase], some: set[Rank]) -> float:
    """Return the bytes that some ranks send the others; what switches add up counts once."""
    total = 0.0
    for phase in phases:
        amounts = [sent for source, target, sent in phase.flows if source in some and target not in some]
        total += (max if phase.merged else sum)(amounts) if amounts else 0.0
    return total


def _needed(kind: str, ranks: Sequence[Rank], some: set[Rank]) -> float:
    """Return the bytes that the others need of some ranks."""
    part, others = _BYTES / len(ranks), len(ranks) - len(some)
    if kind in ("broadcast", "send"):
        last = ranks[-1] if kind == "send" else next(rank for rank in ranks if rank not in some)
        return _BYTES if ranks[0] in some and last not in some else 0.0
    needed = {"all-reduce": _BYTES, "all-gather": len(some) * part, "reduce-scatter": others * part}
    return needed.get(kind, len(some) * others * part)
