"""Numbers of the rules of built-in policies."""

from __future__ import annotations

import numpy as np

PYTHON_ORDER, REMAINING_SERVICE, WITH_COMMUNICATION, PER_GPU, ARRIVAL, ATTAINED, REMAINING_TIME = (
    np.int64(number) for number in range(7)
)
PYTHON_ADMIT, PYTHON_SELECT, BOUNDED_OVERLAP, ADADUAL, BY_SERVICE, BY_SERVICE_PER_GPU, BY_BYTES = 0, 1, 2, 3, 4, 5, 6
BY_TIME = 7
PYTHON_RATES, LINEAR, EQUAL_SHARE, MAX_MIN = 0, 1, 2, 3
