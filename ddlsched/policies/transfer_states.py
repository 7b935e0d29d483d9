"""States of a transfer."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["TransferState"]


class TransferState(IntEnum):
    """A transfer that is paused waits."""

    IDLE = 0
    WAITING = 1
    ACTIVE = 2
