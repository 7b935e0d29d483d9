"""Rings that contend by packets: how much others slow an all-reduce down is what its packets wait for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.network.contention import MAX_CONSTANT_S, MaxMin, moved_by_ring
from ddlsched.network.rates import slowest_link_bytes_per_s
from ddlsched.network.topology import Link, Network, flows_of_ring
from ddlsched.ranges import ranged

_LEAST_PACKET_BYTES = 1448.0
_LEAST_BYTES = 1.0
"""What sends less has no packet that others wait for, nor one that waits."""
_SEGMENT_BYTES = 1 << 20
"""gloo's largest segment."""


@dataclass(frozen=True, kw_only=True)
class PacketRings(MaxMin):
    """Rings of gloo over TCP: the packets of all-reduces that share links are sent one by one, in a small simulation.

    A transfer alone takes the time of its bytes, and what steps and further servers cost. Beside others it takes as
    long as all-reduces that go on and on beside each other do in
    :mod:`ddlsched.network.packet_simulation`, if that is longer: an answer for each set of messages that
    are sent at once, which is kept. Shares by size, rings that wait for each other where they overlap in part, and
    what a full queue costs follow from the packets. The transfers of a job are one connection from rank to rank.

    Asked in Python at each change of the transfers: for small clusters, whose all-reduces are rings on the topology's
    own routes.

    Parameters
    ----------
    step_s
        Seconds that each of a ring's 2 (n - 1) steps costs a transfer alone.
    queue_bytes
        What waits in front of a link at most; what comes then is lost.
    react_s
        How long a rank takes to act on the word that the next one is ready, seconds.
    wait
        What each further server of a ring adds to the time of a byte, as a share of it
        (:class:`~ddlsched.network.weighted_shares.ConnectionShares`).
    packet_bytes
        What a link sends in one go: TCP's segments leave the card in packets of many.
    overhead
        By which part more than those of transfers alone the packets of several carry beside their bytes.
    recover_s
        After which a loss is made good, seconds.

    Raises
    ------
    InputError
        A parameter is out of range, or a transfer of a run is no ring over its job's servers on the own routes.
    """

    only_rings: ClassVar[bool] = True
    step_s: float = ranged(0.0, 0.0, MAX_CONSTANT_S)
    react_s: float = ranged(1.5e-3, 0.0, MAX_CONSTANT_S)
    wait: float = ranged(0.0, 0.0, 1.0)
    queue_bytes: float = 200_000.0
    packet_bytes: float = 15_000.0
    recover_s: float = ranged(0.025, 0.0, MAX_CONSTANT_S, above=True)  # at once it would be lost again, for ever
    overhead: float = ranged(0.0, 0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _LEAST_PACKET_BYTES <= self.packet_bytes <= self.queue_bytes <= 1e9:
            what = f"contention PacketRings: packet_bytes is {self.packet_bytes} and queue_bytes {self.queue_bytes}"
            raise InputError(f"{what}; expected {_LEAST_PACKET_BYTES:g} <= packet_bytes <= queue_bytes <= 1e9")

    @property
    def conserves_bytes(self) -> bool:  # type: ignore[override]
        """Whether links carry messages only, and no time of steps."""
        return self.step_s == 0

    def bound_to(self, network: Network) -> _OnNetwork:  # type: ignore[override]
        """Return the model on a network, whose routes the packets take.

        Raises
        ------
        InputError
            The network states the inside of servers.
        """
        if network.inside is not None:
            raise InputError(
                "contention PacketRings: the topology states the inside of its servers; expected one without, as each "
                "server has one rank of a ring"
            )
        model = super().bound_to(network)
        assert isinstance(model, PacketRings)
        return _OnNetwork(model, network)

    def wire_bytes(self, message_bytes: float, num_servers: int) -> float:
        """Return a ring's 2 (n - 1) / n of the message, and what the links would carry in the time that steps cost."""
        moved = moved_by_ring(message_bytes, num_servers)
        return moved + 2 * (num_servers - 1) * self.step_s / self.alone_per_byte_s

    def reduced_bytes(self, wire_bytes: float, num_servers: int) -> float:
        """Return the message of which a transfer is that moves so many bytes."""
        steps = 2 * (num_servers - 1)
        return (wire_bytes - steps * self.step_s / self.alone_per_byte_s) * num_servers / steps

    def rates(self, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Link]) -> list[float]:
        """Raise InputError: how fast packets go hangs on the routes of a network."""
        raise InputError("contention PacketRings: its network is unknown; call bound_to(network) first")


