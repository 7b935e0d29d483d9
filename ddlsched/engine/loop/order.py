"""Who goes first: (major, minor, number), smallest first; numbers are unique, so the order is total."""

from __future__ import annotations

from ddlsched.engine.loop.jit import njit
from ddlsched.engine.loop.rules import (
    ARRIVAL,
    ATTAINED,
    PER_GPU,
    PYTHON_ORDER,
    REMAINING_SERVICE,
    REMAINING_TIME,
    WITH_COMMUNICATION,
)


@njit
def major_key(rule, job):
    if rule == REMAINING_SERVICE:
        return job.remaining_service_ns
    if rule == WITH_COMMUNICATION:
        return job.remaining_service_ns + job.iterations_left * job.communication_ns * job.num_gpus
    if rule == PER_GPU:
        return job.remaining_service_ns // job.num_gpus
    if rule == REMAINING_TIME:
        return job.remaining_service_ns // job.num_gpus + job.iterations_left * job.communication_ns
    if rule == ARRIVAL:
        return job.arrival_ns
    if rule == ATTAINED:
        return job.service_ns - job.remaining_service_ns
    return job.rank


@njit
def minor_key(rule, job):
    """The fraction left by a division; exact, since fractions of fewer than 1e7 GPUs differ as floats."""
    if rule in (PER_GPU, REMAINING_TIME):
        return (job.remaining_service_ns % job.num_gpus) / job.num_gpus
    return 0.0


@njit
def sort_items(items, major, minor, count):
    """Sort by (major, minor, item); Shell's sort, each gap 9/4 of the next; for short lists insertion sort."""
    gap = 1
    while gap * 9 < count * 4:
        gap = gap * 9 // 4 + 1
    while gap > 0:
        for place in range(gap, count):
            item, a, b = items[place], major[place], minor[place]
            hole = place
            while hole >= gap:
                left = hole - gap
                if major[left] < a:
                    break
                if major[left] == a and (minor[left] < b or (minor[left] == b and items[left] < item)):
                    break
                items[hole], major[hole], minor[hole] = items[left], major[left], minor[left]
                hole = left
            items[hole], major[hole], minor[hole] = item, a, b
        gap = gap * 4 // 9


@njit
def goes_before(rule, job, number, other, other_number):
    major, other_major = major_key(rule, job), major_key(rule, other)
    if major != other_major:
        return major < other_major
    minor, other_minor = minor_key(rule, job), minor_key(rule, other)
    return minor < other_minor or (minor == other_minor and number < other_number)


@njit
def sort_queue(s):
    """Bring the queue into the order's order; a compiled key does not change while a job is queued."""
    run = s.run[0]
    if run.order_rule == PYTHON_ORDER:
        for place in range(run.num_queued):
            s.major[place], s.minor[place] = s.jobs[s.queue[place]].rank, 0.0
        sort_items(s.queue, s.major, s.minor, run.num_queued)
        return
    while run.num_sorted < run.num_queued:
        number = s.queue[run.num_sorted]
        low, high = 0, run.num_sorted
        while low < high:
            middle = (low + high) >> 1
            other = s.queue[middle]
            if goes_before(run.order_rule, s.jobs[number], number, s.jobs[other], other):
                high = middle
            else:
                low = middle + 1
        for place in range(run.num_sorted, low, -1):
            s.queue[place] = s.queue[place - 1]
        s.queue[low] = number
        run.num_sorted += 1
