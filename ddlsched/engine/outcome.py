"""What a run is asked for beyond its inputs, and what it leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ddlsched.engine.loop.layout import Records, State
from ddlsched.errors import InputError
from ddlsched.network.contention import ContentionModel
from ddlsched.network.topology import Network
from ddlsched.units import MAX_NS, NS_PER_S
from ddlsched.workload.rescale import Rescale

__all__ = ["Finished", "Residency", "Span", "Window"]


@dataclass(frozen=True)
class Window:
    """The part of a run to record, seconds; with ``job_id`` only what touches that job's GPUs and links."""

    from_s: float = 0.0
    to_s: float = math.inf
    job_id: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s or self.from_s >= MAX_NS / NS_PER_S:
            raise InputError(f"timeline window {self.from_s}:{self.to_s}; expected 0 <= FROM < TO, seconds")


@dataclass(frozen=True)
class Span:
    """Which part of a run counts and when it is cut off, nanoseconds."""

    warmup_ns: int = 0
    until_ns: int = MAX_NS


@dataclass
class Residency:
    """A job's time on its GPUs, from placement to its finish, a failure or a change of size.

    It begins with ``hold_ns`` in which the job starts again; ``to_ns`` is -1 until it ends. ``links_of`` are the links
    that each all-reduce crosses, by its task's number, an entry a crossing.
    """

    job: int
    gpus: tuple[int, ...]
    links_of: dict[int, tuple[int, ...]]
    from_ns: int
    hold_ns: int = 0
    to_ns: int = -1

    @property
    def links(self) -> tuple[int, ...]:
        """The links of all its all-reduces, those of the same links once."""
        return tuple(chain.from_iterable(dict.fromkeys(self.links_of.values())))


@dataclass(frozen=True)
class Finished:
    """What a run leaves behind.

    Attributes
    ----------
    state, network
        The records and the links.
    contention
        The model, bound to the network.
    stays
        Every job's stays on GPUs, in the order of placement; slices name them by number.
    slices
        What was recorded of the timeline, in the order in which it ended.
    recorded_job_id
        The only job that was recorded, if it is one.
    rescales
        Job, change and its cost (nanoseconds) of every change of an elastic job, in order of time.
    outages
        Server, from, to (nanoseconds) of each time that a server was absent.
    busy_ns
        Compute time of each GPU after the warm-up.
    warmup_ns, end_ns
        Ends of the warm-up and of the run.
    engine_s
        Wall time.
    """

    state: State
    network: Network
    contention: ContentionModel
    stays: tuple[Residency, ...]
    slices: Records
    rescales: tuple[tuple[int, Rescale, int], ...]
    outages: tuple[tuple[int, int, int], ...]
    busy_ns: np.ndarray
    warmup_ns: int
    end_ns: int
    engine_s: float
    recorded_job_id: str | None = None

    @cached_property
    def gpus(self) -> dict[int, tuple[int, ...]]:
        """The GPUs of each job that was placed, by its number; those of its last stay."""
        return {stay.job: stay.gpus for stay in self.stays}
