"""What a change of a job's size costs: the time for which it holds its GPUs and makes no progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from ddlsched.errors import InputError
from ddlsched.ranges import check_fields, ranged

__all__ = ["ConstantRescaleCost", "Rescale", "RescaleCost"]


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """A change of a job's GPUs or batch, decided at one instant.

    Attributes
    ----------
    job_id, time_s
        Whose, and when.
    from_gpus, to_gpus
        GPUs before (and before any were lost) and after; ``from_gpus`` is 0 for a job that was stopped or new.
    from_batch, to_batch
        Samples an iteration; 0 before the first start.
    lost_gpus
        How many of ``from_gpus`` left with their servers at this instant.
    added_gpus, removed_gpus
        How many GPUs it has after that it had not before, and the other way round (the lost ones among them).
    to_servers
        How many servers it is on afterwards.
    is_first
        Whether it never ran before.
    pending_s
        What was left of an earlier change's time; this change's replaces it.
    lost_samples
        Progress that went: iterations since the last commit if servers were lost without warning; the iteration
        under way is not counted.
    """

    job_id: str
    time_s: float
    from_gpus: int
    to_gpus: int
    from_batch: int
    to_batch: int
    lost_gpus: int
    added_gpus: int
    removed_gpus: int
    to_servers: int
    is_first: bool
    pending_s: float
    lost_samples: int


RescaleCost: TypeAlias = Callable[[Rescale], float]
"""Returns the seconds that a change takes; any function of a :class:`Rescale` is one."""


@dataclass(frozen=True, kw_only=True)
class ConstantRescaleCost:
    """Constants by the kind of change, seconds; the dearest of those that apply, not their sum.

    Parameters
    ----------
    up_s
        The job gets a GPU that it had not.
    down_s
        It loses one or gives one up and goes on.
    resume_s
        It goes on from its checkpoint after it was stopped.
    start_s
        It starts for the first time.
    batch_s
        Only its batch changes.
    """

    up_s: float = ranged(0.0, 0.0)
    down_s: float = ranged(0.0, 0.0)
    resume_s: float = ranged(0.0, 0.0)
    start_s: float = ranged(0.0, 0.0)
    batch_s: float = ranged(0.0, 0.0)

    def __post_init__(self) -> None:
        check_fields(self, "rescale cost")

    @classmethod
    def parse(cls, text: str) -> ConstantRescaleCost:
        """Return the constants of a text such as ``up_s=18,down_s=12``, or ``restart_s=30`` for every change alike.

        Raises
        ------
        InputError
            A name that is none of these, or a value that is no time.
        """
        values: dict[str, float] = {}
        known = ["restart_s", *(field.name for field in fields(cls))]
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in known or name in values:
                raise InputError(f"rescale cost: {part!r} names no constant, or one again; expected {', '.join(known)}")
            try:
                values[name] = float(value)
            except ValueError:
                raise InputError(f"rescale cost: {name} is {value!r}; expected seconds from 0") from None
        restart_s = values.pop("restart_s", None)
        return cls(**values) if restart_s is None else replace(cls.restart(restart_s), **values)

    @classmethod
    def restart(cls, seconds: float) -> ConstantRescaleCost:
        """Return the cost of a checkpoint, stop and restart at every change; the first start is free."""
        return cls(up_s=seconds, down_s=seconds, resume_s=seconds, batch_s=seconds)

    def __call__(self, change: Rescale) -> float:
        """Return the seconds that a change takes."""
        if change.from_gpus == 0:
            return self.start_s if change.is_first else self.resume_s
        up_s = self.up_s if change.added_gpus else 0.0
        down_s = self.down_s if change.removed_gpus else 0.0
        return max(up_s, down_s) if change.added_gpus or change.removed_gpus else self.batch_s
