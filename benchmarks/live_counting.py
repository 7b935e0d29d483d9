"""A script for ``ddlsched live`` that counts in place of training, so that it starts fast and needs no PyTorch.

Environment: STEP_S, how long a step takes, SAVE_S, how long a commit takes, and READY_AT_S, from when on (of the clock
that nobody sets) it takes part.
"""

from __future__ import annotations

import os
import time

from ddlsched.real.live.programs import count
from ddlsched.real.live.seat import Seat

if __name__ == "__main__" and Seat.here is not None:
    time.sleep(max(float(os.environ["READY_AT_S"]) - time.monotonic(), 0.0))
    count(Seat.here, lambda _: float(os.environ["STEP_S"]), float(os.environ["SAVE_S"]))
