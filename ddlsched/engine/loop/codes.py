"""The numbers that stand for states, stages and kinds in the engine's records; known to readers of results too.

Nothing here needs numba. Compiled code reads the members of these classes as plain numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = [
    "NEVER",
    "OFFLINE_BYTES",
    "ONE",
    "ROUNDS_BETWEEN_SIGNALS",
    "ZERO",
    "JobState",
    "Question",
    "SliceKind",
    "Stage",
    "TransferState",
]


class Question(IntEnum):
    """What the loop needs of Python when it returns."""

    DONE = 0
    KEYS = 1
    PLACEMENT = 2
    COMMUNICATION = 3
    RATES = 4
    FLUSH = 5
    HEAR_SIGNALS = 6
    STUCK = 7
    CLOCK_OVERFLOW = 8
    CAPACITY = 9
    PAUSED = 10
    ALLOCATION = 11


class Stage(IntEnum):
    """Where in an instant the loop stands.

    Steps 1 and 2; capacity changes; the keys of an order that is asked in Python; step 3 in two parts; step 4; rates;
    step 5.
    """

    EVENTS = 0
    CAPACITY = 1
    KEYS = 2
    ALLOCATION = 3
    PLACEMENT = 4
    COMMUNICATION = 5
    RATES = 6
    DISPATCH = 7


class JobState(IntEnum):
    """States of a job."""

    FUTURE = 0
    QUEUED = 1
    RUNNING = 2
    FINISHED = 3
    DROPPED = 4


class TransferState(IntEnum):
    """States of a transfer; one that is paused waits."""

    IDLE = 0
    WAITING = 1
    ACTIVE = 2


class SliceKind(IntEnum):
    """Kinds of recorded slices.

    A worker computes; all of a job's workers in lockstep do; a transfer runs; a failure cuts a worker's task short; a
    transfer waits.
    """

    COMPUTE = 0
    LOCKSTEP = 1
    TRANSFER = 2
    CUT = 3
    WAIT = 4


# As 64-bit numbers: numba would compile a function anew for each plain number that it is given.
ZERO, ONE = np.int64(0), np.int64(1)

NEVER = np.int64(2**63 - 1)

OFFLINE_BYTES = np.int64(2**62)
"""What the free memory of an absent server's GPUs is lowered by: less than any job needs is left."""

ROUNDS_BETWEEN_SIGNALS = 1_000_000
"""The loop visits Python after so many rounds, so that Ctrl-C is heard."""
