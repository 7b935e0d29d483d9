"""The oracle's transfers: what policies read of them and of the network, and how they share links.

It shares no code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ddlsched.network.topology import Network

if TYPE_CHECKING:
    from reference_simulator import RunningJob, Simulation

NS_PER_S = 1e9


@dataclass(kw_only=True, eq=False)
class Transfer:
    """A collective that crosses links, as policies read it.

    Its rate is 0 while it waits or is paused, and where others go before it on its links.
    """

    simulation: Simulation
    job: RunningJob
    task: int
    place: int  # of the tuple in its group
    links: tuple[int, ...]  # kept when its job loses them
    shares: tuple[float, ...]  # of its bytes, on each link
    message_bytes: float
    bytes_kept: float  # what was left, and of the latency, at since_ns, when the rate last changed
    latency_left_ns: float
    since_ns: int = 0
    is_active: bool = False
    was_active: bool = False  # since since_ns
    rate: float = 0.0
    end_ns: int | None = None
    routed: bool = False  # whether it has its paths, if these change from transfer to transfer
    parts_sent: int = 0
    part_ns: int | None = None  # when the next part of its message ends, if the model wants to be asked then

    @property
    def servers(self) -> tuple[int, ...]:
        return self.job.servers

    @property
    def number(self) -> int:
        # Those of a job's state come behind its collectives.
        task = self.task if self.task >= 0 else 500 - self.task
        return (self.job.number * 1000 + task) * 1000 + self.place

    @property
    def bytes_left(self) -> float:
        return max(0.0, self.bytes_kept - self.sent())

    @property
    def bytes_sent(self) -> float:
        return self.message_bytes - self.bytes_left

    def sent(self) -> float:
        """Bytes sent since the rate last changed, not capped by what there was to send."""
        if self.rate == 0.0:
            return 0.0
        return max(0.0, self.simulation.now_ns - self.since_ns - self.latency_left_ns) / (NS_PER_S / self.rate)

    def change_rate(self, rate: float) -> None:
        now_ns = self.simulation.now_ns
        self.bytes_kept = self.bytes_left
        if self.was_active:
            self.latency_left_ns = max(0.0, self.latency_left_ns - (now_ns - self.since_ns))
        self.rate, self.since_ns, self.end_ns, self.was_active = rate, now_ns, None, self.is_active
        if rate > 0.0:
            self.end_ns = self.time_of(self.bytes_kept)
        self.predict_part()

    def time_of(self, num_bytes: float) -> int:
        """When so many bytes of those that were left at ``since_ns`` will be sent."""
        rest_ns = self.latency_left_ns + num_bytes * (NS_PER_S / self.rate)
        return self.since_ns + max(0, math.ceil(rest_ns - 0.001))

    def left_after(self, parts: int) -> float:
        total = getattr(self.simulation.model, "message_parts", 1)
        return self.message_bytes * ((total - parts) / total)

    def predict_part(self) -> None:
        self.part_ns = None
        if self.rate > 0.0 and self.parts_sent + 1 < getattr(self.simulation.model, "message_parts", 1):
            to_send = max(self.bytes_kept - self.left_after(self.parts_sent + 1), 0.0)
            self.part_ns = max(self.time_of(to_send), self.simulation.now_ns)

    def end_part(self) -> None:
        left, total = self.bytes_left, getattr(self.simulation.model, "message_parts", 1)
        self.parts_sent += 1
        while self.parts_sent + 1 < total and left <= self.left_after(self.parts_sent + 1):
            self.parts_sent += 1
        self.predict_part()


class NetworkNow:
    """What communication policies read besides transfers."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.links = simulation, simulation.network.links
        self.per_byte_s = simulation.model.alone_per_byte_s
        self.penalty_per_byte_s = simulation.model.penalty_per_byte_s

    @property
    def now_ns(self) -> int:
        return self.simulation.now_ns

    @property
    def now_s(self) -> float:
        return self.simulation.now_s

    @property
    def active(self) -> tuple[Transfer, ...]:
        return tuple(t for t in self.simulation.transfers_by_number() if t.is_active)

    @property
    def waiting(self) -> tuple[Transfer, ...]:
        return tuple(t for t in self.simulation.transfers_by_number() if not t.is_active)

    def transfers_on(self, link: int) -> list[Transfer]:
        return [transfer for transfer in self.active if link in transfer.links]

    def num_on(self, link: int) -> int:
        return sum(transfer.links.count(link) for transfer in self.active)

    def most_on_links_of(self, transfer: Transfer) -> int:
        return max(self.num_on(link) for link in transfer.links)

    def met_by(self, transfer: Transfer) -> list[Transfer]:
        return [other for other in self.active if other is not transfer and meet(transfer, other)]


