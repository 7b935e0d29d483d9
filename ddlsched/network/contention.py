"""Contention models: how fast transfers go that share links. Pure functions: transfers and links in, rates out.

A model is a keyword-only frozen dataclass. It knows no job, no clock and no order; the engine asks for
rates whenever the set of running or waiting transfers has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

from ddlsched.errors import InputError
from ddlsched.network.topology import Link, Network
from ddlsched.policies.compiled import CompiledRule, ContentionRule

__all__ = [
    "MAX_CONSTANT_S",
    "ONE_GBE",
    "ONE_GBE_MEASURED",
    "TEN_GBE",
    "ContentionModel",
    "EqualShare",
    "Flow",
    "Linear",
    "MaxMin",
    "count_per_link",
    "gigabit_ethernet",
    "measured_gigabit_ethernet",
    "ten_gigabit_ethernet",
]

TEN_GBE = {"per_byte_s": 8.56e-10, "penalty_per_byte_s": 2.35e-10}
ONE_GBE = {"per_byte_s": 7.8125e-9, "penalty_per_byte_s": 0.7e-9}
ONE_GBE_MEASURED = {"per_byte_s": 9.825e-9, "penalty_per_byte_s": 0.0}
"""Fitted to the published latencies of 1 to 16 all-reduces at a time; see experiments/contention_validity."""


MAX_CONSTANT_S = 1e6
"""Largest time of a byte, or latency, that is taken for one; keeps sums within the clock."""


class Flow(Protocol):
    """What a contention model sees of a transfer."""

    @property
    def servers(self) -> Sequence[int]:
        """Servers of the job, in placement order."""
        ...

    @property
    def links(self) -> Sequence[int]:
        """Numbers of the links of its ring, one entry a crossing."""
        ...


@runtime_checkable
class ContentionModel(Protocol):
    """What a contention model offers; see :class:`Linear` for the shortest one."""

    @property
    def latency_s(self) -> float:
        """Time before the first byte, not stretched by contention, seconds."""
        ...

    @property
    def conserves_bytes(self) -> bool:
        """False for an accounting that lets a transfer move more than its bytes."""
        ...

    @property
    def alone_per_byte_s(self) -> float:
        """Time of a byte of a transfer that shares nothing (b), seconds."""
        ...

    @property
    def penalty_per_byte_s(self) -> float:
        """Extra time of a byte for each further transfer (η), seconds."""
        ...

    def bound_to(self, network: Network) -> ContentionModel:
        """Return the model for a network (itself, if nothing depends on it)."""
        ...

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the bytes that an all-reduce of ``message_bytes`` moves over each of its links."""
        ...

    def rates(self, active: Sequence[Flow], waiting: Sequence[Flow], links: Sequence[Link]) -> Sequence[float]:
        """Return the rate of each active transfer, bytes per second, finite and greater than 0."""
        ...


def count_per_link(flows: Sequence[Flow]) -> Counter[int]:
    """Return how many crossings each link carries."""
    return Counter(link for flow in flows for link in flow.links)


