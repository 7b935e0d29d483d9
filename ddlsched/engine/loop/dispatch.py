"""Step 5: every idle GPU takes a ready task."""

from __future__ import annotations

from ddlsched.engine.loop.heap import schedule
from ddlsched.engine.loop.order import copy_key, key_before, write_key
from ddlsched.engine.loop.tasks import take_ready, uneven_ns
from ddlsched.engine.loop.time_accounts import start_computing
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import KEY_WORDS
from ddlsched.engine.records.layout import State


@njit
def resident_to_run(s: State, gpu: int) -> int:
    """The worker whose ready task the GPU takes next, or -1."""
    run = s.run[0]
    best = s.gpus[gpu].first_ready
    if best < 0 or s.workers[best].next_ready < 0:
        return best  # most often no key is needed
    here = len(s.keys) // KEY_WORDS - 2
    best_job = s.workers[best].job
    write_key(s, best_job, here)
    number = s.workers[best].next_ready
    while number >= 0:
        job = s.workers[number].job
        write_key(s, job, here + 1)
        if key_before(s, run.key_words, here + 1, job, here, best_job):
            copy_key(s, run.key_words, here + 1, here)
            best, best_job = number, job
        number = s.workers[number].next_ready
    return best


@njit
def dispatch(s: State) -> None:
    """Step 5: every idle GPU takes a ready task."""
    run = s.run[0]
    for place in range(run.num_touched_gpus):
        gpu = s.touched_gpus[place]
        g = s.gpus[gpu]
        g.touched = 0
        if g.worker >= 0:
            continue
        number = resident_to_run(s, gpu)
        if number < 0:
            continue
        worker = s.workers[number]
        job = s.jobs[worker.job]
        start_computing(run, g, number, job, job.num_gpus if job.lockstep == 1 else g.group_size)
        g.task = take_ready(s, number)
        if job.uneven == 1 or worker.penalty_ppm > 0:
            end = run.now_ns + uneven_ns(s, number, g.task)
        else:
            end = run.now_ns + s.tasks[job.first_task + g.task].duration_ns
        if end < run.now_ns:
            run.clock_overflow = 1
            end = run.now_ns
        schedule(run, s.heap, s.position, s.end_ns, gpu, end)
    run.num_touched_gpus = 0
