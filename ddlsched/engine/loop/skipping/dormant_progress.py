"""How far a dormant job is: worked out from its one profiled iteration."""

from __future__ import annotations

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.layout import Records, State


@njit
def dormant_busy_ns(s: State, job: Records, from_ns: int, to_ns: int) -> int:
    """For how long each GPU of a dormant job computes between two times."""
    return dormant_busy_until_ns(s, job, to_ns) - dormant_busy_until_ns(s, job, max(from_ns, job.dormant_since_ns))


@njit
def dormant_busy_until_ns(s: State, job: Records, time_ns: int) -> int:
    passed_ns = time_ns - job.dormant_since_ns
    busy_ns = passed_ns // job.period_ns * job.period_busy_ns
    passed_ns %= job.period_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].transfer < 0:
            busy_ns += max(min(passed_ns, s.tasks[task].ends_ns) - s.tasks[task].begins_ns, 0)
    return busy_ns


@njit
def dormant_sending(s: State, job: Records, time_ns: int) -> int:
    """How many transfers of a dormant job run at a time."""
    if job.num_linked == 0:
        return 0
    passed_ns = (time_ns - job.dormant_since_ns) % job.period_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if task.begins_ns <= passed_ns < task.ends_ns:
            return 1
    return 0


@njit
def dormant_done_ns(s: State, job: Records) -> int:
    """Compute time of the tasks that a worker has ended while its job was dormant."""
    passed_ns = s.run[0].now_ns - job.dormant_since_ns
    done_ns = passed_ns // job.period_ns * job.compute_ns
    passed_ns %= job.period_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].transfer < 0 and s.tasks[task].ends_ns <= passed_ns:
            done_ns += s.tasks[task].duration_ns
    return done_ns


@njit
def dormant_sent_ns(s: State, job: Records) -> int:
    """Load of the all-reduces that have ended while their job was dormant."""
    passed_ns = s.run[0].now_ns - job.dormant_since_ns
    sent_ns = passed_ns // job.period_ns * job.period_load_ns
    passed_ns %= job.period_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if task.ends_ns <= passed_ns:
            sent_ns += task.load_ns
    return sent_ns