def _refuse_negative(model: object, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 <= value <= MAX_CONSTANT_S:
            raise InputError(
                f"contention {type(model).__name__}: {name} is {value}; "
                f"expected a number from 0 to {MAX_CONSTANT_S:g} s"
            )


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The linear model of the Ada-SRSF paper: k transfers on a link take k b + (k - 1) η a byte.

    A transfer goes at the pace of its slowest link, and moves the whole message through each server. On a
    link r times as fast as a server's network card, b and η are divided by r.

    Parameters
    ----------
    latency_s
        a, seconds before the first byte.
    per_byte_s
        b, seconds a byte alone; default measured on 10 Gbit/s Ethernet.
    penalty_per_byte_s
        η, seconds a byte for each further transfer; default measured on 10 Gbit/s Ethernet.

    References
    ----------
    Wang, Shi, Wang, Chu, "Communication Contention Aware Scheduling of Multiple Deep Learning Training
    Jobs", arXiv 2002.10105.
    """

    latency_s: float = 0.0
    per_byte_s: float = TEN_GBE["per_byte_s"]
    penalty_per_byte_s: float = TEN_GBE["penalty_per_byte_s"]
    conserves_bytes: ClassVar[bool] = True
    compiled: ClassVar[CompiledRule] = CompiledRule(ContentionRule.LINEAR)

    def __post_init__(self) -> None:
        _refuse_negative(
            self, latency_s=self.latency_s, per_byte_s=self.per_byte_s, penalty_per_byte_s=self.penalty_per_byte_s
        )
        if self.per_byte_s == 0:
            raise InputError("contention Linear: per_byte_s is 0; expected a number > 0")

    @property
    def alone_per_byte_s(self) -> float:
        """b, seconds."""
        return self.per_byte_s

    def bound_to(self, network: Network) -> Linear:
        """Return itself: b and η are measured, not derived from the network."""
        return self

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the whole message, as the paper counts it."""
        return message_bytes

    def rates(self, active: Sequence[Flow], waiting: Sequence[Flow], links: Sequence[Link]) -> list[float]:
        """Return 1 / (k b + (k - 1) η) on each transfer's slowest link."""
        count = count_per_link(active)
        b, eta = self.per_byte_s, self.penalty_per_byte_s

        def per_byte_s(link: int) -> float:
            return (count[link] * b + (count[link] - 1) * eta) / links[link].relative_bandwidth

        return [1.0 / max(per_byte_s(link) for link in flow.links) for flow in active]


def ten_gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants measured on 10 Gbit/s Ethernet."""
    return Linear(latency_s=latency_s, **TEN_GBE)


def gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants measured on 1 Gbit/s Ethernet."""
    return Linear(latency_s=latency_s, **ONE_GBE)


def measured_gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants fitted to published latencies on 1 Gbit/s Ethernet.

    They are 4 % off on average on the half of the latencies that was not fitted, those of :func:`gigabit_ethernet`,
    which the authors' simulator has, 15 %. A penalty does not improve the fit.
    """
    return Linear(latency_s=latency_s, **ONE_GBE_MEASURED)


@dataclass(frozen=True, kw_only=True)
class EqualShare:
    """k transfers on a link get 1/k of it each; a transfer goes at the least of its shares.

    What a transfer cannot use of its share is lost to the others (max-min fair sharing hands it on). A ring
    over n servers moves 2 (n - 1) / n of the message over each link.

    Parameters
    ----------
    latency_s
        Seconds before the first byte.
    per_byte_s
        Seconds a byte takes alone on a server's network card; by default 1 / the topology's bandwidth.
    """

    latency_s: float = 0.0
    per_byte_s: float | None = None
    penalty_per_byte_s: ClassVar[float] = 0.0
    conserves_bytes: ClassVar[bool] = True
    compiled: ClassVar[CompiledRule] = CompiledRule(ContentionRule.EQUAL_SHARE)

    def __post_init__(self) -> None:
        _check_sharing(self, self.latency_s, self.per_byte_s)

    @property
    def alone_per_byte_s(self) -> float:
        """Seconds a byte takes alone on a server's network card."""
        return _bound(self, self.per_byte_s)

    def bound_to(self, network: Network) -> EqualShare:
        """Return the model with ``per_byte_s`` taken from the network unless it was given."""
        return self if self.per_byte_s is not None else replace(self, per_byte_s=1.0 / network.nic_bytes_per_s)

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return a ring's 2 (n - 1) / n of the message."""
        return _ring_bytes(message_bytes, num_servers)

    def rates(self, active: Sequence[Flow], waiting: Sequence[Flow], links: Sequence[Link]) -> list[float]:
        """Return each transfer's least share."""
        count = count_per_link(active)
        nic = 1.0 / self.alone_per_byte_s
        return [min(nic * links[link].relative_bandwidth / count[link] for link in flow.links) for flow in active]


@dataclass(frozen=True, kw_only=True)
class MaxMin:
    """Max-min fair sharing by progressive filling: no rate can rise without lowering a smaller one.

    Parameters
    ----------
    latency_s
        Seconds before the first byte.
    per_byte_s
        Seconds a byte takes alone on a server's network card; by default 1 / the topology's bandwidth.

    References
    ----------
    Bertsekas, Gallager, "Data Networks", section 6.5.2.
    """

    latency_s: float = 0.0
    per_byte_s: float | None = None
    penalty_per_byte_s: ClassVar[float] = 0.0
    conserves_bytes: ClassVar[bool] = True
    compiled: ClassVar[CompiledRule] = CompiledRule(ContentionRule.MAX_MIN)

    def __post_init__(self) -> None:
        _check_sharing(self, self.latency_s, self.per_byte_s)

    @property
    def alone_per_byte_s(self) -> float:
        """Seconds a byte takes alone on a server's network card."""
        return _bound(self, self.per_byte_s)

    def bound_to(self, network: Network) -> MaxMin:
        """Return the model with ``per_byte_s`` taken from the network unless it was given."""
        return self if self.per_byte_s is not None else replace(self, per_byte_s=1.0 / network.nic_bytes_per_s)

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return a ring's 2 (n - 1) / n of the message."""
        return _ring_bytes(message_bytes, num_servers)

    def rates(self, active: Sequence[Flow], waiting: Sequence[Flow], links: Sequence[Link]) -> list[float]:
        """Return the max-min fair rates; the link with the least share is filled first, ties by number."""
        crossings = count_per_link(active)
        nic = 1.0 / self.alone_per_byte_s
        free = {link: nic * links[link].relative_bandwidth for link in crossings}
        users = {link: [i for i, flow in enumerate(active) if link in flow.links] for link in crossings}
        result = [0.0] * len(active)
        while crossings:
            filled = min(crossings, key=lambda link: (free[link] / crossings[link], link))
            share = free[filled] / crossings[filled]
            for i in [i for i in users[filled] if result[i] == 0.0]:
                result[i] = share
                for link in active[i].links:
                    free[link] = max(free[link] - share, 0.0)
                    crossings[link] -= 1
            crossings = Counter({link: n for link, n in crossings.items() if n > 0})
        return result


def _check_sharing(model: object, latency_s: float, per_byte_s: float | None) -> None:
    _refuse_negative(model, latency_s=latency_s, per_byte_s=per_byte_s)
    if per_byte_s == 0:
        raise InputError(f"contention {type(model).__name__}: per_byte_s is 0; expected a number > 0")


def _bound(model: object, per_byte_s: float | None) -> float:
    if per_byte_s is None:
        raise InputError(f"contention {type(model).__name__}: per_byte_s is unknown; call bound_to(network) first")
    return per_byte_s


def _ring_bytes(message_bytes: float, num_servers: int) -> float:
    return message_bytes * (2 * (num_servers - 1) / num_servers)
