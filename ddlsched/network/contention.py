"""Contention models: how fast transfers go that share links. Pure functions: transfers and links in, rates out.

A model is a keyword-only frozen dataclass, in one of three forms (:class:`ContentionModel`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

from ddlsched.errors import InputError
from ddlsched.network.topology import Network, bytes_per_s_from_gbps, gbps_from_bytes_per_s
from ddlsched.ranges import check_fields, ranged

TEN_GBE = {"per_byte_s": 8.56e-10, "penalty_per_byte_s": 2.35e-10}
ONE_GBE = {"per_byte_s": 7.8125e-9, "penalty_per_byte_s": 0.7e-9}
ONE_GBE_MEASURED = {"per_byte_s": 9.825e-9, "penalty_per_byte_s": 0.0}
"""Fitted to the published latencies of 1 to 16 all-reduces at a time; see experiments/contention_validity."""
MAX_CONSTANT_S = 1e6
"""Largest time of a byte, or latency, that is taken for one; keeps sums within the clock."""


class Flow(Protocol):
    """What a contention model sees of a transfer.

    In a run it is a :class:`~ddlsched.policies.views.TransferView`, with all that it has.
    """

    @property
    def servers(self) -> Sequence[int]:
        """Servers of the job, in placement order."""

    @property
    def links(self) -> Sequence[int]:
        """Numbers of the links of its ring, one entry a crossing."""


@dataclass(frozen=True)
class SharedLink:
    """What ``link_rate`` sees of a link.

    Parameters
    ----------
    number
        Its number among the links of the network.
    num_transfers
        The transfers that cross it now; one that crosses it twice counts twice.
    relative_bandwidth
        Bandwidth / that of the fastest network card.
    bandwidth_bytes_per_s
        Bandwidth, bytes per second.
    """

    number: int
    num_transfers: int
    relative_bandwidth: float
    bandwidth_bytes_per_s: float


class ContentionModel(Protocol):
    """What every contention model offers, besides one of the three forms below.

    ``link_rate(transfer, link)``
        How fast a transfer goes on one link; it goes at the least over its links (:class:`Linear`,
        :class:`EqualShare`). Asked for the transfers on links whose transfers have changed.
    ``weight(transfer)`` and ``level(transfer)``
        Weighted max-min sharing within strict levels: the links are shared among level 0 first, in proportion to the
        weights, what is left among level 1, and so on (:class:`MaxMin`: weight 1, level 0). A transfer may get
        nothing. Asked for the transfers that links connect to one that has started or stopped. They see the job and
        the bytes sent and left of each transfer, too (``mltcp``, ``strict-levels``).
    ``rates(active, waiting, links)``
        Any other model: the rate of each active transfer, asked after each such change. Called in Python.

    A model that only knows all-reduces in one ring over the servers of a job, on the topology's own routes, says so
    with ``only_rings``: a run with anything else is refused before it begins.

    What a collective sends says its algorithm. A model whose time of a byte belongs to other bytes of a ring all-reduce
    has ``wire_bytes(message_bytes, num_ranks)``: of the linear model's whole messages, or of what steps cost besides.

    A model whose answers change as bytes are sent says so with ``message_parts``, a whole number to 1000: it is asked
    anew, too, whenever a transfer has sent another such part of its message.

    The first two are compiled from the class's own source (:mod:`ddlsched.policies.doors` says how).
    """

    @property
    def latency_s(self) -> float:
        """Time before the first byte, not stretched by contention, seconds."""

    @property
    def conserves_bytes(self) -> bool:
        """False for an accounting that lets a transfer move more than its bytes."""

    @property
    def alone_per_byte_s(self) -> float:
        """Time of a byte of a transfer that shares nothing (b), seconds."""

    @property
    def penalty_per_byte_s(self) -> float:
        """Extra time of a byte for each further transfer (η), seconds."""

    def bound_to(self, network: Network) -> ContentionModel:
        """Return the model for a network (itself, if nothing depends on it)."""


def count_per_link(flows: Sequence[Flow]) -> Counter[int]:
    """Return how many crossings each link carries."""
    return Counter(link for flow in flows for link in flow.links)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The linear model of the Ada-SRSF paper: k transfers on a link take k b + (k - 1) η a byte.

    A transfer goes at the pace of its slowest link, and moves the whole message through each server. On a
    link r times as fast as the topology's fastest network card, b and η are divided by r.

    Parameters
    ----------
    latency_s
        a, seconds before the first byte.
    per_byte_s
        b, seconds a byte alone; default measured on 10 Gbit/s Ethernet.
    penalty_per_byte_s
        η, seconds a byte for each further transfer; default measured on 10 Gbit/s Ethernet.
    card_gbps
        Bandwidth of the network card to which b and η belong, Gbit/s: on a topology with another, both are multiplied
        by this / its. By default 10 where neither is given; where one is, both hold whatever the topology's card.

    References
    ----------
    Wang, Shi, Wang, Chu, "Communication Contention Aware Scheduling of Multiple Deep Learning Training
    Jobs", arXiv 2002.10105.
    """

    latency_s: float = ranged(0.0, 0.0, MAX_CONSTANT_S)
    # None says "not given", and only until __post_init__.
    per_byte_s: float = ranged(None, 0.0, MAX_CONSTANT_S, above=True)  # type: ignore[assignment]
    penalty_per_byte_s: float = ranged(None, 0.0, MAX_CONSTANT_S)  # type: ignore[assignment]
    card_gbps: float | None = ranged(None, 0.0, above=True)
    conserves_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        untold = [name for name in TEN_GBE if getattr(self, name) is None]
        for name in untold:
            object.__setattr__(self, name, TEN_GBE[name])
        if len(untold) == len(TEN_GBE) and self.card_gbps is None:
            object.__setattr__(self, "card_gbps", 10.0)
        check_fields(self, "contention Linear")

    @property
    def alone_per_byte_s(self) -> float:
        """b, seconds."""
        return self.per_byte_s

    def bound_to(self, network: Network) -> Linear:
        """Return the model with b and η of the network's fastest card, or itself where they hold for any."""
        if self.card_gbps is None or not network.nic_bytes_per_s:
            return self
        scale = bytes_per_s_from_gbps(self.card_gbps) / network.nic_bytes_per_s
        return replace(
            self,
            per_byte_s=self.per_byte_s * scale,
            penalty_per_byte_s=self.penalty_per_byte_s * scale,
            card_gbps=gbps_from_bytes_per_s(network.nic_bytes_per_s),
        )

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return the whole message, as the paper counts it."""
        return message_bytes

    def link_rate(self, transfer: Flow, link: SharedLink) -> float:
        """Return 1 / (k b + (k - 1) η), of a link as fast as a network card."""
        k, b, eta = link.num_transfers, self.per_byte_s, self.penalty_per_byte_s
        return 1.0 / ((k * b + (k - 1) * eta) / link.relative_bandwidth)


def ten_gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants measured on 10 Gbit/s Ethernet, whatever the topology's card.

    Parameters
    ----------
    latency_s
        Of each transfer, before its first byte, seconds.
    """
    return Linear(latency_s=latency_s, **TEN_GBE)


def gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants measured on 1 Gbit/s Ethernet, whatever the topology's card.

    Parameters
    ----------
    latency_s
        Of each transfer, before its first byte, seconds.
    """
    return Linear(latency_s=latency_s, **ONE_GBE)


def measured_gigabit_ethernet(*, latency_s: float = 0.0) -> Linear:
    """Return the linear model with the constants fitted to published latencies on 1 Gbit/s Ethernet.

    They are 4 % off on average on the half of the latencies that was not fitted, those of :func:`gigabit_ethernet`,
    which the authors' simulator has, 15 %. A penalty does not improve the fit.

    Parameters
    ----------
    latency_s
        Of each transfer, before its first byte, seconds.
    """
    return Linear(latency_s=latency_s, **ONE_GBE_MEASURED)


@dataclass(frozen=True, kw_only=True)
class _SharedBandwidth:
    """Links that lose nothing when transfers share them: what the models of fair sharing have in common."""

    latency_s: float = ranged(0.0, 0.0, MAX_CONSTANT_S)
    per_byte_s: float | None = ranged(None, 0.0, MAX_CONSTANT_S, above=True)
    penalty_per_byte_s: ClassVar[float] = 0.0
    conserves_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, f"contention {type(self).__name__}")

    @property
    def alone_per_byte_s(self) -> float:
        """Seconds a byte takes alone on a server's network card."""
        if self.per_byte_s is None:
            raise InputError(f"contention {type(self).__name__}: per_byte_s is unknown; call bound_to(network) first")
        return self.per_byte_s

    def bound_to(self, network: Network) -> Self:
        """Return the model with ``per_byte_s`` taken from the network unless it was given."""
        return self if self.per_byte_s is not None else replace(self, per_byte_s=1.0 / network.nic_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class EqualShare(_SharedBandwidth):
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

    def link_rate(self, transfer: Flow, link: SharedLink) -> float:
        """Return the transfer's share of the link."""
        return 1.0 / self.alone_per_byte_s * link.relative_bandwidth / link.num_transfers


@dataclass(frozen=True, kw_only=True)
class MaxMin(_SharedBandwidth):
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

    def weight(self, transfer: Flow) -> float:
        """Return 1: all count alike."""
        return 1.0

    def level(self, transfer: Flow) -> int:
        """Return 0: none goes before another."""
        return 0


def ring_bytes(model: object, message_bytes: float, num_ranks: int) -> float:
    """Return what each of some ranks sends to the next in a ring all-reduce, bytes, as a contention model counts it."""
    counted = getattr(model, "wire_bytes", None)
    return moved_by_ring(message_bytes, num_ranks) if counted is None else counted(message_bytes, num_ranks)


def moved_by_ring(message_bytes: float, num_ranks: int) -> float:
    """Return 2 (n - 1) / n of a message."""
    return message_bytes * (2 * (num_ranks - 1) / num_ranks)


_MEASURED_GBPS = 10.0


def card_remark(model: ContentionModel, network: Network) -> str | None:
    """Return how the constants of a bound linear model came from a card that is not the usual one, or None.

    Equal share and max-min sharing take the links' own bandwidth, and a model of a user's own speaks for itself.
    """
    gbps = gbps_from_bytes_per_s(network.nic_bytes_per_s)
    if not isinstance(model, Linear) or gbps in (0.0, _MEASURED_GBPS):
        return None
    constants = f"b = {model.per_byte_s:.4g} s and η = {model.penalty_per_byte_s:.4g} s a byte"
    origin = "as given, whatever" if model.card_gbps is None else "scaled to"
    return f"Linear contention: {constants}, {origin} the topology's card of {gbps:g} Gbit/s."
