"""Which servers are there when: clusters whose servers join and leave, from a table or as preemptible instances do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import inf
from pathlib import Path

from ddlsched.cluster.capacity_changes import CapacityChange
from ddlsched.cluster.disturbances import end_ns, overlap
from ddlsched.deferred import np
from ddlsched.errors import InputError
from ddlsched.io.tables import cell_time_s, cell_whole, csv_rows, located, readable
from ddlsched.plugins.names import made_of_text
from ddlsched.ranges import LAST_S, check_fields, ranged
from ddlsched.units import MAX_NS, is_whole, ns_from_s


@dataclass(frozen=True, kw_only=True)
class Presence:
    """A server that is there from one time to another, seconds.

    Parameters
    ----------
    server
        Its number in the cluster.
    join_s, leave_s
        It is there at ``join_s`` and no longer at ``leave_s``, which may be infinite.
    warned
        Whether jobs are told in time to commit their last whole iteration before it leaves.
    """

    server: int
    join_s: float = 0.0
    leave_s: float = inf
    warned: bool = False

    def __post_init__(self) -> None:
        if not is_whole(self.server, 0):
            raise InputError(f"capacity: server is {self.server!r}; expected a server's number, from 0")
        if not 0 <= self.join_s <= LAST_S or not ns_from_s(self.join_s) < end_ns(self.leave_s):
            raise InputError(f"capacity: join_s {self.join_s}, leave_s {self.leave_s}; expected 0 <= join_s < leave_s")


@dataclass(frozen=True)
class CapacityTrace:
    """When each server is there; one that is not named never is.

    Stays of a server that touch are one: it does not leave in between.

    Parameters
    ----------
    presences
        In any order; those of a server do not overlap.

    Raises
    ------
    InputError
        None are given, or two of a server overlap.
    """

    presences: tuple[Presence, ...]

    def __post_init__(self) -> None:
        if not self.presences:
            raise InputError("capacity: names no server; expected at least one")
        if pair := overlap(map(_stay, self.presences)):
            (server, join_s, leave_s), (_, again_s, _) = pair
            raise InputError(
                f"capacity: server {server} is there from {join_s} to {leave_s} s and joins again at {again_s} s; "
                "expected stays of a server that do not overlap"
            )

    @classmethod
    def of(cls, presences: Iterable[tuple[int, float, float]]) -> CapacityTrace:
        """Build from (server, join_s, leave_s)."""
        return cls(tuple(Presence(server=server, join_s=join, leave_s=leave) for server, join, leave in presences))

    @classmethod
    def read(cls, path: str | Path) -> CapacityTrace:
        """Read a CSV table with the columns server, join_s, leave_s (empty: to the end) and optionally warned (0, 1).

        Raises
        ------
        InputError
            With file, row, column, value and what is expected.
        """
        return readable(Path(path), "a capacity trace (CSV)", _read)

    def changes(self, num_servers: int) -> Iterator[CapacityChange]:
        """Return who joins and leaves, in order of time; those that are not there at first leave at 0.

        Raises
        ------
        InputError
            A server that the cluster does not have.
        """
        changes = []
        at_first = set()
        for server, presences in groupby(sorted(self.presences, key=_stay), key=lambda presence: presence.server):
            if server >= num_servers:
                raise InputError(f"capacity of server {server}: the cluster's servers are 0 to {num_servers - 1}")
            for join_ns, leave_ns, warned in _joined(presences):
                if join_ns == 0:
                    at_first.add(server)
                else:
                    changes.append(CapacityChange(join_ns, False, server))
                if leave_ns < MAX_NS:
                    changes.append(CapacityChange(leave_ns, True, server, warned))
        changes += [CapacityChange(0, True, server) for server in range(num_servers) if server not in at_first]
        return iter(sorted(changes))


def _stay(presence: Presence) -> tuple[int, float, float]:
    return presence.server, presence.join_s, presence.leave_s


def _joined(presences: Iterable[Presence]) -> list[tuple[int, int, bool]]:
    """Return (join, leave, warned) of one server's stays in ascending order, nanoseconds; those that touch as one."""
    joined: list[tuple[int, int, bool]] = []
    for presence in presences:
        join_ns, leave_ns = ns_from_s(presence.join_s), end_ns(presence.leave_s)
        if joined and joined[-1][1] >= join_ns:
            join_ns = joined.pop()[0]
        joined.append((join_ns, leave_ns, presence.warned))
    return joined


def _read(path: Path) -> CapacityTrace:
    placed = []
    for where, row in csv_rows(path, ("server", "join_s", "leave_s"), ("warned",)):
        server = cell_whole(where, "server", row["server"], at_least=0)
        join_s = cell_time_s(where, "join_s", row["join_s"])
        leave_s = cell_time_s(where, "leave_s", row["leave_s"]) if row["leave_s"] else inf
        warned = row.get("warned", "") != "" and cell_whole(where, "warned", row["warned"], at_most=1, at_least=0) == 1
        make = lambda: Presence(server=server, join_s=join_s, leave_s=leave_s, warned=warned)  # noqa: B023, E731
        placed.append((where, located(where, make)))
    pair = overlap(_stay(presence) for _, presence in placed)
    place = next((where for where, presence in placed if pair and _stay(presence) == pair[1]), str(path))
    return located(place, lambda: CapacityTrace(tuple(presence for _, presence in placed)))


