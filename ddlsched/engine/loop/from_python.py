"""What Python calls of the loop, beside the loop itself: books closed, state sent, and functions of compiled code.

The latter are compiled here once more, for Python alone: so the loop, which nearly every run needs, is compiled without
what only a call from Python needs.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import JobState, TransferState
from ddlsched.engine.loop import admission, advance, failures, order, rates, room, transfers
from ddlsched.engine.loop.failures import cut_compute
from ddlsched.engine.loop.placement import add_entry, book, end_of_transfers, spread_links
from ddlsched.engine.loop.sharing.covers import join_placed
from ddlsched.engine.loop.sharing.resting_links import forget_touched_links
from ddlsched.engine.loop.skipping import dormancy, foreseen
from ddlsched.engine.loop.skipping.dormancy import wake_all, wake_linked
from ddlsched.engine.loop.time_accounts import computed_ns, count_time, simulated_for
from ddlsched.engine.loop.transfers import join_waiting, leave_waiting, stop_transfer
from ddlsched.engine.native.jit import NUMBER, NUMBERS, REALS, STATE, called_from_python, njit
from ddlsched.engine.records import State

gather_transfers = called_from_python(STATE)(admission.gather_transfers)
jobs_on = called_from_python(STATE, NUMBER)(admission.jobs_on)
flows_on = called_from_python(STATE, NUMBER)(admission.flows_on)
start_transfer = called_from_python(STATE, NUMBER)(transfers.start_transfer)
pause_transfer = called_from_python(STATE, NUMBER)(transfers.pause_transfer)
gather_rivals = called_from_python(STATE)(order.gather_rivals)
rank_rivals = called_from_python(STATE)(order.rank_rivals)
sort_queue = called_from_python(STATE)(order.sort_queue)
list_component = called_from_python(STATE)(rates.list_component)
take_samples = called_from_python(STATE, NUMBER)(foreseen.take_samples)
stop_job = called_from_python(STATE, NUMBER, NUMBER)(failures.stop_job)
change_free_bytes = called_from_python(STATE, NUMBER, NUMBER)(room.change_free_bytes)
find_fitting = called_from_python(STATE, NUMBERS, NUMBER, NUMBER)(room.find_fitting)
wake_running = called_from_python(STATE)(dormancy.wake_all)
most_slices = called_from_python(STATE)(advance.most_slices)


@called_from_python(STATE, NUMBER)
def wake(s: State, number: int) -> None:  # compiled code has only its address
    dormancy.wake(s, number)


@called_from_python(STATE, NUMBERS, REALS, NUMBERS)
def share_anew(s: State, numbers: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> None:
    """Give transfers their weights and levels, and rate what this and a change reach."""
    for place in range(len(numbers)):
        rates.change_share(s, numbers[place], weights[place], levels[place])
    rates.rerate_max_min(s)
    forget_touched_links(s)


@called_from_python(STATE, NUMBERS)
def add_busy_ns(s: State, busy_ns: np.ndarray) -> None:
    """Add to ``busy_ns`` what each GPU has computed so far."""
    wake_all(s)
    for gpu in range(len(s.gpus)):
        busy_ns[gpu] += s.gpus[gpu].busy_ns
        for place in range(s.gpus[gpu].num_residents):
            number = s.residents[gpu, place]
            job = s.jobs[s.workers[number].job]
            source = simulated_for(s, job, number)
            busy_ns[gpu] += computed_ns(s, job, number)
            g = s.gpus[s.workers[source].gpu]
            if g.worker == source:
                busy_ns[gpu] += s.run[0].now_ns - g.started_ns


@called_from_python(STATE)
def close_books(s: State) -> None:
    """At the end of a run: take the last samples, and count what unfinished jobs have done and waited so far."""
    run = s.run[0]
    foreseen.take_samples(s, run.now_ns)
    if run.now_ns > run.sampled_ns:
        foreseen.take_sample(s, run.now_ns)
    wake_all(s)
    for number in range(len(s.jobs)):
        job = s.jobs[number]
        if job.state == JobState.QUEUED:
            job.queueing_ns += run.now_ns - job.since_ns
            job.since_ns = run.now_ns
        elif job.state == JobState.RUNNING:
            failures.tell_workers_apart(s, number)
            job.samples_left = max(job.samples_left - (job.start_iterations_left - job.iterations_left) * job.batch, 0)
            count_time(job, run.now_ns)
            for worker in range(job.first_worker, job.first_worker + job.num_gpus):
                cut_compute(s, job, worker)
            book(s, job)
            for transfer in range(job.first_transfer, end_of_transfers(job)):
                close_transfer(s, transfer)
    for number in range(len(s.jobs)):  # once what runs on others' links has stopped, too
        if s.jobs[number].state == JobState.RUNNING and s.jobs[number].folded == 1:
            spread_links(s, s.jobs[number], len(s.jobs))


@njit
def close_transfer(s: State, number: int) -> None:
    if s.transfers[number].state == TransferState.ACTIVE:
        stop_transfer(s, number)
    elif s.transfers[number].state == TransferState.WAITING:
        leave_waiting(s, number)


@called_from_python(STATE, NUMBER, NUMBER, NUMBERS, NUMBERS, REALS, REALS)
def send_state(
    s: State,
    number: int,
    hold_ns: int,
    links: np.ndarray,
    ends: np.ndarray,
    sizes_bytes: np.ndarray,
    latency_ns: np.ndarray,
) -> None:
    """Have the state of a job that has just been placed come to it, before it holds its GPUs for ``hold_ns``.

    If that is below 0 it is state that the job saves while it works. Transfer i crosses the ``links`` up to
    ``ends[i]``, from the end of the one before. While state is on its way nobody on links skips iterations: any may
    carry it.
    """
    wake_linked(s)
    run = s.run[0]
    job = s.jobs[number]
    run.num_unsettled += 1
    run.communicate = run.components_changed = 1
    job.num_flows = job.flows_left = len(sizes_bytes)
    job.hold_ns = hold_ns
    for i in range(job.num_flows):
        transfer = s.transfers[job.first_flow + i]
        transfer.bytes = transfer.bytes_left = sizes_bytes[i]
        transfer.latency_ns = transfer.latency_left_ns = latency_ns[i]
        transfer.weight = 0.0  # not asked yet
        transfer.parts_sent = 0
        transfer.first_entry, transfer.num_entries = run.num_entries, 0
        for place in range(ends[i - 1] if i > 0 else 0, ends[i]):
            add_entry(s, job.first_flow + i, links[place], 1.0)
        run.num_entries += transfer.num_entries
        join_placed(s, job.first_flow + i)
        join_waiting(s, job.first_flow + i)


@called_from_python(STATE, NUMBER)
def plan_move(s: State, number: int) -> None:
    """Have a running job stop at the end of its iteration."""
    run = s.run[0]
    if s.jobs[number].dormant == 1:
        dormancy.wake(s, number)
    s.jobs[number].leaving = 1
    run.num_unsettled += 1
    run.components_changed = 1
