"""Names of the built-in rules that the engine has a compiled form of.

The numbers stand in compiled code: never give one another meaning, only add. A policy or contention model
whose class states ``compiled`` is run by the engine without a call back to Python; its Python form gives
identical results (tests hold this) and is what a reader reads.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["CommunicationRule", "CompiledRule", "ContentionRule", "OrderRule", "compiled_rule"]


class OrderRule(IntEnum):
    """How jobs are ordered; ``PYTHON`` asks the policy's ``key``."""

    PYTHON = 0
    REMAINING_SERVICE = 1
    REMAINING_SERVICE_AND_COMMUNICATION = 2
    REMAINING_SERVICE_PER_GPU = 3
    ARRIVAL = 4
    ATTAINED_SERVICE = 5
    REMAINING_TIME = 6


class CommunicationRule(IntEnum):
    """Which ready transfers run; the ``PYTHON`` rules ask the policy's ``admit`` or ``select``."""

    PYTHON_ADMIT = 0
    PYTHON_SELECT = 1
    BOUNDED_OVERLAP = 2
    ADADUAL = 3
    PREEMPTIVE_BY_SERVICE = 4
    PREEMPTIVE_BY_SERVICE_PER_GPU = 5
    PREEMPTIVE_BY_BYTES = 6
    PREEMPTIVE_BY_TIME = 7


class ContentionRule(IntEnum):
    """How fast transfers go; ``PYTHON`` asks the model's ``rates``."""

    PYTHON = 0
    LINEAR = 1
    EQUAL_SHARE = 2
    MAX_MIN = 3


class CompiledRule(NamedTuple):
    """A rule and its one whole-number parameter (the limit of bounded overlap)."""

    rule: int
    parameter: int = 0


def compiled_rule(plugin: object, python: IntEnum) -> CompiledRule:
    """Return the compiled form that ``plugin``'s class states, or the ``python`` rule.

    What a subclass inherits counts only if it defines no method of its own: a decision that it overrides must
    not be ignored.
    """
    for kind in type(plugin).__mro__:
        if "compiled" in vars(kind):
            rule: CompiledRule | None = getattr(plugin, "compiled")  # noqa: B009
            return rule or CompiledRule(python)
        if any(callable(value) for name, value in vars(kind).items() if not name.startswith("__")):
            break
    return CompiledRule(python)
