"""What happens to servers and jobs from outside, in order of time: drawn from causes of failures."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ddlsched.deferred import np
from ddlsched.errors import InputError
from ddlsched.units import MAX_NS, ns_from_s

if TYPE_CHECKING:
    from ddlsched.cluster.failure_causes import FailureCause


class CapacityChange(NamedTuple):
    """A server that goes or comes; ordered by time, then those that come first, then by server.

    ``warned`` is whether its jobs can save their work before it goes, ``cause`` why it goes, where that is known.
    """

    time_ns: int
    fails: bool
    server: int
    warned: bool = False
    cause: str = ""


class Strike(NamedTuple):
    """A failure that hits jobs while their servers stay: those on ``gpus``, or the one of number ``job``.

    They hang for ``hang_ns``; None: nobody notices. With a ``slowdown`` above 1 none hangs: the GPUs compute so many
    times as long until their server comes back.
    """

    time_ns: int
    cause: str
    gpus: range
    job: int
    hang_ns: int | None
    slowdown: float = 1.0


Change: TypeAlias = CapacityChange | Strike


class FailurePlaces(NamedTuple):
    """Where failures may happen: the first GPU of each server and the end, the servers of each rack, and the jobs.

    Of jobs it is their arrival (nanoseconds) and GPUs, by number; ``levels`` the unit of each server, by level.
    """

    first_gpus: Sequence[int]
    racks: Sequence[Sequence[int]] = ()
    jobs: Sequence[tuple[int, int]] = ()
    levels: Mapping[str, Sequence[int]] = MappingProxyType({})

    @property
    def num_servers(self) -> int:
        """How many servers there are."""
        return len(self.first_gpus) - 1

    def units(self, level: str) -> list[list[int]]:
        """Return the servers of each unit of a level, each server alone, or those at one switch (``rack``)."""
        if level == "server":
            return [[server] for server in range(self.num_servers)]
        if level == "rack" and self.racks:
            return [list(rack) for rack in self.racks]
        if level not in self.levels:
            known = ", ".join(["rack", *(name for name in self.levels if name not in ("server", "rack"))])
            raise InputError(f"failures: the topology has no level {level!r}; expected gpu, server, job, or {known}")
        units: dict[int, list[int]] = {}
        for server, unit in enumerate(self.levels[level]):
            units.setdefault(unit, []).append(server)
        return list(units.values())


class _Thing(NamedTuple):
    """Something that fails by a cause: the servers and GPUs that are hit, its part of the mean rate, and its server."""

    cause: FailureCause
    servers: Sequence[int]
    gpus: range
    job: int
    rate: float
    home: int = -1
    lemon: bool = False


_COMES, _GOES, _FAILS = range(3)


class DrawnChanges:
    """What fails and comes back, drawn from causes.

    A thing fails again after its repair. While its servers are down it cannot: such a failure is none, and the next is
    drawn from then. A server that is down already does not go down again, nor is its repair any later. Of a lemon that
    has been ``replaced``, as many failures are none as make its rate that of the others (exact of exponential times).
    What is slow goes at the latest at the next multiple of ``check_ns``; it is as before once its server has come back.
    """

    def __init__(
        self,
        causes: Sequence[FailureCause],
        places: FailurePlaces,
        rng: np.random.Generator,
        replaced: Collection[int] = (),
        check_ns: int = MAX_NS,
    ) -> None:
        self._rng, self._replaced, self._down = rng, replaced, set[int]()
        self._check_ns = check_ns
        self._slow: dict[int, int] = {}  # since when, of each thing that is slow
        self._coming: list[tuple[int, int, int, int, list[int]]] = []  # time, what, first server, thing, servers
        luck = rng.random(places.num_servers) if any(cause.lemon_share for cause in causes) else None
        self._things = [thing for cause in causes for thing in _things(cause, places, luck)]
        for number, thing in enumerate(self._things):
            arrival_ns = places.jobs[thing.job][0] if thing.job >= 0 else 0
            self._fails_after(arrival_ns, number)
        heapq.heapify(self._coming)

    def _fails_after(self, now_ns: int, number: int) -> None:
        """Note, without ordering, when a thing fails next."""
        thing = self._things[number]
        first = thing.servers[0] if thing.servers else thing.job
        at_ns = self._after(now_ns, thing.cause.scale_s / thing.rate, thing.cause.shape)
        self._coming.append((at_ns, _FAILS if thing.cause.hangs else _GOES, first, number, []))

    def _after(self, now_ns: int, scale_s: float, shape: float = 1.0) -> int:
        """Return a time at least a nanosecond later."""
        drawn_s = self._rng.exponential(scale_s) if shape == 1 else scale_s * self._rng.weibull(shape)
        return MAX_NS if drawn_s * 1e9 >= MAX_NS - now_ns else now_ns + max(1, ns_from_s(drawn_s))

    def changes(self) -> Iterator[Change]:
        """Yield all, in order of time, without an end."""
        carried_out = {_COMES: self._come, _GOES: self._go, _FAILS: self._fail}
        while self._coming and self._coming[0][0] < MAX_NS:
            now_ns, what, _, number, servers = heapq.heappop(self._coming)
            noted = len(self._coming)
            yield from carried_out[what](now_ns, number, servers)
            self._order(noted)

    def _order(self, noted: int) -> None:
        """Order what was noted since."""
        new = self._coming[noted:]
        del self._coming[noted:]
        for entry in new:
            heapq.heappush(self._coming, entry)

    def _come(self, now_ns: int, number: int, servers: list[int]) -> Iterator[Change]:
        self._down.difference_update(servers)
        mended = [slow for slow in self._slow if self._things[slow].home in servers]
        for slow in mended:
            del self._slow[slow]
        for thing in dict.fromkeys((number, *mended)):
            self._fails_after(now_ns, thing)
        return (CapacityChange(now_ns, False, server) for server in servers)

    def _is_none(self, thing: _Thing) -> bool:
        """Return whether a failure is one that a lemon would have, but not the server that has replaced it."""
        if not thing.lemon or thing.home not in self._replaced:
            return False
        return bool(self._rng.random() * thing.cause.lemon_times >= 1)

    def _go(self, now_ns: int, number: int, since: list[int]) -> Iterator[Change]:
        thing = self._things[number]
        cause = thing.cause
        if cause.slows and (since != [self._slow.get(number)] or self._down.issuperset(thing.servers)):
            return iter(())  # what is slow has been repaired, or is being
        if not cause.hangs and self._is_none(thing):
            self._fails_after(now_ns, number)
            return iter(())
        servers = [server for server in thing.servers if server not in self._down]
        if not servers:
            self._fails_after(now_ns, number)
        elif cause.repair_s != np.inf:
            self._coming.append((self._after(now_ns, cause.repair_s), _COMES, servers[0], number, servers))
        self._down.update(servers)
        return (CapacityChange(now_ns, True, server, cause.warned, cause.cause) for server in servers)

    def _fail(self, now_ns: int, number: int, _: list[int]) -> Iterator[Change]:
        thing = self._things[number]
        cause, hang_ns = thing.cause, thing.cause.noticed_ns
        if (thing.servers and self._down.issuperset(thing.servers)) or self._is_none(thing):
            self._fails_after(now_ns, number)
            return
        if cause.slows:
            self._slow[number] = now_ns
            found_ns = min(
                now_ns + (MAX_NS if hang_ns is None else hang_ns), -(-now_ns // self._check_ns) * self._check_ns
            )
            self._coming.append((found_ns, _GOES, thing.servers[0], number, [now_ns]))
            yield Strike(now_ns, cause.cause, thing.gpus, thing.job, None, cause.slowdown)
            return
        if cause.takes == "job" or hang_ns is None:
            self._fails_after(now_ns, number)
        else:
            self._coming.append((now_ns + hang_ns, _GOES, thing.servers[0], number, []))
        yield Strike(now_ns, cause.cause, thing.gpus, thing.job, hang_ns)


def _things(cause: FailureCause, places: FailurePlaces, luck: np.ndarray | None) -> Iterator[_Thing]:
    """Yield what may fail by a cause."""
    first, lemons = places.first_gpus, cause.lemon_share if luck is not None else 0.0
    mean = 1 + lemons * (cause.lemon_times - 1)
    if cause.per == "job":
        for job, (_, num_gpus) in enumerate(places.jobs):
            if num_gpus >= cause.least_gpus:
                yield _Thing(cause, (), range(0), job, 1.0)
        return
    single = cause.per in ("gpu", "server")
    hit = places.units("server" if single else cause.per)
    taken_with: dict[int, list[int]] = {}
    if cause.takes != "job":
        taken_with = {server: unit for unit in places.units(cause.takes) for server in unit}
    for servers in hit:
        lemon = luck is not None and single and luck[servers[0]] < lemons
        rate = (cause.lemon_times if lemon else 1.0) / mean if single else 1.0
        taken = taken_with.get(servers[0], servers)
        if not set(taken).issuperset(servers):
            raise InputError(f"failures, cause {cause.cause!r}: takes a {cause.takes}; none holds a whole {cause.per}")
        gpus = range(first[min(servers)], first[max(servers) + 1])
        for gpu in gpus if cause.per == "gpu" else (-1,):
            yield _Thing(cause, taken, gpus if gpu < 0 else range(gpu, gpu + 1), -1, rate, servers[0], bool(lemon))
