"""The jobs that an instant may have to choose between, for an order that is asked in Python or has a memory."""

from __future__ import annotations

from ddlsched.engine.loop.order import sort_items
from ddlsched.engine.loop.policy_calls import call_policy
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.field_values import ONE, ZERO, Door
from ddlsched.engine.records.layout import State


@njit
def add_rival(s: State, count: int, number: int) -> int:
    job = s.jobs[number]
    if job.stamp == s.run[0].stamp:
        return count
    job.stamp = s.run[0].stamp
    s.items[count] = number
    return count + 1


@njit
def gather_rivals(s: State) -> int:
    """List in ``items`` the jobs that this instant may have to choose between, for a Python order; return how many."""
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    if run.must_place == 1 or run.num_finished > 0:
        for place in range(run.num_queued):
            count = add_rival(s, count, s.queue[place])
    if run.communicate == 1:
        for place in range(run.num_waiting):
            count = add_rival(s, count, s.transfers[s.waiting[place]].job)
        for place in range(run.num_active):
            count = add_rival(s, count, s.transfers[s.active[place]].job)
    for place in range(run.num_touched_gpus):
        gpu = s.touched_gpus[place]
        if s.gpus[gpu].worker < 0:
            first = -ONE
            for i in range(s.gpus[gpu].num_residents):
                worker = s.workers[s.residents[gpu, i]]
                if worker.num_ready > 0:
                    if first >= 0:
                        count = add_rival(s, count, first)
                        count = add_rival(s, count, worker.job)
                    first = worker.job
    return count


@njit
def rank_rivals(s: State) -> None:
    """Rank the rivals by a compiled order with a memory, which is asked as one in Python is."""
    run = s.run[0]
    count = gather_rivals(s)
    for place in range(count):
        call_policy(s, Door.ORDER.value, run.order_address, s.items[place], place, run.order_fields)
    sort_items(s, s.items, run.rank_words, count)
    for place in range(count):
        s.jobs[s.items[place]].rank = place
