"""The numbers that stand for states, stages and kinds in the engine's records; known to readers of results too.

Nothing here needs numba. Compiled code reads the members of these classes as plain numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from ddlsched.policies.network_views import TransferState as TransferState


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
    POLICY_FAILED = 12
    PATHS = 13
    JUMPS = 14
    SPLIT = 15


class Door(IntEnum):
    """What was asked when a compiled policy failed."""

    ORDER = 0
    COMMUNICATION = 1
    CONTENTION = 2
    PATH = 3


class Communication(IntEnum):
    """How it is decided which ready transfers run.

    Python's ``admit`` or ``select``; a compiled ``admit``; a ``transfer_key``, compiled or Python's.
    """

    ASKED_TO_ADMIT = 0
    ASKED_TO_SELECT = 1
    ADMITS = 2
    KEYS = 3
    ASKED_FOR_KEYS = 4


class Contention(IntEnum):
    """Where rates come from.

    Python's ``rates``; a compiled ``link_rate``; compiled ``weight`` and ``level``; these two forms, asked in Python.
    """

    ASKED_FOR_RATES = 0
    LINK_RATES = 1
    SHARES = 2
    ASKED_FOR_LINK_RATES = 3
    ASKED_FOR_SHARES = 4


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


class Due(IntEnum):
    """Why a component is examined: a leap was cut short, or its anchor has begun an iteration."""

    GOES_ON = 1
    BEGINS = 2


class Stretch(IntEnum):
    """Where the sampling of a component stands: nowhere, in a stretch that is simulated exactly, or behind one."""

    NONE = 0
    EXACT = 1
    MEASURED = 2


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
ZERO: Any = np.int64(0)
ONE: Any = np.int64(1)

NEVER = np.int64(2**63 - 1)

FAILED = np.int64(-1)
"""What a compiled policy's entry returns if the policy raised or answered what cannot be."""

KEY_WORDS = 4
"""The most numbers that a compiled key may have."""

OFFLINE_BYTES = np.int64(2**62)
"""What the free memory of an absent server's GPUs is lowered by: less than any job needs is left."""

ROUNDS_BETWEEN_SIGNALS = 1_000_000
"""The loop visits Python after so many rounds, so that Ctrl-C is heard."""
