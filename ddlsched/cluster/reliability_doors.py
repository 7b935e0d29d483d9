"""Doors about failures: when a job saves its state, how it goes on after a failure, and which servers are taken out.

They are fields of :class:`~ddlsched.cluster.disturbances.Disturbances`, each a name of ``ddlsched list``, a class in a
file, or an instance; they are asked in Python, once a checkpoint or a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol, runtime_checkable

from ddlsched.plugins.names import made_of_text
from ddlsched.ranges import Checked, ranged


@dataclass(frozen=True, kw_only=True)
class CheckpointedJob:
    """What a checkpoint policy sees of a job that begins to train, or goes on after a checkpoint.

    Attributes
    ----------
    job_id, num_gpus
        The job, and how many GPUs it has.
    write_s
        For how long its last checkpoint held it up; before the first what one takes on a free network, seconds.
    restart_s
        For how long it holds its GPUs when it starts again, seconds.
    time_to_failure_s
        Mean time until one of the run's causes hits a job of its size, seconds; infinite without causes.
    now_s
        The time, seconds.
    """

    job_id: str
    num_gpus: int
    write_s: float
    restart_s: float
    time_to_failure_s: float
    now_s: float


@runtime_checkable
class CheckpointPolicy(Protocol):
    """When a job saves its state."""

    def interval_s(self, job: CheckpointedJob) -> float:
        """Return for how long it trains until it saves its state next, seconds above 0; infinite: never."""


@dataclass(frozen=True, kw_only=True)
class CheckpointStore(Checked, who="checkpoint store"):
    """Where jobs write their state, and from where they read it when they start again.

    Parameters
    ----------
    to
        A disk of each server; the memory of a peer, the next of the job's servers (of the cluster, if it has one), over
        the network; or storage, over the network.
    gb_per_s
        Of each server's disk, GB/s (1e9 B).
    servers
        Storage is on so many servers, the cluster's last, each as fast as its network card.
    background_share
        0: a job waits until its state is written. Otherwise it goes on meanwhile, and loses this share of the compute
        that writing takes on a free network; what goes over the network contends with all that is sent.
    """

    to: Literal["disk", "peer", "storage"] = "disk"
    gb_per_s: float = ranged(2.0, 0.0, above=True)
    servers: int = ranged(1, 1)
    background_share: float = ranged(0.0, 0.0, 1.0)

    @property
    def sends(self) -> bool:
        """Whether it sends state over the network."""
        return self.to != "disk"

    @classmethod
    def of(cls, given: CheckpointStore | str) -> CheckpointStore:
        """Return the store that a text such as ``storage:servers=2`` names, or the one that is given.

        Raises
        ------
        InputError
            It is none.
        """
        if isinstance(given, CheckpointStore):
            return given
        to, _, rest = str(given).partition(":")
        return made_of_text("checkpoint store", cls, f"to={to}" + (f",{rest}" if rest else ""))


class Wait(Enum):
    """The type of :data:`WAIT`."""

    WAIT = "wait"


WAIT: Literal[Wait.WAIT] = Wait.WAIT
"""A job keeps its other GPUs until the servers that failed are back."""


@dataclass(frozen=True, kw_only=True)
class StoppedJob:
    """What a recovery policy sees of a job that has lost servers.

    Attributes
    ----------
    job_id, num_gpus
        The job, and how many GPUs it had.
    servers
        Those that it was on, the lost ones included.
    lost
        Those that are down, with how many GPUs it had on each.
    spares
        Servers that are held back and there, with how many GPUs each has.
    racks
        The servers at each switch.
    can_shrink
        Whether it can go on with fewer GPUs: all of its workers do the same.
    now_s
        The time, seconds.
    """

    job_id: str
    num_gpus: int
    servers: tuple[int, ...]
    lost: Mapping[int, int]
    spares: Mapping[int, int]
    racks: Sequence[Sequence[int]]
    now_s: float
    can_shrink: bool = False


@runtime_checkable
class RecoveryPolicy(Protocol):
    """How a job goes on that has lost servers.

    A policy may have ``patience_s``: a job that has waited for so long, seconds, gives its GPUs back and queues.
    """

    @property
    def start_s(self) -> float:
        """For how long a job that takes a spare waits for it to start, seconds; 0 of a hot one."""

    def spares(self, num_servers: int, racks: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return the servers that are held back from the beginning; one that is taken is followed by one repaired."""

    def recover(self, stopped: StoppedJob) -> Mapping[int, int] | Wait | int | None:
        """Return how it goes on.

        For each lost server the spare that takes its place; :data:`WAIT`; with how many of the GPUs left it goes on,
        until all its servers are back; or None: it joins the queue.
        """


@runtime_checkable
class HealthPolicy(Protocol):
    """Which servers are taken for lemons, and how often jobs are checked for what nobody notices."""

    @property
    def check_s(self) -> float:
        """Every so often what nobody notices is found, seconds, and the job goes back to before it; may be infinite."""

    def replaces(self, failed_s: Sequence[float]) -> bool:
        """Return whether a server that failed at these times, the last of them now, is replaced by its repair."""
