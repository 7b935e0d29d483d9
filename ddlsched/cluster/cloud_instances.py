"""Preemptible cloud instances as a capacity trace: given at a fixed price, taken away, replaced later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.cluster.capacity import CapacityTrace, Presence
from ddlsched.errors import InputError
from ddlsched.io.tables import cell_time_s, csv_rows, readable
from ddlsched.plugins.names import made_of_text
from ddlsched.ranges import LAST_S, check_fields, ranged

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CloudInstances", "capacity_of", "read_lifetimes"]

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
        import numpy as np

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
    return readable(Path(path), "a table of lifetimes (CSV)", _read)


def _read(path: Path) -> tuple[float, ...]:
    lives = tuple(
        cell_time_s(where, "lifetime_s", row["lifetime_s"]) for where, row in csv_rows(path, ["lifetime_s"], ())
    )
    if not lives:
        raise InputError(f"{path}: holds no lifetime; expected at least one row")
    return lives
