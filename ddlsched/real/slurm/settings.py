"""What an agent is told to do, and what it tells of what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddlsched.errors import InputError
from ddlsched.real.slurm.board import PolicyNames
from ddlsched.real.slurm.facts import JobFacts

__all__ = ["AgentEvent", "AgentSettings"]


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What an agent does, and what it may touch.

    Parameters
    ----------
    partition
        Only jobs of this one.
    user
        Only jobs of this user; None for those of everybody, which takes an operator's rights.
    policies
        Who decides.
    facts
        Facts of jobs by name, for those whose comment has none.
    every_s
        Seconds from one look at Slurm to the next; looks are at multiples of it by the clock.
    start_s
        A job that Slurm does not start within so many seconds of its release is held again.
    give_up_s
        For how long Slurm may be out of reach, seconds.
    dry_run
        Decide, and do nothing.
    """

    partition: str
    user: str | None
    policies: PolicyNames = field(default_factory=PolicyNames)
    facts: Mapping[str, JobFacts] = field(default_factory=dict)
    every_s: float = 1.0
    start_s: float = 60.0
    give_up_s: float = 3600.0
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name in ("every_s", "start_s", "give_up_s"):
            value = getattr(self, name)
            if not 0 < value <= 1e7:
                raise InputError(f"slurm-agent: {name} is {value}; expected seconds above 0, at most 1e7")


@dataclass(frozen=True)
class AgentEvent:
    """What an agent did: ``start``, ``stop``, ``end``, ``take back``, ``take apart``, ``refuse``, ``fail``."""

    time_s: float
    what: str
    job_id: int
    detail: str