class _Message(NamedTuple):
    """All that matters of a transfer."""

    servers: tuple[int, ...]
    message_bytes: int

    @property
    def num_segments(self) -> int:
        """Into how many segments a rank cuts its n-th."""
        return max(-(-self.message_bytes // (_SEGMENT_BYTES * len(self.servers))), 2)


_Jobs = tuple[tuple[_Message, ...], ...]
"""The messages that are sent at once, job by job."""


class _OnNetwork:
    """The model on a network, with what it has found there."""

    def __init__(self, model: PacketRings, network: Network) -> None:
        self.model, self._network = model, network
        self.latency_s, self.alone_per_byte_s = model.latency_s, model.alone_per_byte_s
        self.penalty_per_byte_s, self.conserves_bytes = model.penalty_per_byte_s, model.conserves_bytes
        self.wire_bytes, self.only_rings = model.wire_bytes, model.only_rings
        self._ways: dict[tuple[int, int], list[int]] = {}
        self._kept_s: dict[_Jobs, list[float]] = {}

    def __repr__(self) -> str:
        return repr(self.model)

    def bound_to(self, network: Network) -> _OnNetwork:
        """Return the model on a network."""
        return self.model.bound_to(network)

    def rates(self, active: Sequence[Any], waiting: Sequence[Any], links: Sequence[Link]) -> list[float]:
        """Return the rate of each active transfer, bytes per second, at most what it is alone."""
        rates = [self._alone_bytes_per_s(own, links) for own in active]
        sending = [place for place, own in enumerate(active) if own.message_bytes >= _LEAST_BYTES]
        for own_places in _connected([active[place].links for place in sending]):
            together = [sending[place] for place in own_places]
            if len(together) > 1:
                transfers = [active[place] for place in together]
                for place, seconds in zip(together, self._durations_s(transfers), strict=True):
                    rates[place] = min(rates[place], active[place].message_bytes / seconds)
        return rates

    def _alone_bytes_per_s(self, transfer: Any, links: Sequence[Link]) -> float:
        alone = {link: links[link].relative_bandwidth / self.alone_per_byte_s for link in transfer.links}
        return slowest_link_bytes_per_s(transfer, alone) / (1.0 + self.model.wait * (len(set(transfer.servers)) - 1))

    def _durations_s(self, transfers: Sequence[Any]) -> list[float]:
        """Return how long transfers take that go on and on beside each other, seconds."""
        messages = [self._message(transfer) for transfer in transfers]
        of_job: dict[int, list[int]] = {}
        for place in sorted(range(len(transfers)), key=messages.__getitem__):
            of_job.setdefault(transfers[place].job.number, []).append(place)
        jobs = sorted(of_job.values(), key=lambda own: [messages[place] for place in own])
        sent = tuple(tuple(messages[place] for place in own) for own in jobs)
        if sent not in self._kept_s:
            self._kept_s[sent] = _same_for_same(sent, self._simulated_s(sent))
        in_order = [place for own in jobs for place in own]
        return [seconds for _, seconds in sorted(zip(in_order, self._kept_s[sent], strict=True))]

    def _message(self, transfer: Any) -> _Message:
        servers = tuple(sorted(set(transfer.servers)))
        if len(servers) < 2 or sorted(transfer.links) != sorted(self._network.ring(servers).links):
            raise InputError(
                f"a transfer of job {transfer.job.job_id!r} is no ring over its servers on the topology's routes; "
                "expected jobs without groups, other collectives, state that moves and chosen paths"
            )
        return _Message(servers, max(round(self.model.reduced_bytes(transfer.message_bytes, len(servers))), 1))

    def _simulated_s(self, jobs: _Jobs) -> np.ndarray:
        """Return how long each message takes beside all, seconds."""
        from ddlsched.network.packet_queues import Rings
        from ddlsched.network.packet_simulation import mean_durations_s

        model, count = self.model, len(self._network.links)
        rings = [own[0].servers for own in jobs]
        flows = [flow for servers in rings for flow in flows_of_ring(servers)]
        messages = [message for own in jobs for message in own]
        packet_per_byte_s = self.alone_per_byte_s * (1.0 + model.overhead)
        per_byte_s = [packet_per_byte_s / link.relative_bandwidth for link in self._network.links]
        durations_s = mean_durations_s(
            Rings(
                num_ranks=np.array([len(servers) for servers in rings]),
                ring_of=np.repeat(np.arange(len(jobs)), [len(own) for own in jobs]),
                num_segments=np.array([own.num_segments for own in messages]),
                segment_bytes=np.array([own.message_bytes / (own.num_segments * len(own.servers)) for own in messages]),
                forth=_filled([self._way(source, target, count) for source, target in flows]),
                back=_filled([self._way(target, source, count) for source, target in flows]),
                per_byte_s=np.array([*per_byte_s, *per_byte_s]),
            ),
            queue_bytes=model.queue_bytes,
            packet_bytes=model.packet_bytes,
            react_s=model.react_s,
            recover_s=model.recover_s,
        )
        if not self.conserves_bytes:
            return durations_s
        # Means of times that ended at different moments may together be a little more than a link carries.
        return durations_s * max(1.0, self._most_load(messages, durations_s))

    def _most_load(self, messages: Sequence[_Message], durations_s: np.ndarray) -> float:
        """Return what the busiest link carries of messages that take so long, as a share of what it can."""
        load = np.zeros(len(self._network.links))
        for message, seconds in zip(messages, durations_s.tolist(), strict=True):
            wire_bytes = self.wire_bytes(message.message_bytes, len(message.servers))
            for link in self._network.ring(message.servers).links:
                load[link] += wire_bytes / seconds * self.alone_per_byte_s
        return float(np.max(load / [link.relative_bandwidth for link in self._network.links]))

    def _way(self, source: int, target: int, num_links: int) -> list[int]:
        """Return the links from server to server; what a card receives is a link of its own, ``num_links`` further."""
        if (source, target) not in self._ways:
            between = self._network.route(source, target).links
            self._ways[source, target] = [source, *between, num_links + target]
        return self._ways[source, target]


def _connected(links: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the places of those that links connect to each other, group by group."""
    groups: list[tuple[set[int], list[int]]] = []
    for place, own in enumerate(links):
        met = [group for group in groups if not group[0].isdisjoint(own)]
        groups = [group for group in groups if group[0].isdisjoint(own)]
        groups.append((set(own).union(*(group[0] for group in met)), [*(n for group in met for n in group[1]), place]))
    return [places for _, places in groups]


def _same_for_same(jobs: _Jobs, seconds: np.ndarray) -> list[float]:
    """Return mean times for messages that are alike: in the long run chance favours none of them."""
    alike: dict[tuple[tuple[_Message, ...], _Message], list[float]] = {}
    messages = [(own, message) for own in jobs for message in own]
    for message, each in zip(messages, seconds.tolist(), strict=True):
        alike.setdefault(message, []).append(each)
    return [sum(alike[message]) / len(alike[message]) for message in messages]


def _filled(ways: Sequence[Sequence[int]]) -> np.ndarray:
    """Return ways as rows of one table, filled up with -1."""
    longest = max(map(len, ways))
    return np.array([[*way, *[-1] * (longest - len(way))] for way in ways], np.int64)