@dataclass(eq=False)
class Flow:
    """What one server of a job sends to the next, as path policies read it."""

    number: int
    job: RunningJob
    source: int
    target: int
    paths: list[tuple[int, ...]]
    route: int
    cards: tuple[int, ...]

    def hash(self, seed: int) -> int:
        bits = seed
        for number in (self.job.number, self.source, self.target, *self.cards):
            bits = scatter((bits + number) % 2**32)
        return bits


def scatter(bits: int) -> int:
    """Mix 32 bits."""
    bits ^= bits >> 16
    bits = bits * 0x7FEB352D % 2**32
    bits ^= bits >> 15
    bits = bits * 0x45D9F3B % 2**32
    return bits ^ bits >> 16


class Loads:
    """What path policies read of the links; ``chosen`` are those that flows of the same ring have got."""

    def __init__(self, simulation: Simulation, chosen: list[int]) -> None:
        self.simulation, self.chosen, self.links = simulation, chosen, simulation.network.links

    @property
    def now_ns(self) -> int:
        return self.simulation.now_ns

    def jobs_on(self, link: int) -> int:
        return self.chosen.count(link) + sum(self.is_on(job, link) for job in self.simulation.residents)

    def is_on(self, job: RunningJob, link: int) -> bool:
        return link in job.candidates or any(link in traffic.links for traffic in job.traffic.values())

    def flows_on(self, link: int) -> int:
        with_paths = [
            t for t in self.simulation.transfers if t.routed or t.task < 0 or not self.simulation.paths_change
        ]
        return self.chosen.count(link) + sum(t.links.count(link) for t in with_paths)


def meet(one: Transfer, other: Transfer) -> bool:
    return not set(one.links).isdisjoint(other.links)


def least_link_rate(model: Any, transfer: Transfer, running: Sequence[Transfer], network: Network) -> float:
    """The rate of a transfer under a model that knows what one link does."""
    rates = []
    for number, share in zip(transfer.links, transfer.shares, strict=True):
        link = SimpleNamespace(
            number=number,
            num_transfers=sum(other.links.count(number) for other in running),
            relative_bandwidth=network.links[number].relative_bandwidth,
            bandwidth_bytes_per_s=network.links[number].bandwidth_bytes_per_s,
        )
        rates.append(model.link_rate(transfer, link) / share)
    return min(rates)


def joined(links: set[int], transfers: Sequence[Transfer]) -> list[Transfer]:
    """Return the transfers on some links, on further links of these, and so on."""
    while more := {link for t in transfers if not links.isdisjoint(t.links) for link in t.links} - links:
        links = links | more
    return [t for t in transfers if not links.isdisjoint(t.links)]


def shares(model: Any, transfers: Sequence[Transfer], network: Network) -> dict[Transfer, float]:
    """Weighted max-min sharing, level by level; ``transfers`` by number, with all that share links with them."""
    weights = {t: min(max(round(model.weight(t) * 2**20), 1), 2**40) / 2**20 for t in transfers}
    levels = {t: model.level(t) for t in transfers}
    counted = {t: {link: units_on(t, weights[t], link) for link in dict.fromkeys(t.links)} for t in transfers}
    alone = 1.0 / model.alone_per_byte_s
    full = {link: alone * network.links[link].relative_bandwidth for t in transfers for link in t.links}
    free = dict(full)
    rates: dict[Transfer, float] = {}
    for level in sorted(set(levels.values())):
        if level > 0:
            free = {link: 0.0 if free[link] < 1e-9 * full[link] else free[link] for link in free}
        taken_at: dict[int, float] = {}
        tied: dict[int, float] = {}
        while open_ := [t for t in transfers if levels[t] == level and t not in rates]:
            units = dict.fromkeys(free, 0.0)
            for t in open_:
                for link, own in counted[t].items():
                    units[link] += own
            share, tightest = min((tied.get(link, free[link] / own), link) for link, own in units.items() if own)
            for t in open_:
                if tightest in t.links:
                    rates[t] = weights[t] * share
                    for link, part in zip(t.links, t.shares, strict=True):
                        if taken_at.get(link) != share:  # of the step that is the first to take this share of the link
                            taken_at[link] = share
                            tied.pop(link, None)
                            if free[link] / units[link] <= share * (1 + 1e-9):
                                tied[link] = share
                        free[link] = max(free[link] - rates[t] * part, 0.0)
    return rates


def units_on(transfer: Transfer, weight: float, link: int) -> float:
    """The weight with which a transfer counts on a link, in whole multiples of 2**-20."""
    crossings = [share for own, share in zip(transfer.links, transfer.shares, strict=True) if own == link]
    return sum(weight if share == 1.0 else math.ceil(weight * share * 2**20) / 2**20 for share in crossings)
