"""What a job does that has lost a server: it waits for it, takes a spare, or goes on with fewer GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

from ddlsched.cluster.reliability_doors import WAIT, StoppedJob, Wait
from ddlsched.errors import InputError
from ddlsched.ranges import LAST_S, Checked, ranged


class _WithoutSpares:
    """Holds no servers back."""

    start_s: ClassVar[float] = 0.0
    """Nothing: there are no spares."""

    def spares(self, num_servers: int, racks: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return none."""
        return ()


@dataclass(frozen=True, kw_only=True)
class WaitForRepair(_WithoutSpares):
    """The job keeps its other GPUs until its servers are back, or gives way to others.

    Parameters
    ----------
    patience_s
        After so long it gives its GPUs back and queues, seconds; by default never.
    """

    patience_s: float = inf

    def __post_init__(self) -> None:
        if not self.patience_s > 0:
            raise InputError(f"wait: patience_s is {self.patience_s!r}; expected seconds above 0")

    def recover(self, stopped: StoppedJob) -> Wait:
        """Return that it waits."""
        return WAIT


@dataclass(frozen=True, kw_only=True)
class Shrink(_WithoutSpares, Checked, who="shrink"):
    """The job goes on with the data-parallel replicas that are left, until its servers are back.

    Each replica takes a larger part of the batch, which stays as large as it was.

    Parameters
    ----------
    replica_gpus
        GPUs of a replica: it goes on with a multiple of so many.
    least_share
        With less than this part of its GPUs it does not.
    otherwise
        What a job does then, and one whose workers do different things: it waits for the repair, or queues.
    """

    replica_gpus: int = ranged(1, 1)
    least_share: float = ranged(0.5, 0.0, 1.0)
    otherwise: Literal["wait", "queue"] = "queue"

    def recover(self, stopped: StoppedJob) -> int | Wait | None:
        """Return how many GPUs are left in whole replicas; otherwise what a job with too few does."""
        left = (stopped.num_gpus - sum(stopped.lost.values())) // self.replica_gpus * self.replica_gpus
        if stopped.can_shrink and left >= max(self.least_share * stopped.num_gpus, 1):
            return left
        return WAIT if self.otherwise == "wait" else None


@dataclass(frozen=True, kw_only=True)
class Spares(Checked, who="spares"):
    """Servers are held back, and take the place of those that fail.

    Parameters
    ----------
    count
        How many: the last of each rack in turn, so that they are spread over the racks.
    where
        Whether a spare must be in the rack of the server that failed.
    start_s
        What a spare takes to start, seconds; 0 is a hot one.
    otherwise
        What a job does for which there is none: it waits for the repair, or gives its other GPUs back.
    """

    count: int = ranged(1, 1)
    where: Literal["rack", "anywhere"] = "anywhere"
    start_s: float = ranged(0.0, 0.0, LAST_S)
    otherwise: Literal["wait", "queue"] = "queue"

    def spares(self, num_servers: int, racks: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return the last servers of each rack, a rack after another, then those before them.

        Raises
        ------
        InputError
            The cluster has no more servers than that.
        """
        if self.count >= num_servers:
            raise InputError(f"spares: count is {self.count}; expected fewer than the cluster's {num_servers} servers")
        racks = racks or [range(num_servers)]
        longest = max(map(len, racks))
        last_first = [rack[-1 - place] for place in range(longest) for rack in racks if place < len(rack)]
        return last_first[: self.count]

    def recover(self, stopped: StoppedJob) -> Mapping[int, int] | Wait | None:
        """Return a spare for each lost server, the nearest first; otherwise what a job without one does."""
        rack_of = {server: number for number, rack in enumerate(stopped.racks) for server in rack}
        taken: dict[int, int] = {}
        near = [rack_of.get(server) for server in stopped.servers]
        for server, gpus in stopped.lost.items():
            free = [spare for spare, has in stopped.spares.items() if has >= gpus and spare not in taken.values()]
            own = [spare for spare in free if rack_of.get(spare) == rack_of.get(server)]
            others = [] if self.where == "rack" else sorted(free, key=lambda spare: rack_of.get(spare) not in near)
            if not own and not others:
                return WAIT if self.otherwise == "wait" else None
            taken[server] = (own or others)[0]
        return taken