_PREFIX = "instances:"
_MOST_STAYS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class CloudInstances:
    """Every server is an instance that lives for a random time; another takes its place after a random wait.

    All are there at time 0 and new. Those that are there at ``until_s`` are there to the end of the run.

    Parameters
    ----------
    mean_life_s
        Mean lifetime, seconds, exponentially distributed.
    lifetimes
        In place of it, lifetimes that were observed, of which one is drawn each time: numbers, seconds, or a CSV file
        with the column lifetime_s.
    mean_wait_s
        Mean time until an instance that was taken away is replaced, seconds, exponentially distributed.
    until_s
        For how long instances come and go, seconds.
    warned
        Whether jobs are told in time to commit their last whole iteration, as clouds do half a minute to two ahead.
    seed
        Of the draws.

    Raises
    ------
    InputError
        A value out of range, neither a mean nor lifetimes, or both.
    """

    mean_life_s: float | None = ranged(None, 1e-3, LAST_S)
    lifetimes: tuple[float, ...] | str = ()
    mean_wait_s: float = ranged(60.0, 1e-3, LAST_S)
    until_s: float = ranged(7 * 86_400.0, 1e-3, LAST_S)
    warned: bool = False
    seed: int = ranged(0, 0)

    def __post_init__(self) -> None:
        lives = read_lifetimes(self.lifetimes) if isinstance(self.lifetimes, str | Path) else tuple(self.lifetimes)
        object.__setattr__(self, "lifetimes", lives)
        if (self.mean_life_s is None) == (not lives):
            raise InputError("instances: expected either mean_life_s or lifetimes")
        check_fields(self, "instances")
        for life_s in lives:
            if not 1e-3 <= life_s <= LAST_S:
                raise InputError(f"instances: a lifetime is {life_s}; expected seconds from 0.001")

    @classmethod
    def parse(cls, text: str) -> CloudInstances:
        """Return what a text says, such as ``instances:mean_life_s=7200,mean_wait_s=60,until_s=86400,seed=1``.

        Raises
        ------
        InputError
            A name or a value that is none, or one out of range.
        """
        return made_of_text("instances", cls, text.removeprefix(_PREFIX))

    def trace(self, num_servers: int) -> CapacityTrace:
        """Return when each of so many servers is there.

        Raises
        ------
        InputError
            They would come and go more than ten million times.
        """
        seen_s = np.array(self.lifetimes, np.float64)
        mean_life_s = float(seen_s.mean()) if self.mean_life_s is None else self.mean_life_s
        if num_servers * self.until_s / (mean_life_s + self.mean_wait_s) > _MOST_STAYS:
            raise InputError(
                f"instances: {num_servers} servers would come and go more than {_MOST_STAYS:,} times in until_s "
                f"{self.until_s:g}; expected longer lives or a shorter time"
            )
        rng = np.random.default_rng(self.seed)
        stays = (stay for server in range(num_servers) for stay in self._stays(server, seen_s, rng))
        return CapacityTrace(tuple(stays))

    def _stays(self, server: int, seen_s: np.ndarray, rng: np.random.Generator) -> Iterator[Presence]:
        join_s = leave_s = 0.0
        while join_s < self.until_s:
            life_s = rng.choice(seen_s) if self.mean_life_s is None else max(rng.exponential(self.mean_life_s), 1e-3)
            leave_s = join_s + float(life_s)
            leave_s = leave_s if leave_s < self.until_s else inf
            yield Presence(server=server, join_s=join_s, leave_s=leave_s, warned=self.warned)
            join_s = leave_s + max(rng.exponential(self.mean_wait_s), 1e-3)
        if leave_s < inf:  # Its replacement comes after ``until_s``.
            yield Presence(server=server, join_s=join_s, leave_s=inf, warned=self.warned)


def capacity_of(given: str | Path, num_servers: int) -> CapacityTrace:
    """Return what ``--capacity`` names: the trace in a file, or that of ``instances:...``.

    Raises
    ------
    InputError
        The file or the text cannot be used.
    """
    text = str(given)
    return CloudInstances.parse(text).trace(num_servers) if text.startswith(_PREFIX) else CapacityTrace.read(given)


def read_lifetimes(path: str | Path) -> tuple[float, ...]:
    """Read a CSV table of observed lifetimes with the column lifetime_s.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected; also if it has no row.
    """
    rows = readable(Path(path), "a table of lifetimes (CSV)", lambda file: list(csv_rows(file, ["lifetime_s"], ())))
    if not rows:
        raise InputError(f"{path}: holds no lifetime; expected at least one row")
    return tuple(cell_time_s(where, "lifetime_s", row["lifetime_s"]) for where, row in rows)
