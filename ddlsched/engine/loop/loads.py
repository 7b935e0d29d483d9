"""The load of GPUs, by which placements choose."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.loop.skipping.dormant_progress import dormant_done_ns, dormant_sent_ns
from ddlsched.engine.loop.time_accounts import simulated_for
from ddlsched.engine.native.jit import NUMBERS, STATE, called_from_python, njit
from ddlsched.engine.records.layout import State


@njit
def load_of(s: State, gpu: int) -> int:
    """The load of a GPU: its residents' remaining compute and communication, nanoseconds."""
    compute_ns = load_ns = np.int64(0)
    for place in range(s.gpus[gpu].num_residents):
        number = s.residents[gpu, place]
        job = s.jobs[s.workers[number].job]
        simulated = s.workers[simulated_for(s, job, number)]
        done_ns = simulated.done_ns
        if job.dormant == 1:
            done_ns += dormant_done_ns(s, job)
            load_ns -= dormant_sent_ns(s, job)
        own_ns = job.compute_ns - s.workers[number].spared_ns
        left_ns = own_ns * job.start_iterations_left - done_ns
        if len(s.speeds) > 0:
            left_ns = np.int64(np.rint(left_ns / s.speeds[job.speed_row, s.gpus[gpu].kind]))
        compute_ns += left_ns
        load_ns += job.load_left_ns + (simulated.load_left_ns if job.grouped == 1 else 0)
    if s.gpus[gpu].relative_speed != 1.0:
        compute_ns = np.int64(np.rint(compute_ns / s.gpus[gpu].relative_speed))
    return load_ns + compute_ns


@called_from_python(STATE, NUMBERS, NUMBERS)
def fill_loads(s: State, gpus: np.ndarray, load_ns: np.ndarray) -> None:
    """Fill ``load_ns`` with the load of each GPU of ``gpus``."""
    for i in range(len(gpus)):
        load_ns[i] = load_of(s, gpus[i])
