"""What schedulers are held against: the plainest policies, and what a stop costs."""

from __future__ import annotations

from typing import Any

from ddlsched import Disturbances

PLAIN: dict[str, Any] = {
    "placement": "first-fit",
    "order": "fifo",
    "communication": "bounded-overlap:limit=100000",
    "contention": "max-min",
    "path": "ecmp",
}
"""A FIFO queue that skips what does not fit, on the first free GPUs; transfers start when ready, as with TCP."""
PRICES = Disturbances(restart_s=30.0, state_mb=3500.0)
"""What going on after a stop costs, whoever stopped a job: time, and what each GPU takes along to other servers."""
