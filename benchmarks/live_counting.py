"""A script for ``ddlsched live`` that counts in place of training, so that it starts fast and needs no PyTorch.

Environment: PAUSE_S, how long a step takes, and SAVE_S, how long a commit takes.
"""

from __future__ import annotations

import os

from ddlsched.real.live.programs import count
from ddlsched.real.live.seat import Seat

if __name__ == "__main__" and Seat.here is not None:
    count(Seat.here, lambda _: float(os.environ["PAUSE_S"]), float(os.environ["SAVE_S"]))
