"""An iteration starts, ends, and is followed by the next."""

from __future__ import annotations

from ddlsched.engine.loop.codes import JobState
from ddlsched.engine.loop.dormancy import fall_dormant
from ddlsched.engine.loop.gpu_groups import group_gpus, part_groups_of
from ddlsched.engine.loop.jit import njit
from ddlsched.engine.loop.profile import may_skip, profile_iteration
from ddlsched.engine.loop.tasks import begin_sources, compute_steps, end_all_reduce, should_be_lockstep
from ddlsched.engine.loop.time_accounts import book_computing, count_time
from ddlsched.engine.loop.transfers import join_waiting


@njit
def start_iteration(s, job):
    job.iteration_ns = s.run[0].now_ns
    job.steps_left = compute_steps(job) + job.num_transfers
    lockstep = should_be_lockstep(job)
    if lockstep != job.lockstep:
        count_time(job, s.run[0].now_ns)
        if lockstep == 1:
            part_groups_of(s, job)
        if lockstep == 1 and len(s.penalties_ppm) > 0:
            book_computing(s, job)  # workers with other neighbours have computed for other times
        job.lockstep = lockstep
    if lockstep == 1 and may_skip(s, job):
        if job.profiled == 0:
            job.profiled = 1 if profile_iteration(s, job) else -1
        if job.profiled == 1 and fall_dormant(s, job):
            return
    if lockstep == 0 and job.uneven == 0 and s.run[0].grouping == 1:
        if job.group_wait == 0:
            group_gpus(s, s.workers[job.first_worker].job)
        else:
            job.group_wait -= 1
    if job.anchor == 1 and job.due == 0:
        job.due, job.next_due = 1, s.run[0].first_due
        s.run[0].first_due = s.workers[job.first_worker].job
    begin_sources(s, job)


@njit
def do_work(s):
    """Step 2: collectives become ready (without a link: end), and iterations end."""
    run = s.run[0]
    while run.num_work > 0:
        run.num_work -= 1
        code = s.work[run.num_work]
        if code >= 0:
            transfer = s.transfers[code]
            if transfer.num_entries == 0:
                end_all_reduce(s, code)
            else:
                transfer.bytes_left = transfer.bytes
                transfer.parts_sent = 0
                transfer.latency_left_ns = transfer.latency_ns
                join_waiting(s, code)
                run.communicate = 1
            continue
        job = s.jobs[-1 - code]
        job.iterations_left -= 1
        if job.shared_gpus > 0 or job.shared_links > 0:
            run.contended_iterations += 1
        if (job.start_iterations_left - job.iterations_left) % run.checkpoint_iterations == 0:
            job.checkpoint_ns = run.now_ns
        if job.num_linked == 0 and job.num_tasks == job.num_transfers:
            job.iterations_left = 0  # nothing but collectives without a link takes no time, however often
        if job.iterations_left > 0:
            start_iteration(s, job)
        else:
            count_time(job, run.now_ns)
            job.state = JobState.FINISHED
            job.finish_ns = run.now_ns
            s.finished[run.num_finished] = -1 - code
            run.num_finished += 1
