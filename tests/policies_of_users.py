"""Policies and models as users write them: plain classes in a file of their own, which the engine compiles.

Each does something that no built-in one does. None is a good policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ddlsched.network.contention import EqualShare, MaxMin

# ---- orders


@dataclass(frozen=True, kw_only=True)
class FewestGpus:
    """The narrowest job, of those the one with the least service left."""

    def key(self, job: Any, now_s: float) -> Any:
        return job.num_gpus, job.remaining_service_ns


@dataclass(frozen=True, kw_only=True)
class Ageing:
    """Short jobs first, but a job gains by the time that it has been there."""

    gain: float = 3.0

    def key(self, job: Any, now_s: float) -> float:
        return job.remaining_service_ns / 1e9 - self.gain * (now_s - job.arrival_s)


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Shortest first at every other instant at which it is asked, else longest first: memory in numbers."""

    def begin(self, cluster: Any, rng: Any) -> _Turns:
        return _Turns()

    def key(self, job: Any, now_s: float) -> int:
        return _Turns().key(job, now_s)


class _Turns:
    def __init__(self) -> None:
        self.asked_s = -1.0
        self.turn = 0

    def key(self, job: Any, now_s: float) -> int:
        if now_s > self.asked_s:
            self.asked_s = now_s
            self.turn += 1
        if self.turn % 2 == 0:
            return job.remaining_service_ns
        return -job.remaining_service_ns


@dataclass(frozen=True, kw_only=True)
class LeastAsked:
    """The job about which it has been asked the fewest times: memory in an array."""

    def begin(self, cluster: Any, rng: Any) -> _LeastAsked:
        return _LeastAsked()

    def key(self, job: Any, now_s: float) -> int:
        return _LeastAsked().key(job, now_s)


class _LeastAsked:
    def __init__(self) -> None:
        self.times = np.zeros(1000, np.int64)

    def key(self, job: Any, now_s: float) -> int:
        self.times[job.number] = self.times[job.number] + 1
        return self.times[job.number] // 2


# ---- which paths flows take


@dataclass(frozen=True, kw_only=True)
class Quietest:
    """The path with the fewest flows now, of those the one with the fewest jobs, of those the last."""

    def path(self, flow: Any, network: Any) -> int:
        loads = [
            (sum(map(network.flows_on, links)), sum(map(network.jobs_on, links)), -number)
            for number, links in enumerate(flow.paths)
        ]
        return loads.index(min(loads))


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """One path after the other, whatever the flow: memory."""

    def begin(self, cluster: Any, rng: Any) -> _RoundRobin:
        return _RoundRobin(int(rng.integers(100)))

    def path(self, flow: Any, network: Any) -> int:
        return _RoundRobin(0).path(flow, network)


@dataclass(frozen=True, kw_only=True)
class Whimsical(RoundRobin):
    """One path after the other, anew for every transfer, but around jobs and flows."""

    chosen: ClassVar[str] = "transfer"

    def begin(self, cluster: Any, rng: Any) -> _Whimsical:
        return _Whimsical(int(rng.integers(100)))


class _RoundRobin:
    def __init__(self, first: int) -> None:
        self.next = first

    def path(self, flow: Any, network: Any) -> int:
        self.next += 1
        return (self.next + flow.number) % len(flow.paths)


class _Whimsical(_RoundRobin):
    chosen = "transfer"
    compiled = False

    def path(self, flow: Any, network: Any) -> int:
        loads = [sum(network.flows_on(link) + network.jobs_on(link) for link in links) for links in flow.paths]
        turn = super().path(flow, network)
        return (turn + loads.index(min(loads))) % len(flow.paths)


# ---- which transfers run


@dataclass(frozen=True, kw_only=True)
class SmallerFirst:
    """Next to larger transfers only; the README's."""

    limit: int = 2

    def admit(self, transfer: Any, network: Any) -> bool:
        met = network.met_by(transfer)
        return len(met) < self.limit and all(transfer.message_bytes <= other.bytes_left for other in met)


