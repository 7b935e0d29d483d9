"""Jobs as the mixes have them that run alone, as what a ring waits for its own servers is fitted to."""

from __future__ import annotations

from dataclasses import replace

import mixes
import numpy as np

from ddlsched.real.testbed.measuring import ITERATIONS
from ddlsched.workload.job import Job

JOBS, QUICK_JOBS = 36, 6
_CARD_BYTES_PER_S = 12.5e6
_SEED = 2312
"""Of another stream of random numbers than the mixes."""


def drawn(number: int) -> Job:
    """Return a job of one bucket on 2, 3 or 4 servers, in turn."""
    rng = np.random.default_rng([_SEED, number])
    job = mixes.job_of(f"alone-{number}", 2 + number % 3, _CARD_BYTES_PER_S, rng, mixes.FULL, late=False)
    return replace(job, iterations=ITERATIONS, iteration=replace(job.iteration, buckets=1))