@dataclass(frozen=True, kw_only=True)
class ByTheClock:
    """Overlaps in every other hundredth of a second; what it refuses it might start later without any change."""

    def admit(self, transfer: Any, network: Any) -> bool:
        if network.most_on_links_of(transfer) == 0:
            return True
        return network.now_s % 0.02 < 0.01 and network.num_on(transfer.links[0]) < 3


@dataclass(frozen=True, kw_only=True)
class FewAtATime:
    """So many in the whole network, wherever they are, and of those that wait the smallest."""

    most: int = 2

    def admit(self, transfer: Any, network: Any) -> bool:
        if len(network.active) >= self.most:
            return False
        return all(transfer.message_bytes <= other.message_bytes for other in network.waiting)


@dataclass(frozen=True, kw_only=True)
class SmallMessages:
    """The smallest message first."""

    def transfer_key(self, transfer: Any, network: Any) -> float:
        return transfer.message_bytes


@dataclass(frozen=True, kw_only=True)
class BytesTimesGpus:
    """The fewest bytes left times the job's GPUs."""

    key_falls_while_sending: ClassVar[bool] = True

    def transfer_key(self, transfer: Any, network: Any) -> float:
        return transfer.bytes_left * transfer.job.num_gpus


# ---- how they share links


@dataclass(frozen=True, kw_only=True)
class Quadratic(EqualShare):
    """Contention costs more the more there are, and wide jobs more than others."""

    def link_rate(self, transfer: Any, link: Any) -> float:
        others = link.num_transfers - 1
        slower = 1.0 + others + 0.125 * others * others * transfer.job.num_gpus
        return link.bandwidth_bytes_per_s / slower


@dataclass(frozen=True, kw_only=True)
class LateIterations(EqualShare):
    """A rate that depends on how far the job is: when it is asked shows."""

    def link_rate(self, transfer: Any, link: Any) -> float:
        return link.bandwidth_bytes_per_s / (link.num_transfers + transfer.job.iterations_left % 3)


@dataclass(frozen=True, kw_only=True)
class SizeWeights(MaxMin):
    """Jobs of 1, 2, 3 and more GPUs share in proportion."""

    def weight(self, transfer: Any) -> float:
        return float(min(transfer.job.num_gpus, 3))


@dataclass(frozen=True, kw_only=True)
class IterationWeights(MaxMin):
    """Weights that change as a job goes on: when they are asked shows."""

    def weight(self, transfer: Any) -> float:
        return 1.0 + transfer.job.iterations_left % 3 / 2


@dataclass(frozen=True, kw_only=True)
class SizeLevels(SizeWeights):
    """Small messages before large ones, which may stand still."""

    def level(self, transfer: Any) -> int:
        if transfer.message_bytes < 10e6:
            return 0
        return 1 if transfer.message_bytes < 100e6 else 2


@dataclass(frozen=True, kw_only=True)
class IterationLevels(MaxMin):
    """Who goes before whom changes from iteration to iteration."""

    def level(self, transfer: Any) -> int:
        return transfer.job.iterations_left % 2


@dataclass(frozen=True, kw_only=True)
class Tiring(EqualShare):
    """A rate on a link that falls with each third of the message."""

    message_parts: ClassVar[int] = 3

    def link_rate(self, transfer: Any, link: Any) -> float:
        sent = transfer.bytes_sent / max(transfer.message_bytes, 1.0)
        return link.bandwidth_bytes_per_s / (link.num_transfers * (1.0 + sent))


@dataclass(frozen=True, kw_only=True)
class LateRush(MaxMin):
    """The last of four parts of a message goes before all else; shares are in proportion to GPUs."""

    message_parts: ClassVar[int] = 4

    def level(self, transfer: Any) -> int:
        return 0 if transfer.bytes_left <= 0.25 * transfer.message_bytes else 1

    def weight(self, transfer: Any) -> float:
        return float(transfer.job.num_gpus)
