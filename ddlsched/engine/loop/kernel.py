"""The event loop, compiled by numba; ``docs/semantics.md`` states what it computes.

Kernel and helpers share this file because numba's disk cache does not notice changes in other files. With
``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python. The loop works on the records of
:mod:`ddlsched.engine.loop.layout` and returns to Python only where a plug-in must decide.

One exact shortcut: a job that shares none of its GPUs, whose tasks take equally long on all of them, runs *in
lockstep*. All its workers do the same at the same times, so only the first is simulated, with the weight of
all, until another job joins one of its GPUs.

Another: a job in lockstep whose links carry nobody else's ring does the same in every iteration. It goes
*dormant* at the start of one and is in the heap only for its last; whatever comes in between, another job on one of its
GPUs or links, a failure, a policy that looks at it, *wakes* it in the state that it would have had.

And jobs that do share GPUs or links, a *component*, *jump* over whole periods once their common state has recurred,
as far as nothing from outside can meet them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from ddlsched.engine.loop import layout
from ddlsched.policies.compiled import CommunicationRule, ContentionRule, OrderRule


def can_cache():
    """Whether there is a place that numba can write compiled code to."""
    try:
        numba.njit(cache=True)(can_cache)
    except RuntimeError:
        return False
    return True


# Nothing here allocates, so reference counting is switched off: it would cost seven times the loop itself.
_OPTIONS: dict[str, Any] = {"cache": can_cache(), "error_model": "numpy", "_nrt": False}
# Wrappers for calls from Python take a third of the compiler's time; a call of a function without one ends the process.
_INNER_OPTIONS = _OPTIONS | {"no_cpython_wrapper": True}
called_from_python: Any = numba.njit(**_OPTIONS)
njit: Any = numba.njit(**_INNER_OPTIONS)


# --- the state, as compiled code gets it: the address of its arrays, not the arrays, which are 260 words


class StateType(types.Type):
    """The type of :class:`~ddlsched.engine.loop.layout.State` in compiled code."""

    def __init__(self, arrays):
        self.dtype = types.Tuple(arrays)  # "dtype" is what numba's pointers call the type of what they point to
        super().__init__(f"State({layout.State._fields}, {self.dtype})")


@typeof_impl.register(layout.State)
def type_of_state(state, context):
    return StateType(tuple(typeof_impl(array, context) for array in state))


register_model(StateType)(models.PointerModel)


@unbox(StateType)
def unbox_state(state_type, state, c):
    """Put the arrays on the caller's stack, where they stay while the called function runs."""
    arrays = c.unbox(state_type.dtype, state)
    return NativeValue(cgutils.alloca_once_value(c.builder, arrays.value), arrays.is_error, arrays.cleanup)


@infer_getattr
class ArrayOfState(AttributeTemplate):
    """What type an attribute of the state has in compiled code."""

    key = StateType

    def generic_resolve(self, state_type, name):  # type: ignore[override]
        """Return the array's type."""
        return state_type.dtype[layout.State._fields.index(name)]


@lower_getattr_generic(StateType)
def array_of_state(context, builder, state_type, address, name):  # noqa: ARG001 (numba's signature)
    place = layout.State._fields.index(name)
    return builder.load(cgutils.gep_inbounds(builder, address, 0, place))


def numbers(count):
    """The first whole numbers as 64-bit ones: numba would compile a function anew for each plain number it is given."""
    return (np.int64(number) for number in range(count))


ZERO, ONE = numbers(2)


# What the loop asks of Python when it returns.
DONE, ASK_KEYS, ASK_PLACEMENT, ASK_COMMUNICATION, ASK_RATES, ASK_FLUSH, HEAR_SIGNALS, STUCK, CLOCK_OVERFLOW = range(9)
ASK_CAPACITY, PAUSED, ASK_ALLOCATION = 9, 10, 11

# Where in an instant the loop stands (steps 1-2, capacity changes, the keys of a Python order, step 3 in two parts,
# step 4, rates, step 5).
EVENTS, CAPACITY, KEYS, ALLOCATION, PLACEMENT, COMMUNICATION, RATES, DISPATCH = range(8)

# States of a job.
FUTURE, QUEUED, RUNNING, FINISHED, DROPPED = range(5)

# Kinds of recorded slices: a worker computes; all of a job's in lockstep do; a transfer runs; a worker's task is
# cut short by a failure; a transfer waits.
COMPUTE_SLICE, LOCKSTEP_SLICE, TRANSFER_SLICE, CUT_SLICE, WAIT_SLICE = numbers(5)

# The numbers of the rules and of a transfer's states, written here once more: numba's cache does not notice
# changes in other files, so a number that changed elsewhere would be wrong in code that is already compiled.
PYTHON_ORDER, REMAINING_SERVICE, WITH_COMMUNICATION, PER_GPU, ARRIVAL, ATTAINED, REMAINING_TIME = numbers(7)
PYTHON_ADMIT, PYTHON_SELECT, BOUNDED_OVERLAP, ADADUAL, BY_SERVICE, BY_SERVICE_PER_GPU, BY_BYTES = 0, 1, 2, 3, 4, 5, 6
BY_TIME = 7
PYTHON_RATES, LINEAR, EQUAL_SHARE, MAX_MIN = 0, 1, 2, 3
IDLE, WAITING, ACTIVE = 0, 1, 2


def refuse_other_numbers():
    """Fail at import if a rule or state has another number where it is named."""
    orders = (PYTHON_ORDER, REMAINING_SERVICE, WITH_COMMUNICATION, PER_GPU, ARRIVAL, ATTAINED, REMAINING_TIME)
    preemptive = (BY_SERVICE, BY_SERVICE_PER_GPU, BY_BYTES, BY_TIME)
    communications = (PYTHON_ADMIT, PYTHON_SELECT, BOUNDED_OVERLAP, ADADUAL, *preemptive)
    named = (tuple(OrderRule), tuple(CommunicationRule), tuple(ContentionRule))
    states = (layout.TRANSFER_IDLE, layout.TRANSFER_WAITING, layout.TRANSFER_ACTIVE)
    here = (orders, communications, (PYTHON_RATES, LINEAR, EQUAL_SHARE, MAX_MIN), (IDLE, WAITING, ACTIVE))
    if here != (*named, states):
        raise AssertionError(
            "the numbers of rules or states in engine/kernel.py are not those of compiled.py, layout.py"
        )


refuse_other_numbers()

NEVER = np.int64(2**63 - 1)
OFFLINE_BYTES = np.int64(2**62)
"""What the free memory of an absent server's GPUs is lowered by: less than any job needs is left."""
ROUNDS_BETWEEN_SIGNALS = 1_000_000
"""The loop visits Python after so many rounds, so that Ctrl-C is heard."""


# --- the event heap: the earliest end first; the order of equal ends does not matter (step 1 takes them all)


@njit
def sift_up(heap, position, end_ns, place):
    item, end = heap[place], end_ns[place]
    while place > 0:
        parent = (place - 1) >> 1
        if end_ns[parent] <= end:
            break
        heap[place], end_ns[place] = heap[parent], end_ns[parent]
        position[heap[place]] = place
        place = parent
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def sift_down(heap, position, end_ns, size, place):
    item, end = heap[place], end_ns[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and end_ns[child + 1] < end_ns[child]:
            child += 1
        if end_ns[child] >= end:
            break
        heap[place], end_ns[place] = heap[child], end_ns[child]
        position[heap[place]] = place
        place = child
    heap[place], end_ns[place] = item, end
    position[item] = place


@njit
def schedule(run, heap, position, end_ns, item, end):
    """Insert an item, or move it to a new end."""
    place = position[item]
    if place < 0:
        place = run.heap_size
        run.heap_size += 1
        heap[place], end_ns[place] = item, end
        sift_up(heap, position, end_ns, place)
    elif end != end_ns[place]:
        earlier = end < end_ns[place]
        end_ns[place] = end
        if earlier:
            sift_up(heap, position, end_ns, place)
        else:
            sift_down(heap, position, end_ns, run.heap_size, place)


@njit
def unschedule(run, heap, position, end_ns, item):
    place = position[item]
    position[item] = -1
    run.heap_size -= 1
    last = run.heap_size
    if place != last:
        moved = heap[last]
        heap[place], end_ns[place] = moved, end_ns[last]
        sift_up(heap, position, end_ns, place)
        sift_down(heap, position, end_ns, run.heap_size, position[moved])


@njit
def take_first(run, heap, position, end_ns):
    item = heap[0]
    position[item] = -1
    run.heap_size -= 1
    last = run.heap_size
    if last > 0:
        heap[0], end_ns[0] = heap[last], end_ns[last]
        sift_down(heap, position, end_ns, last, ZERO)
    return item


# --- order: (major, minor, number), smallest first; numbers are unique, so the order is total


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


@njit
def add_candidate(s, count, number):
    """List a transfer in ``items``, but for one that has jumped ahead: nothing changes for it before that time."""
    if s.jobs[s.transfers[number].job].ahead_ns > s.run[0].now_ns:
        return count
    s.items[count] = number
    return count + 1


@called_from_python
def gather_transfers(s):
    """Sort the waiting transfers (for a preemptive rule: the active too) into ``items``; return how many."""
    run = s.run[0]
    preemptive = run.communication_rule >= BY_SERVICE or run.communication_rule == PYTHON_SELECT
    count = ZERO
    for place in range(run.num_waiting):
        count = add_candidate(s, count, s.waiting[place])
    if preemptive:
        for place in range(run.num_active):
            count = add_candidate(s, count, s.active[place])
    sort_transfers(s, count)
    return count


@njit
def gather_candidates(s):
    """Sort into ``items`` the waiting transfers that a rule of the links' transfers may start now; return how many.

    Those are the ones that have just become ready, and those on a link that a transfer has left: the others were
    refused before, and since then their links have only got more transfers, or the same with fewer bytes left.
    """
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    for place in range(run.num_fresh):
        number = s.fresh[place]
        transfer = s.transfers[number]
        transfer.fresh = 0
        if transfer.state == WAITING:
            transfer.stamp = run.stamp
            count = add_candidate(s, count, number)
    run.num_fresh = 0
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].waiting_head
        while e >= 0:
            transfer = s.transfers[s.entries[e].transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                count = add_candidate(s, count, s.entries[e].transfer)
            e = s.entries[e].next
    sort_transfers(s, count)
    return count


@njit
def sort_transfers(s, count):
    """Bring the transfers in ``items`` into the order in which the communication rule takes them."""
    run = s.run[0]
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        job = s.jobs[transfer.job]
        s.major[place], s.minor[place] = 0, 0.0
        if run.communication_rule == BY_BYTES:
            s.minor[place] = bytes_left_now(transfer, run.now_ns)
        else:
            rule = run.order_rule
            if run.communication_rule == BY_SERVICE:
                rule = REMAINING_SERVICE
            elif run.communication_rule == BY_SERVICE_PER_GPU:
                rule = PER_GPU
            elif run.communication_rule == BY_TIME:
                rule = REMAINING_TIME
            s.major[place] = major_key(rule, job)
            s.minor[place] = minor_key(rule, job)
    sort_items(s.items, s.major, s.minor, count)


# --- tasks


@njit
def touch_gpu(run, gpus, touched_gpus, gpu):
    """Note that an idle GPU may have something to take in step 5."""
    if gpus[gpu].touched == 0:
        gpus[gpu].touched = 1
        touched_gpus[run.num_touched_gpus] = gpu
        run.num_touched_gpus += 1


@njit
def make_ready(s, number, task):
    worker = s.workers[number]
    s.ready[worker.first_flag + task] = 1
    if worker.num_ready == 0 or task < worker.first_ready:
        worker.first_ready = task
    worker.num_ready += 1
    touch_gpu(s.run[0], s.gpus, s.touched_gpus, worker.gpu)


@njit
def take_ready(s, worker):
    """Take the worker's ready task of the smallest number."""
    task = worker.first_ready
    s.ready[worker.first_flag + task] = 0
    worker.num_ready -= 1
    if worker.num_ready > 0:
        following = task + 1
        while s.ready[worker.first_flag + following] == 0:
            following += 1
        worker.first_ready = following
    return task


@njit
def push_work(s, code):
    """Put off to step 2: a transfer's number, or minus one minus the number of a job whose iteration ended."""
    run = s.run[0]
    s.work[run.num_work] = code
    run.num_work += 1


@njit
def predecessor_ended(s, number, task):
    """One predecessor of a compute task has ended for this worker."""
    worker = s.workers[number]
    flag = worker.first_flag + task
    s.pending[flag] -= 1
    if s.pending[flag] == 0:
        record = s.tasks[s.jobs[worker.job].first_task + task]
        s.pending[flag] = record.compute_predecessors + record.reduce_predecessors
        make_ready(s, number, task)


@njit
def predecessors_ended(s, job, task, weight):
    """``weight`` predecessors (counting workers) of an all-reduce have ended."""
    record = s.tasks[job.first_task + task]
    record.pending -= weight
    if record.pending == 0:
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
        push_work(s, record.transfer)


@njit
def record_slice(s, kind, owner, job, task, start_ns, sharing, rate):
    run = s.run[0]
    if run.now_ns > run.record_from_ns and start_ns < run.record_to_ns:
        record = s.slices[run.num_slices]
        run.num_slices += 1
        record.kind, record.owner, record.task, record.stay = kind, owner, task, job.stay
        record.iteration = job.iterations - job.iterations_left
        record.start_ns, record.end_ns, record.sharing, record.rate = start_ns, run.now_ns, sharing, rate


@njit
def count_time(job, now_ns):
    """Add the time since the last change to the phase that a placed job was in."""
    passed_ns = now_ns - job.since_ns
    if passed_ns > 0:
        job.since_ns = now_ns
        if job.active_transfers > 0:
            job.communicating_ns += passed_ns
        elif job.waiting_transfers > 0:
            job.network_wait_ns += passed_ns
        elif job.restarting == 1:
            job.restarting_ns += passed_ns
        elif job.lockstep == 1 or job.running_workers > 0:
            job.computing_ns += passed_ns
        else:
            job.gpu_wait_ns += passed_ns


@njit
def start_computing(run, g, number, job, weight):
    """A GPU takes a task of a worker; ``busy_ns`` and ``computing_gpus`` are for the samples."""
    if job.lockstep == 0:
        if job.running_workers == 0:
            count_time(job, run.now_ns)
        job.running_workers += 1
    g.worker = number
    g.started_ns = run.now_ns
    run.computing_gpus += weight
    run.busy_ns -= np.float64(weight) * (run.now_ns - run.sampled_ns)


@njit
def stop_computing(run, g, worker, job, weight):
    if job.lockstep == 0:
        if job.running_workers == 1:
            count_time(job, run.now_ns)
        job.running_workers -= 1
    g.worker = -1
    worker.busy_ns += run.now_ns - g.started_ns
    run.computing_gpus -= weight
    run.busy_ns += np.float64(weight) * (run.now_ns - run.sampled_ns)


@njit
def mix(h):
    """Scatter 32 bits; every product is below 2^63."""
    h ^= h >> 16
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h ^= h >> 15
    h = (h * 0x45D9F3B) & 0xFFFFFFFF
    return h ^ (h >> 16)


@njit
def uneven_ns(s, number, task):
    """How long a task takes on a worker's GPU: its speed, who else is there, and jitter, a hash of which task it is."""
    run = s.run[0]
    worker = s.workers[number]
    job = s.jobs[worker.job]
    duration_ns = s.tasks[job.first_task + task].duration_ns
    factor = s.gpus[worker.gpu].slowness
    if len(s.jitter) > 1:
        h = mix((run.jitter_seed + worker.job) & 0xFFFFFFFF)
        h = mix((h + number - job.first_worker) & 0xFFFFFFFF)
        h = mix((h + job.iterations - job.iterations_left) & 0xFFFFFFFF)
        h = mix((h + task) & 0xFFFFFFFF)
        h = mix((h + job.restarts) & 0xFFFFFFFF)
        factor *= s.jitter[h >> 20]
    factor *= (1_000_000 + worker.penalty_ppm) / 1_000_000
    if factor == 1.0:
        return duration_ns
    scaled_ns = np.rint(duration_ns * factor)
    if scaled_ns > 9.2e18:
        run.clock_overflow = 1
        return np.int64(0)
    return np.int64(scaled_ns)


@njit
def end_compute(s, gpu):
    """Step 1: a GPU's task ends."""
    run = s.run[0]
    g = s.gpus[gpu]
    number = g.worker
    worker = s.workers[number]
    job = s.jobs[worker.job]
    task = s.tasks[job.first_task + g.task]
    weight = job.num_gpus if job.lockstep == 1 else 1
    job.remaining_service_ns -= task.duration_ns * weight
    job.steps_left -= weight
    worker.done_ns += task.duration_ns
    run.events += weight
    if run.record == 1:
        kind = LOCKSTEP_SLICE if job.lockstep == 1 else COMPUTE_SLICE
        record_slice(s, kind, number, job, g.task, g.started_ns, ZERO, 0.0)
    stop_computing(run, g, worker, job, weight)
    touch_gpu(run, s.gpus, s.touched_gpus, gpu)
    for place in range(task.first_successor, task.first_successor + task.num_successors):
        successor = s.successors[place]
        if s.tasks[job.first_task + successor].transfer < 0:
            predecessor_ended(s, number, successor)
        else:
            predecessors_ended(s, job, successor, weight)
    if job.steps_left == 0:
        push_work(s, -1 - worker.job)


@njit
def end_all_reduce(s, number):
    """An all-reduce is done: its successors may go."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    task = s.tasks[job.first_task + transfer.task]
    job.steps_left -= 1
    job.load_left_ns -= task.load_ns
    simulated = 1 if job.lockstep == 1 else job.num_gpus
    for place in range(task.first_successor, task.first_successor + task.num_successors):
        successor = s.successors[place]
        if s.tasks[job.first_task + successor].transfer < 0:
            for worker in range(job.first_worker, job.first_worker + simulated):
                predecessor_ended(s, worker, successor)
        else:
            predecessors_ended(s, job, successor, ONE)
    if job.steps_left == 0:
        push_work(s, -1 - transfer.job)


@njit
def start_iteration(s, job):
    job.iteration_ns = s.run[0].now_ns
    job.steps_left = (job.num_tasks - job.num_transfers) * job.num_gpus + job.num_transfers
    lockstep = 1 if job.shared_gpus == 0 and (job.uneven == 0 or job.num_gpus == 1) else 0
    if lockstep != job.lockstep:
        count_time(job, s.run[0].now_ns)
        if lockstep == 1 and len(s.penalties_ppm) > 0:
            book_computing(s, job)  # workers with other neighbours have computed for other times
        job.lockstep = lockstep
    if lockstep == 1 and may_skip(s, job):
        if job.profiled == 0:
            job.profiled = 1 if profile_iteration(s, job) else -1
        if job.profiled == 1 and fall_dormant(s, job):
            return
    if job.anchor == 1 and job.due == 0:
        job.due, job.next_due = 1, s.run[0].first_due
        s.run[0].first_due = s.workers[job.first_worker].job
    begin_sources(s, job)


@njit
def begin_sources(s, job):
    """Make ready the tasks that an iteration starts with."""
    simulated = 1 if job.lockstep == 1 else job.num_gpus
    for place in range(job.first_source, job.first_source + job.num_sources):
        task = s.successors[place]
        transfer = s.tasks[job.first_task + task].transfer
        if transfer >= 0:
            push_work(s, transfer)
        else:
            for worker in range(job.first_worker, job.first_worker + simulated):
                make_ready(s, worker, task)


@njit
def do_work(s):
    """Step 2: all-reduces become ready (on one server: end), and iterations end."""
    run = s.run[0]
    while run.num_work > 0:
        run.num_work -= 1
        code = s.work[run.num_work]
        if code >= 0:
            transfer = s.transfers[code]
            if s.jobs[transfer.job].num_servers == 1:
                end_all_reduce(s, code)
            else:
                transfer.bytes_left = transfer.bytes
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
        if job.num_servers == 1 and job.num_tasks == job.num_transfers:
            job.iterations_left = 0  # nothing but all-reduces on one server takes no time, however often
        if job.iterations_left > 0:
            start_iteration(s, job)
        else:
            count_time(job, run.now_ns)
            job.state = FINISHED
            job.finish_ns = run.now_ns
            s.finished[run.num_finished] = -1 - code
            run.num_finished += 1


# --- transfers


@njit
def join_waiting(s, number):
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    count_time(job, run.now_ns)
    job.waiting_transfers += 1
    transfer.state = WAITING
    transfer.rate = 0.0
    transfer.since_ns = run.now_ns
    transfer.position = run.num_waiting
    s.waiting[run.num_waiting] = number
    run.num_waiting += 1
    run.rerate = 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link_waiting(s, e)
    if transfer.fresh == 0:
        transfer.fresh = 1
        s.fresh[run.num_fresh] = number
        run.num_fresh += 1


@njit
def link_waiting(s, e):
    entry = s.entries[e]
    link = s.links[entry.link]
    entry.previous = -1
    entry.next = link.waiting_head
    if link.waiting_head >= 0:
        s.entries[link.waiting_head].previous = e
    link.waiting_head = e


@njit
def unlink_waiting(s, e):
    entry = s.entries[e]
    if entry.previous >= 0:
        s.entries[entry.previous].next = entry.next
    else:
        s.links[entry.link].waiting_head = entry.next
    if entry.next >= 0:
        s.entries[entry.next].previous = entry.previous


@njit
def leave_list(transfers, members, count, position):
    """Take the member at a position out of a list of ``count`` and return its new length."""
    last = members[count - 1]
    members[position] = last
    transfers[last].position = position
    return count - 1


@njit
def touch_link(s, link):
    if s.links[link].touched == 0:
        s.links[link].touched = 1
        run = s.run[0]
        s.touched_links[run.num_touched_links] = link
        run.num_touched_links += 1


@njit
def leave_waiting(s, number):
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    if run.record == 1 and transfer.since_ns < run.now_ns:
        record_slice(s, WAIT_SLICE, number, job, transfer.task, transfer.since_ns, ZERO, 0.0)
    count_time(job, run.now_ns)
    job.waiting_transfers -= 1
    run.num_waiting = leave_list(s.transfers, s.waiting, run.num_waiting, transfer.position)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        unlink_waiting(s, e)
    transfer.state = IDLE


@called_from_python
def start_transfer(s, number):
    """Step 4: a waiting transfer runs; its rate comes after the step."""
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    leave_waiting(s, number)
    job.active_transfers += 1
    transfer.state = ACTIVE
    transfer.position = run.num_active
    s.active[run.num_active] = number
    run.num_active += 1
    transfer.since_ns = run.now_ns
    transfer.segment_ns = run.now_ns
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        link = s.links[entry.link]
        if link.count == 0:
            link.busy_since_ns = run.now_ns
        link.count += 1
        entry.previous = -1
        entry.next = link.head
        if link.head >= 0:
            s.entries[link.head].previous = e
        link.head = e
        touch_link(s, entry.link)
    run.rerate = 1


@njit
def stop_transfer(s, number):
    """An active transfer ends or pauses: it leaves its links."""
    run = s.run[0]
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    if run.record == 1:
        record_transfer(s, number)
    count_time(job, run.now_ns)
    job.active_transfers -= 1
    run.num_active = leave_list(s.transfers, s.active, run.num_active, transfer.position)
    transfer.state = IDLE
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        entry = s.entries[e]
        link = s.links[entry.link]
        link.count -= 1
        if link.count == 0:
            link.busy_ns += run.now_ns - link.busy_since_ns
        if entry.previous >= 0:
            s.entries[entry.previous].next = entry.next
        else:
            link.head = entry.next
        if entry.next >= 0:
            s.entries[entry.next].previous = entry.previous
        touch_link(s, entry.link)
    run.rerate = 1


@njit
def record_transfer(s, number):
    """Record the time since the transfer's last change of rate."""
    transfer = s.transfers[number]
    job = s.jobs[transfer.job]
    record_slice(s, TRANSFER_SLICE, number, job, transfer.task, transfer.segment_ns, transfer.sharing, transfer.rate)


@called_from_python
def pause_transfer(s, number):
    run = s.run[0]
    transfer = s.transfers[number]
    if transfer.rate > 0.0:
        settle(transfer, run.now_ns)
        unschedule(run, s.heap, s.position, s.end_ns, run.num_gpus + number)
    stop_transfer(s, number)
    join_waiting(s, number)


@njit
def end_transfer(s, number):
    """Step 1: an active transfer has sent its last byte."""
    run = s.run[0]
    run.events += 1
    run.communicate = 1
    stop_transfer(s, number)
    s.transfers[number].bytes_left = 0.0
    s.transfers[number].times_sent += 1
    end_all_reduce(s, number)


@njit
def bytes_left_now(transfer, now_ns):
    """Bytes left at ``now_ns``, without changing the transfer."""
    if transfer.state != ACTIVE or transfer.rate == 0.0:
        return transfer.bytes_left
    sending_ns = now_ns - transfer.since_ns - transfer.latency_left_ns
    if sending_ns <= 0.0:
        return transfer.bytes_left
    return max(transfer.bytes_left - sending_ns / transfer.ns_per_byte, 0.0)


@njit
def settle(transfer, now_ns):
    """Subtract what was sent since the last change of rate."""
    transfer.bytes_left = bytes_left_now(transfer, now_ns)
    transfer.latency_left_ns = max(transfer.latency_left_ns - (now_ns - transfer.since_ns), 0.0)
    transfer.since_ns = now_ns


@njit
def set_rate(s, number, rate, sharing):
    """Give an active transfer its rate; only if that is a change, settle it and predict its end anew."""
    run = s.run[0]
    transfer = s.transfers[number]
    if run.record == 1 and (rate != transfer.rate or sharing != transfer.sharing):
        if transfer.segment_ns < run.now_ns:
            record_transfer(s, number)
        transfer.segment_ns = run.now_ns
    transfer.sharing = sharing
    if rate == transfer.rate:
        return
    if transfer.rate > 0.0:
        settle(transfer, run.now_ns)
    transfer.rate = rate
    transfer.ns_per_byte = 1e9 / rate
    after_ns = np.ceil(transfer.latency_left_ns + transfer.bytes_left * transfer.ns_per_byte - 0.001)
    if after_ns > 9.2e18 - run.now_ns:
        run.clock_overflow = 1
        after_ns = 0.0
    end = run.now_ns + max(np.int64(after_ns), 0)
    schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + number, end)


@njit
def most_sharing(s, transfer):
    """The most transfers on any one of the transfer's links."""
    most = 0
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        most = max(most, s.links[s.entries[e].link].count)
    return most


# --- step 4: the communication rules


@njit
def adadual_admits(s, transfer):
    run = s.run[0]
    most = most_sharing(s, transfer)
    if most != 1:
        return most == 0
    cost = transfer.bytes * 2.0 * (run.per_byte_s + run.penalty_per_byte_s)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        head = s.links[s.entries[e].link].head
        if head >= 0:
            old = s.transfers[s.entries[head].transfer]
            if cost > bytes_left_now(old, run.now_ns) * run.per_byte_s * (1 + 1e-9):
                return False
    return True


@njit
def admit_transfers(s):
    run = s.run[0]
    count = gather_candidates(s)
    for place in range(count):
        number = s.items[place]
        transfer = s.transfers[number]
        if run.communication_rule == ADADUAL:
            admitted = adadual_admits(s, transfer)
        else:
            admitted = most_sharing(s, transfer) < run.overlap_limit
        if admitted:
            start_transfer(s, number)


@njit
def blocked(s, transfer):
    stamp = s.run[0].stamp
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        if s.links[s.entries[e].link].stamp == stamp:
            return True
    return False


@njit
def select_transfers(s):
    """Preemptive shortest-first: a greedy set without a shared link."""
    run = s.run[0]
    run.stamp += 1
    count = gather_transfers(s)
    for place in range(count):
        number = s.items[place]
        transfer = s.transfers[number]
        if blocked(s, transfer):
            if transfer.state == ACTIVE:
                pause_transfer(s, number)
            continue
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            s.links[s.entries[e].link].stamp = run.stamp
        if transfer.state == WAITING:
            start_transfer(s, number)


# --- rates, after step 4


@njit
def local_rate(s, transfer):
    """Rate of a transfer under a model that needs only the counts on its links."""
    run = s.run[0]
    worst = 0.0
    first = True
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        count = link.count
        if run.contention_rule == LINEAR:
            value = (count * run.per_byte_s + (count - 1) * run.penalty_per_byte_s) / link.relative_bandwidth
            worst = value if first else max(worst, value)
        else:
            value = 1.0 / run.per_byte_s * link.relative_bandwidth / count
            worst = value if first else min(worst, value)
        first = False
    return 1.0 / worst if run.contention_rule == LINEAR else worst


@njit
def rerate_neighbours(s):
    """Rate every transfer on a link whose transfers have changed."""
    run = s.run[0]
    run.stamp += 1
    for place in range(run.num_touched_links):
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                set_rate(s, entry.transfer, local_rate(s, transfer), most_sharing(s, transfer))
            e = entry.next


@njit
def collect_component(s):
    """List in ``items`` the transfers joined by links to a touched link; let ``touched_links`` be all their links."""
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    place = 0
    while place < run.num_touched_links:
        e = s.links[s.touched_links[place]].head
        while e >= 0:
            entry = s.entries[e]
            transfer = s.transfers[entry.transfer]
            if transfer.stamp != run.stamp:
                transfer.stamp = run.stamp
                s.items[count] = entry.transfer
                count += 1
                for other in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                    touch_link(s, s.entries[other].link)
            e = entry.next
        place += 1
    return count


@njit
def rerate_max_min(s):
    """Progressive filling over the touched component; ``minor`` holds the rates found."""
    run = s.run[0]
    count = collect_component(s)
    for place in range(count):
        s.minor[place] = 0.0
        s.transfers[s.items[place]].fill_index = place
    for place in range(run.num_touched_links):
        link = s.links[s.touched_links[place]]
        link.free = 1.0 / run.per_byte_s * link.relative_bandwidth
        link.unfilled = link.count
    left = count
    while left > 0:
        left -= fill_tightest_link(s)
    for place in range(count):
        transfer = s.transfers[s.items[place]]
        set_rate(s, s.items[place], s.minor[place], most_sharing(s, transfer))


@njit
def fill_tightest_link(s):
    """Freeze the transfers on the link with the least share (ties: lower number); return how many."""
    tightest, least = -1, 0.0
    for place in range(s.run[0].num_touched_links):
        number = s.touched_links[place]
        link = s.links[number]
        if link.unfilled > 0:
            share = link.free / link.unfilled
            if tightest < 0 or share < least or (share == least and number < tightest):
                tightest, least = number, share
    frozen = 0
    e = s.links[tightest].head
    while e >= 0:
        transfer = s.transfers[s.entries[e].transfer]
        if s.minor[transfer.fill_index] == 0.0:
            s.minor[transfer.fill_index] = least
            frozen += 1
            for other in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
                link = s.links[s.entries[other].link]
                link.free = max(link.free - least, 0.0)
                link.unfilled -= 1
        e = s.entries[e].next
    return frozen


@njit
def forget_touched_links(s):
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0


@called_from_python
def apply_rates(s, rates):
    """Give the active transfers the rates that a Python model answered, in the order of ``active``."""
    for place in range(s.run[0].num_active):
        number = s.active[place]
        set_rate(s, number, rates[place], most_sharing(s, s.transfers[number]))
    forget_touched_links(s)


# --- skipping: iterations of a job that meets nobody


@njit
def may_skip(s, job):
    """Whether the job's iterations are all alike and nothing that a policy decides depends on their instants."""
    run = s.run[0]
    if job.iterations_left < 2 or job.profiled < 0 or len(s.jitter) > 1:
        return False
    networked = job.num_servers > 1 and job.num_transfers > 0
    return not networked or (run.skipping_networked == 1 and job.shared_links == 0)


@njit
def task_ns(s, job, task):
    """How long a task takes on the job's first worker."""
    if job.uneven == 1:
        return uneven_ns(s, job.first_worker, task)
    return s.tasks[job.first_task + task].duration_ns


@njit
def alone_ns(s, transfer):
    """How long a transfer takes that meets nobody; a ring may cross one link more than once."""
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count += 1
    rate = local_rate(s, transfer)
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        s.links[s.entries[e].link].count -= 1
    after_ns = np.ceil(transfer.latency_ns + transfer.bytes * (1e9 / rate) - 0.001)
    return np.int64(after_ns) if 0.0 < after_ns < 4e18 else np.int64(0)


@njit
def succeed(s, job, task):
    """A task of a job in lockstep has ended: its successors may go."""
    record = s.tasks[job.first_task + task]
    weight = job.num_gpus if record.transfer < 0 else 1
    for place in range(record.first_successor, record.first_successor + record.num_successors):
        successor = s.successors[place]
        if s.tasks[job.first_task + successor].transfer < 0:
            predecessor_ended(s, job.first_worker, successor)
        else:
            predecessors_ended(s, job, successor, weight)


@njit
def profile_iteration(s, job):
    """Note when each task of an undisturbed iteration begins and ends; return whether such may be skipped over.

    They may not if transfers of the job overlap, whose rates and order would have to be known, or if something takes no
    time, so that it would matter in which round of an instant a job wakes. The iteration is then gone through
    nevertheless, in any order, which leaves all counts of predecessors as they were.
    """
    run = s.run[0]
    first = s.workers[job.first_worker]
    others_work = run.num_work
    computing, sending = -1, -1
    computed_ns = sent_ns = NEVER
    now_ns = job.period_busy_ns = job.period_load_ns = job.period_events = np.int64(0)
    regular = True
    left = job.num_tasks
    begin_sources(s, job)
    while left > 0:
        while run.num_work > others_work:
            run.num_work -= 1
            transfer = s.transfers[s.work[run.num_work]]
            record = s.tasks[job.first_task + transfer.task]
            record.begins_ns = record.ends_ns = now_ns
            job.period_load_ns += record.load_ns
            if job.num_servers > 1 and sent_ns == NEVER:
                sending, sent_ns = transfer.task, now_ns + alone_ns(s, transfer)
                record.ends_ns = sent_ns
                regular = regular and sent_ns > now_ns
                job.period_events += 1
            else:
                regular = regular and job.num_servers == 1
                left -= 1
                succeed(s, job, transfer.task)
        if computed_ns == NEVER and first.num_ready > 0:
            computing = take_ready(s, first)
            computed_ns = now_ns + task_ns(s, job, computing)
            regular = regular and computed_ns > now_ns
            record = s.tasks[job.first_task + computing]
            record.begins_ns, record.ends_ns = now_ns, computed_ns
            job.period_busy_ns += computed_ns - now_ns
            job.period_events += job.num_gpus
        if computed_ns == NEVER and sent_ns == NEVER:
            continue
        now_ns = min(computed_ns, sent_ns)  # all that ends now ends before anything begins
        if computed_ns == now_ns:
            computed_ns = NEVER
            left -= 1
            succeed(s, job, computing)
        if sent_ns == now_ns:
            sent_ns = NEVER
            left -= 1
            succeed(s, job, sending)
    job.period_ns = now_ns
    return regular and 0 < now_ns < 4e18


@njit
def fall_dormant(s, job):
    """At the start of an iteration: skip to the last one, or to where slices are recorded; return whether."""
    run = s.run[0]
    number = s.workers[job.first_worker].job
    until_ns = np.int64(4e18) + run.now_ns // 2
    if run.record == 1 and run.now_ns < run.record_to_ns:
        until_ns = min(until_ns, run.record_from_ns)
    iterations = min(job.iterations_left - 1, (until_ns - run.now_ns) // job.period_ns)
    if iterations < 1:
        return False
    count_time(job, run.now_ns)
    job.dormant, job.dormant_since_ns, job.dormant_since_round = 1, run.now_ns, run.rounds
    job.dormant_place = run.num_dormant
    s.dormant[run.num_dormant] = number
    run.num_dormant += 1
    item = run.num_gpus + len(s.transfers) + number
    schedule(run, s.heap, s.position, s.end_ns, item, run.now_ns + iterations * job.period_ns)
    return True


@called_from_python
def wake(s, number):
    """Give a dormant job the state that it would have now."""
    run = s.run[0]
    job = s.jobs[number]
    item = run.num_gpus + len(s.transfers) + number
    if s.position[item] >= 0:
        unschedule(run, s.heap, s.position, s.end_ns, item)
    run.num_dormant -= 1
    last = s.dormant[run.num_dormant]
    s.dormant[job.dormant_place] = last
    s.jobs[last].dormant_place = job.dormant_place
    job.dormant = 0
    run.busy_ns += np.float64(job.num_gpus) * dormant_busy_ns(s, job, run.sampled_ns, run.now_ns)
    iterations = (run.now_ns - job.dormant_since_ns) // job.period_ns
    begin_ns = job.dormant_since_ns + iterations * job.period_ns
    book_iterations(s, job, iterations, begin_ns)
    resume_iteration(s, job, begin_ns)


@njit
def wake_all(s):
    run = s.run[0]
    while run.num_dormant > 0:
        wake(s, s.dormant[0])


@njit
def book_iterations(s, job, iterations, end_ns):
    """Write down whole iterations that were skipped over, the last of which ended at ``end_ns``."""
    run = s.run[0]
    run.events += iterations * job.period_events
    run.skipped_iterations += iterations
    done = job.start_iterations_left - job.iterations_left
    unsafe = (done + iterations) % run.checkpoint_iterations
    if iterations > unsafe:
        job.checkpoint_ns = end_ns - unsafe * job.period_ns
    job.iterations_left -= iterations
    job.remaining_service_ns -= iterations * job.compute_ns * job.num_gpus
    job.load_left_ns -= iterations * job.period_load_ns
    first = s.workers[job.first_worker]
    first.done_ns += iterations * job.compute_ns
    first.busy_ns += iterations * job.period_busy_ns
    communicating_ns = np.int64(0)
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if job.num_servers > 1:
            book_transfers(s, s.transfers[number], iterations, iterations * (task.ends_ns - task.begins_ns))
            communicating_ns += task.ends_ns - task.begins_ns
    job.communicating_ns += iterations * communicating_ns
    job.computing_ns += iterations * (job.period_ns - communicating_ns)


@njit
def book_transfers(s, transfer, times, busy_ns):
    """Write down transfers that were skipped over, and their time on the links, once each."""
    run = s.run[0]
    run.stamp += 1
    transfer.times_sent += times
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.stamp != run.stamp:
            link.stamp = run.stamp
            link.busy_ns += busy_ns


@njit
def resume_iteration(s, job, begin_ns):
    """Bring the iteration that began at ``begin_ns`` to where it is now."""
    run = s.run[0]
    passed_ns = run.now_ns - begin_ns
    job.iteration_ns = begin_ns
    job.steps_left = (job.num_tasks - job.num_transfers) * job.num_gpus + job.num_transfers
    communicating_ns = np.int64(0)
    for task in range(job.num_tasks):
        record = s.tasks[job.first_task + task]
        if record.transfer >= 0 and job.num_servers > 1:
            communicating_ns += max(min(passed_ns, record.ends_ns) - record.begins_ns, 0)
    job.communicating_ns += communicating_ns
    job.computing_ns += passed_ns - communicating_ns
    job.since_ns = run.now_ns
    for place in range(job.first_source, job.first_source + job.num_sources):
        resume_task(s, job, s.successors[place], begin_ns)
    for task in range(job.num_tasks):
        record = s.tasks[job.first_task + task]
        if record.ends_ns <= passed_ns:
            book_task(s, job, record)
            for place in range(record.first_successor, record.first_successor + record.num_successors):
                release(s, job, record, s.successors[place], begin_ns)


@njit
def book_task(s, job, record):
    """Write down one task that has ended since the iteration began."""
    run = s.run[0]
    duration_ns = record.ends_ns - record.begins_ns
    if record.transfer < 0:
        job.remaining_service_ns -= record.duration_ns * job.num_gpus
        job.steps_left -= job.num_gpus
        run.events += job.num_gpus
        s.workers[job.first_worker].done_ns += record.duration_ns
        s.workers[job.first_worker].busy_ns += duration_ns
        return
    job.steps_left -= 1
    job.load_left_ns -= record.load_ns
    if job.num_servers > 1:
        run.events += 1
        s.transfers[record.transfer].bytes_left = 0.0
        book_transfers(s, s.transfers[record.transfer], ONE, duration_ns)


@njit
def release(s, job, ended, task, begin_ns):
    """One predecessor of a task has ended, for all workers; after the last, the task is where it is now."""
    record = s.tasks[job.first_task + task]
    if record.transfer < 0:
        flag = s.workers[job.first_worker].first_flag + task
        s.pending[flag] -= 1
        if s.pending[flag] > 0:
            return
        s.pending[flag] = record.compute_predecessors + record.reduce_predecessors
    else:
        record.pending -= job.num_gpus if ended.transfer < 0 else 1
        if record.pending > 0:
            return
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
    resume_task(s, job, task, begin_ns)


@njit
def resume_task(s, job, task, begin_ns):
    """All predecessors of a task have ended: it has ended itself, or runs, or is ready."""
    run = s.run[0]
    record = s.tasks[job.first_task + task]
    now_ns = run.now_ns
    if begin_ns + record.ends_ns <= now_ns:
        return
    started_ns = begin_ns + record.begins_ns
    # What becomes ready at an instant begins at the end of that round.
    later_round = run.rounds > job.dormant_since_round if job.dormant_since_ns == now_ns else run.late == 1
    begun = started_ns < now_ns or (started_ns == now_ns and later_round)
    if record.transfer < 0:
        if begun:
            resume_compute(s, job, task, started_ns)
        else:
            make_ready(s, job.first_worker, task)
        return
    transfer = s.transfers[record.transfer]
    transfer.bytes_left = transfer.bytes
    transfer.latency_left_ns = transfer.latency_ns
    if begun:
        resume_transfer(s, record.transfer, started_ns)
    else:
        join_waiting(s, record.transfer)
        run.communicate = 1


@njit
def resume_compute(s, job, task, started_ns):
    run = s.run[0]
    gpu = s.workers[job.first_worker].gpu
    g = s.gpus[gpu]
    g.worker, g.task, g.started_ns = job.first_worker, task, started_ns
    record = s.tasks[job.first_task + task]
    schedule(run, s.heap, s.position, s.end_ns, gpu, started_ns + record.ends_ns - record.begins_ns)
    run.computing_gpus += job.num_gpus
    run.busy_ns -= np.float64(job.num_gpus) * (run.now_ns - run.sampled_ns)


@njit
def resume_transfer(s, number, started_ns):
    """Start a transfer in the past."""
    run = s.run[0]
    now_ns = run.now_ns
    run.now_ns = started_ns
    join_waiting(s, number)
    start_transfer(s, number)
    set_rate(s, number, local_rate(s, s.transfers[number]), most_sharing(s, s.transfers[number]))
    run.now_ns = now_ns


@njit
def dormant_busy_ns(s, job, from_ns, to_ns):
    """For how long each GPU of a dormant job computes between two times."""
    return dormant_busy_until_ns(s, job, to_ns) - dormant_busy_until_ns(s, job, max(from_ns, job.dormant_since_ns))


@njit
def dormant_busy_until_ns(s, job, time_ns):
    passed_ns = time_ns - job.dormant_since_ns
    busy_ns = passed_ns // job.period_ns * job.period_busy_ns
    passed_ns %= job.period_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].transfer < 0:
            busy_ns += max(min(passed_ns, s.tasks[task].ends_ns) - s.tasks[task].begins_ns, 0)
    return busy_ns


@njit
def dormant_sending(s, job, time_ns):
    """How many transfers of a dormant job run at a time."""
    if job.num_servers == 1:
        return 0
    passed_ns = (time_ns - job.dormant_since_ns) % job.period_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if task.begins_ns <= passed_ns < task.ends_ns:
            return 1
    return 0


@njit
def dormant_done_ns(s, job):
    """Compute time of the tasks that a worker has ended while its job was dormant."""
    passed_ns = s.run[0].now_ns - job.dormant_since_ns
    done_ns = passed_ns // job.period_ns * job.compute_ns
    passed_ns %= job.period_ns
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if s.tasks[task].transfer < 0 and s.tasks[task].ends_ns <= passed_ns:
            done_ns += s.tasks[task].duration_ns
    return done_ns


@njit
def dormant_sent_ns(s, job):
    """Load of the all-reduces that have ended while their job was dormant."""
    passed_ns = s.run[0].now_ns - job.dormant_since_ns
    sent_ns = passed_ns // job.period_ns * job.period_load_ns
    passed_ns %= job.period_ns
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        task = s.tasks[job.first_task + s.transfers[number].task]
        if task.ends_ns <= passed_ns:
            sent_ns += task.load_ns
    return sent_ns


# --- jumping: whole periods of jobs that share GPUs or links


MOST_JOBS = 16
"""Larger components are left alone: their state seldom recurs."""
MOST_TRIES = 1 << 12
"""A component whose state has not recurred in so many examinations is left alone until it changes."""


@njit
def find_root(s, number):
    root = number
    while s.jobs[root].root != root:
        root = s.jobs[root].root
    s.jobs[number].root = root
    return root


@njit
def join_components(s, number, other):
    root, other_root = find_root(s, number), find_root(s, other)
    s.jobs[max(root, other_root)].root = min(root, other_root)


@njit
def join_neighbours(s, number):
    """Join a job to those on its GPUs, and to those whose rings use its links."""
    run = s.run[0]
    job = s.jobs[number]
    if job.shared_gpus > 0:
        for worker in range(job.first_worker, job.first_worker + job.num_gpus):
            gpu = s.workers[worker].gpu
            for place in range(s.gpus[gpu].num_residents):
                join_components(s, number, s.workers[s.residents[gpu, place]].job)
    if job.shared_links > 0:
        transfer = s.transfers[job.first_transfer]
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            link = s.links[s.entries[e].link]
            if link.stamp == run.stamp:
                join_components(s, number, link.unfilled)
            else:
                link.stamp, link.unfilled = run.stamp, number


@njit
def find_components(s):
    """Group the running jobs by shared GPUs and links; nothing is known of the groups' past."""
    run = s.run[0]
    run.components_changed, run.first_due, run.num_words = 0, -1, 0
    for place in range(run.num_running):
        job = s.jobs[s.running[place]]
        job.root, job.next_member = s.running[place], -1
        job.anchor = job.due = 0
    run.stamp += 1
    for place in range(run.num_running):
        join_neighbours(s, s.running[place])
    for place in range(run.num_running):
        number = s.running[place]
        root = find_root(s, number)
        if root != number:
            s.jobs[number].next_member = s.jobs[root].next_member
            s.jobs[root].next_member = number
    for place in range(run.num_running):
        number = s.running[place]
        if s.jobs[number].root == number and s.jobs[number].dormant == 0:
            begin_component(s, number)


@njit
def begin_component(s, root):
    """Give a component room for a snapshot, and its most urgent job, which never starves, the part of the anchor."""
    run = s.run[0]
    anchor, number, count = root, root, 0
    while number >= 0:
        job = s.jobs[number]
        count += 1
        job.snapshot = run.num_words
        run.num_words += snapshot_words(s, job)
        if count > MOST_JOBS or run.num_words > len(s.snapshots):
            run.num_words = s.jobs[root].snapshot
            return
        if goes_before(run.order_rule, job, number, s.jobs[anchor], anchor):
            anchor = number
        number = job.next_member
    job = s.jobs[anchor]
    job.anchor = 1
    job.tries = job.window = job.resting_until_ns = 0


@njit
def should_be_lockstep(job):
    return 1 if job.shared_gpus == 0 and (job.uneven == 0 or job.num_gpus == 1) else 0


@njit
def snapshot_words(s, job):
    """The most words that :func:`walk_job` uses."""
    simulated = 1 if should_be_lockstep(job) == 1 else job.num_gpus
    words = 13 + job.num_tasks + simulated * (6 + 2 * job.num_tasks)
    if job.num_servers > 1 and job.num_transfers > 0:
        words += 8 * job.num_transfers + 2 * s.transfers[job.first_transfer].num_entries
    return words


@njit
def examine_components(s):
    """Between two instants: examine each component whose anchor has begun an iteration."""
    run = s.run[0]
    if run.jumping == 0 or (run.record == 1 and run.now_ns >= run.record_from_ns):
        run.components_changed, run.first_due = 0, -1
        return
    if run.components_changed == 1:
        find_components(s)
    while run.first_due >= 0:
        number = run.first_due
        run.first_due = s.jobs[number].next_due
        s.jobs[number].due = 0
        examine(s, number)


@njit
def examine(s, anchor):
    """Jump if the state is that of the snapshot; take another after 1, 2, 4, 8 ... examinations."""
    run = s.run[0]
    job = s.jobs[anchor]
    if run.now_ns <= job.resting_until_ns:
        return
    if job.window == 0 or job.resting_until_ns > 0:
        job.resting_until_ns = 0
        save(s, anchor)
        return
    job.tries += 1
    if walk(s, anchor, COMPARING, ZERO):
        if run.jumps == 0:
            run.events_to_recurrence = run.events
        jump(s, anchor)
    elif job.tries >= job.window:
        job.window *= 2
        save(s, anchor)
        if job.window > MOST_TRIES:
            job.anchor = 0


@njit
def save(s, anchor):
    run = s.run[0]
    job = s.jobs[anchor]
    job.saved_ns, job.tries = run.now_ns, 0
    if not walk(s, anchor, SAVING, ZERO):
        job.window = 0
    elif job.window == 0:
        job.window = 1


@njit
def jump(s, anchor):
    """Let as many periods pass at once as nothing from outside breaks, and start from there."""
    run = s.run[0]
    job = s.jobs[anchor]
    period_ns = run.now_ns - job.saved_ns
    limit_ns = quiet_until_ns(s, job.root)
    if limit_ns - run.now_ns < period_ns:
        job.resting_until_ns = limit_ns
        return
    periods = min((limit_ns - run.now_ns) // period_ns, most_periods(s, job.root))
    if periods > 0:
        run.jumps += 1
        book_periods(s, job.root, periods, run.now_ns + periods * period_ns)
        walk(s, anchor, COMPARING, periods)
    now_ns = run.now_ns
    run.now_ns += max(periods, 0) * period_ns
    save(s, anchor)
    run.now_ns = now_ns


@njit
def quiet_until_ns(s, root):
    """Until when nothing comes from outside of the component of ``root``, and nothing looks at it."""
    run = s.run[0]
    limit_ns = min(run.pause_ns, run.next_sample_ns, np.int64(4e18), run.next_capacity_ns - 1)
    if run.record == 1:
        limit_ns = min(limit_ns, run.record_from_ns)
    if run.next_arrival < len(s.arrivals):
        limit_ns = min(limit_ns, s.jobs[s.arrivals[run.next_arrival]].arrival_ns - 1)
    if run.wake_placement_ns >= 0:
        limit_ns = min(limit_ns, run.wake_placement_ns - 1)
    if run.wake_communication_ns >= 0:
        limit_ns = min(limit_ns, run.wake_communication_ns - 1)
    if run.num_queued > 0:
        for place in range(run.num_running):
            number = s.running[place]
            if s.jobs[number].root != root:
                limit_ns = min(limit_ns, earliest_finish_ns(s, number) - 1)
    return limit_ns


@njit
def earliest_finish_ns(s, number):
    """A time before which a job surely does not finish."""
    run = s.run[0]
    job = s.jobs[number]
    if job.dormant == 1:
        return s.end_ns[s.position[run.num_gpus + len(s.transfers) + number]]
    iteration_ns = job.compute_ns
    if job.uneven == 1:
        iteration_ns = np.int64(0)
        for task in range(job.num_tasks):
            if s.tasks[job.first_task + task].transfer < 0:
                iteration_ns += uneven_ns(s, job.first_worker, task)
    from_ns = max(run.now_ns, job.ahead_ns)
    most_iterations = (np.int64(4e18) - from_ns) // max(iteration_ns, 1)
    return from_ns + min(job.iterations_left - 1, most_iterations) * iteration_ns


@njit
def most_periods(s, root):
    """How often the last period may be repeated before a job of the component ends or the order of two changes."""
    run = s.run[0]
    periods = NEVER
    number = root
    while number >= 0:
        job = s.jobs[number]
        iterations = s.snapshots[job.snapshot] - job.iterations_left
        if iterations > 0:
            periods = min(periods, (job.iterations_left - 1) // iterations)
        other = root
        while other != number:
            periods = min(periods, periods_in_order(s, run.order_rule, number, other))
            if run.communication_rule == BY_SERVICE:
                periods = min(periods, periods_in_order(s, REMAINING_SERVICE, number, other))
            elif run.communication_rule == BY_SERVICE_PER_GPU:
                periods = min(periods, periods_in_order(s, PER_GPU, number, other))
            elif run.communication_rule == BY_TIME:
                periods = min(periods, periods_in_order(s, REMAINING_TIME, number, other))
            other = s.jobs[other].next_member
        number = job.next_member
    return periods


@njit
def key_fall(rule, job, iterations):
    """By how much a job's key falls in so many iterations."""
    if rule == REMAINING_SERVICE:
        return iterations * job.compute_ns * job.num_gpus
    if rule == WITH_COMMUNICATION:
        return iterations * (job.compute_ns + job.communication_ns) * job.num_gpus
    if rule == PER_GPU:
        return iterations * job.compute_ns
    if rule == REMAINING_TIME:
        return iterations * (job.compute_ns + job.communication_ns)
    if rule == ATTAINED:
        return -iterations * job.compute_ns * job.num_gpus
    return np.int64(0)


@njit
def periods_in_order(s, rule, number, other):
    """How often the last period may be repeated, in which two jobs keep their order.

    Keys move in one direction. If both move equally far in a period, every comparison comes out as it did. If not, they
    must be so far apart that the order is the same at whatever times of a period they are taken, the last one included.
    Of a divided key only whole numbers are looked at, so these must differ.
    """
    first, second = s.jobs[number], s.jobs[other]
    if goes_before(rule, second, other, first, number):
        first, second = second, first
    fall = key_fall(rule, first, s.snapshots[first.snapshot] - first.iterations_left)
    other_fall = key_fall(rule, second, s.snapshots[second.snapshot] - second.iterations_left)
    if fall == other_fall:
        return NEVER
    key, other_key = major_key(rule, first), major_key(rule, second)
    gap = min(other_key, other_key + other_fall) - max(key, key + fall)
    if gap <= 0:
        return np.int64(0)
    if fall > other_fall:
        return NEVER
    return (gap - 1) // (other_fall - fall)


@njit
def book_periods(s, root, periods, until_ns):
    """Count what the jobs of a component do in the periods that are jumped over."""
    run = s.run[0]
    number = root
    while number >= 0:
        job = s.jobs[number]
        iterations = periods * (s.snapshots[job.snapshot] - job.iterations_left)
        job.ahead_ns = until_ns
        run.jumped_iterations += iterations
        if job.shared_gpus > 0 or job.shared_links > 0:
            run.contended_iterations += iterations
        run.events += iterations * (job.num_tasks - job.num_transfers) * job.num_gpus
        if job.num_servers > 1:
            run.events += iterations * job.num_transfers
        number = job.next_member


# One walk over the state of a component notes it, compares it, or moves it on: ``kept`` is what has to recur,
# ``moved`` are amounts, which change by the same in every period, and ``shifted`` times of what happened last.


@njit
def kept(words, at, value, saving):
    if saving:
        words[at] = value
    return words[at] == value


@njit
def moved(words, at, value, saving, times):
    if saving:
        words[at] = value
    return value + times * (value - words[at])


@njit
def shifted(time_ns, saved_ns, shift_ns):
    """What happened in the last period happens in each; what did not, never."""
    return time_ns + shift_ns if time_ns > saved_ns else time_ns


@njit
def bits(value):
    """The bits of a float: equal if and only if it is the same."""
    return np.float64(value).view(np.int64)


@njit
def ends_in_ns(s, item):
    """In what time an item of the heap ends, or -1."""
    return s.end_ns[s.position[item]] - s.run[0].now_ns if s.position[item] >= 0 else np.int64(-1)


COMPARING, SAVING = numbers(2)


@njit
def walk(s, anchor, saving, times):
    """Save a component's state, or move it on by so many periods if it is the saved one; return whether it is."""
    run = s.run[0]
    run.stamp += 1
    saved_ns = s.jobs[anchor].saved_ns
    shift_ns = times * (run.now_ns - saved_ns)
    number = s.jobs[anchor].root
    while number >= 0:
        if not walk_job(s, number, saving, times, saved_ns, shift_ns):
            return False
        number = s.jobs[number].next_member
    return True


@njit
def walk_job(s, number, saving, times, saved_ns, shift_ns):
    job, words = s.jobs[number], s.snapshots
    if job.restarting == 1 or job.lockstep != should_be_lockstep(job):
        return False
    unsafe = (job.start_iterations_left - job.iterations_left) % s.run[0].checkpoint_iterations
    at = job.snapshot + 7
    for value in (
        job.steps_left,
        job.active_transfers,
        job.waiting_transfers,
        job.running_workers,
        job.lockstep,
        unsafe,
    ):
        if not kept(words, at, value, saving):
            return False
        at += 1
    for task in range(job.first_task, job.first_task + job.num_tasks):
        if not kept(words, at, s.tasks[task].pending, saving):
            return False
        at += 1
    if job.num_servers > 1:
        for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
            if not walk_transfer(s, transfer, at, saving, times, saved_ns, shift_ns):
                return False
            at += 8
    simulated = 1 if job.lockstep == 1 else job.num_gpus
    for worker in range(job.first_worker, job.first_worker + simulated):
        if not walk_worker(s, worker, at, saving, times, shift_ns):
            return False
        at += 6 + 2 * job.num_tasks
    if saving or times > 0:
        if job.num_servers > 1 and job.num_transfers > 0:
            walk_links(s, s.transfers[job.first_transfer], at, saving, times)
        count_time(job, s.run[0].now_ns)
        walk_amounts(s, job, saving, times)
        job.since_ns += shift_ns
        job.checkpoint_ns = shifted(job.checkpoint_ns, saved_ns, shift_ns)
        job.iteration_ns = shifted(job.iteration_ns, saved_ns, shift_ns)
    return True


@njit
def walk_amounts(s, job, saving, times):
    words, at = s.snapshots, job.snapshot
    job.iterations_left = moved(words, at, job.iterations_left, saving, times)
    job.remaining_service_ns = moved(words, at + 1, job.remaining_service_ns, saving, times)
    job.load_left_ns = moved(words, at + 2, job.load_left_ns, saving, times)
    job.computing_ns = moved(words, at + 3, job.computing_ns, saving, times)
    job.gpu_wait_ns = moved(words, at + 4, job.gpu_wait_ns, saving, times)
    job.communicating_ns = moved(words, at + 5, job.communicating_ns, saving, times)
    job.network_wait_ns = moved(words, at + 6, job.network_wait_ns, saving, times)


@njit
def walk_transfer(s, number, at, saving, times, saved_ns, shift_ns):
    run, words = s.run[0], s.snapshots
    transfer = s.transfers[number]
    item = run.num_gpus + number
    since_ns = run.now_ns - transfer.since_ns if transfer.state == ACTIVE else np.int64(0)
    for value in (
        transfer.state,
        ends_in_ns(s, item),
        since_ns,
        bits(transfer.bytes_left),
        bits(transfer.latency_left_ns),
        bits(transfer.rate),
        transfer.sharing,
    ):
        if not kept(words, at, value, saving):
            return False
        at += 1
    transfer.since_ns = shifted(transfer.since_ns, saved_ns, shift_ns)
    transfer.segment_ns = shifted(transfer.segment_ns, saved_ns, shift_ns)
    transfer.times_sent = moved(words, at, transfer.times_sent, saving, times)
    if shift_ns > 0 and s.position[item] >= 0:
        schedule(run, s.heap, s.position, s.end_ns, item, s.end_ns[s.position[item]] + shift_ns)
    return True


@njit
def walk_worker(s, number, at, saving, times, shift_ns):
    run, words = s.run[0], s.snapshots
    worker = s.workers[number]
    job = s.jobs[worker.job]
    g = s.gpus[worker.gpu]
    running = g.worker == number
    task = g.task if running else np.int64(-1)
    ends_ns = ends_in_ns(s, worker.gpu) if running else np.int64(-1)
    for value in (task, ends_ns, worker.num_ready, worker.first_ready):
        if not kept(words, at, value, saving):
            return False
        at += 1
    for flag in range(worker.first_flag, worker.first_flag + job.num_tasks):
        if not (kept(words, at + 2, s.pending[flag], saving) and kept(words, at + 3, np.int64(s.ready[flag]), saving)):
            return False
        at += 2
    at -= 2 * job.num_tasks
    if times > 0:
        busy_ns = times * (worker.busy_ns - words[at + 1]) - (shift_ns if running else 0)
        run.busy_ns += np.float64(job.num_gpus if job.lockstep == 1 else 1) * busy_ns
    worker.done_ns = moved(words, at, worker.done_ns, saving, times)
    worker.busy_ns = moved(words, at + 1, worker.busy_ns, saving, times)
    if running:
        g.started_ns += shift_ns
        if shift_ns > 0:
            schedule(run, s.heap, s.position, s.end_ns, worker.gpu, s.end_ns[s.position[worker.gpu]] + shift_ns)
    return True


@njit
def walk_links(s, transfer, at, saving, times):
    """Each link once, though several rings use it."""
    run, words = s.run[0], s.snapshots
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.stamp != run.stamp:
            link.stamp = run.stamp
            link.busy_since_ns = moved(words, at, link.busy_since_ns, saving, times)
            link.busy_ns = moved(words, at + 1, link.busy_ns, saving, times)
            at += 2


# --- placement (called from Python) and departure


@njit
def expand(s, job):
    """End a job's lockstep: give every worker the state of the first."""
    run = s.run[0]
    count_time(job, run.now_ns)
    first = s.workers[job.first_worker]
    running = s.gpus[first.gpu].worker == job.first_worker
    job.running_workers = job.num_gpus if running else 0
    for number in range(job.first_worker + 1, job.first_worker + job.num_gpus):
        worker = s.workers[number]
        worker.done_ns, worker.busy_ns = first.done_ns, first.busy_ns
        worker.first_ready, worker.num_ready = first.first_ready, first.num_ready
        for task in range(job.num_tasks):
            s.pending[worker.first_flag + task] = s.pending[first.first_flag + task]
            s.ready[worker.first_flag + task] = s.ready[first.first_flag + task]
        if running:
            s.gpus[worker.gpu].worker = number
            s.gpus[worker.gpu].task = s.gpus[first.gpu].task
            s.gpus[worker.gpu].started_ns = s.gpus[first.gpu].started_ns
            schedule(run, s.heap, s.position, s.end_ns, worker.gpu, s.end_ns[s.position[first.gpu]])
        elif worker.num_ready > 0:
            touch_gpu(run, s.gpus, s.touched_gpus, worker.gpu)
    job.lockstep = 0


@called_from_python
def place_job(s, number, stay, chosen, num_servers, ring_links, wire_bytes, latency_ns, load_ns, hold_ns):
    """Step 3: put a job on the GPUs ``chosen``, its stay number ``stay`` of the run.

    It holds them for ``hold_ns`` before its first task. ``wire_bytes``, ``latency_ns`` and ``load_ns`` have an entry
    for each of the job's all-reduces.
    """
    run = s.run[0]
    job = s.jobs[number]
    job.state = RUNNING
    job.stay = stay
    if job.restarts == 0:
        job.start_ns = run.now_ns
    job.start_iterations_left = job.iterations_left
    job.queueing_ns += run.now_ns - job.since_ns
    job.since_ns = job.checkpoint_ns = run.now_ns
    job.num_servers = num_servers
    job.uneven = 1 if len(s.jitter) > 1 else 0
    for i in range(job.num_gpus):
        join_gpu(s, job, job.first_worker + i, chosen[i])
        if s.gpus[chosen[i]].slowness != 1.0:
            job.uneven = 1
    join_links(s, number, ring_links)
    job.running_place = run.num_running
    s.running[run.num_running] = number
    run.num_running += 1
    run.components_changed = 1
    job.profiled = 0
    for i in range(job.num_transfers):
        transfer = s.transfers[job.first_transfer + i]
        transfer.bytes, transfer.latency_ns = wire_bytes[i], latency_ns[i]
        transfer.first_entry, transfer.num_entries = run.num_entries, len(ring_links)
        for link in ring_links:
            s.entries[run.num_entries].link = link
            s.entries[run.num_entries].transfer = job.first_transfer + i
            run.num_entries += 1
        s.tasks[job.first_task + transfer.task].load_ns = load_ns[i]
        job.load_left_ns += load_ns[i] * job.iterations_left
    if hold_ns > 0:
        hold_gpus(s, number, hold_ns)
        return
    start_iteration(s, job)
    do_work(s)
    if run.num_finished > 0:
        run.again = 1


@njit
def hold_gpus(s, number, hold_ns):
    """A job that starts again, or with another size, holds its GPUs before its first task."""
    run = s.run[0]
    s.jobs[number].restarting = 1
    end = run.now_ns + hold_ns
    if end < run.now_ns:
        run.clock_overflow = 1
        end = run.now_ns
    schedule(run, s.heap, s.position, s.end_ns, run.num_gpus + len(s.transfers) + number, end)


@njit
def end_restart(s, number):
    job = s.jobs[number]
    count_time(job, s.run[0].now_ns)
    job.restarting = 0
    job.checkpoint_ns = s.run[0].now_ns
    start_iteration(s, job)


@njit
def classes_with_room(s, free_bytes):
    """How many classes of memory a GPU with so much free memory has room for."""
    low, high = 0, len(s.memory_classes)
    while low < high:
        middle = (low + high) >> 1
        if s.memory_classes[middle] <= free_bytes:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def add_room(s, fits, count):
    place = fits + 1
    while place < len(s.room):
        s.room[place] += count
        place += place & -place


@called_from_python
def count_room(s):
    """Before the first event: count all GPUs."""
    for gpu in range(len(s.gpus)):
        add_room(s, ZERO, ONE)
        change_free_bytes(s, gpu, ZERO)


@njit
def change_free_bytes(s, gpu, by_bytes):
    run = s.run[0]
    g = s.gpus[gpu]
    g.free_bytes += by_bytes
    fits = classes_with_room(s, g.free_bytes)
    if fits == g.fits:
        return
    add_room(s, g.fits, -ONE)
    add_room(s, fits, ONE)
    if g.fits == 0:
        g.open_place = run.num_open_gpus
        s.open_gpus[run.num_open_gpus] = gpu
        run.num_open_gpus += 1
    elif fits == 0:
        run.num_open_gpus -= 1
        last = s.open_gpus[run.num_open_gpus]
        s.open_gpus[g.open_place] = last
        s.gpus[last].open_place = g.open_place
    g.fits = fits


@called_from_python
def next_fitting(s, queue, place):
    """The first place in ``queue``, from ``place`` on, of a job for which enough GPUs have the memory, or -1."""
    if s.run[0].num_open_gpus == 0:
        return -1
    while place < len(queue):
        job = s.jobs[queue[place]]
        too_small = 0
        node = job.memory_class + 1
        while node > 0:
            too_small += s.room[node]
            node -= node & -node
        if len(s.gpus) - too_small >= job.num_gpus:
            return place
        place += 1
    return -1


@njit
def join_gpu(s, job, number, gpu):
    s.workers[number].gpu = gpu
    s.workers[number].done_ns = s.workers[number].busy_ns = 0
    g = s.gpus[gpu]
    # An elastic job takes all and one byte more, so that no other job fits, however little it needs.
    s.workers[number].memory_bytes = g.free_bytes + 1 if job.elastic == 1 else job.memory_bytes
    change_free_bytes(s, gpu, -s.workers[number].memory_bytes)
    if g.num_residents > 0:
        job.shared_gpus += 1
    else:
        s.run[0].allocated_gpus += 1
    if g.num_residents == 1:
        other = s.jobs[s.workers[s.residents[gpu, 0]].job]
        if other.dormant == 1:
            wake(s, s.workers[s.residents[gpu, 0]].job)
        other.shared_gpus += 1
        if other.lockstep == 1:
            expand(s, other)
    s.residents[gpu, g.num_residents] = number
    g.num_residents += 1
    add_penalties(s, gpu)


@njit
def add_penalties(s, gpu):
    """Say of each job on a GPU how much longer its tasks take because of the others there."""
    if len(s.penalties_ppm) == 0:
        return
    count = s.gpus[gpu].num_residents
    for place in range(count):
        worker = s.workers[s.residents[gpu, place]]
        kind = s.jobs[worker.job].kind
        worker.penalty_ppm = 0
        for other in range(count):
            if other != place:
                worker.penalty_ppm += s.penalties_ppm[kind, s.jobs[s.workers[s.residents[gpu, other]].job].kind]


@njit
def join_links(s, number, ring_links):
    """Count a job's ring on its links; ``ring_jobs`` adds up jobs' numbers, so that of one alone it is the number."""
    run = s.run[0]
    job = s.jobs[number]
    job.shared_links = 0
    if job.num_transfers == 0:
        return
    for place in ring_links:
        link = s.links[place]
        if link.rings == 1 and s.jobs[link.ring_jobs].dormant == 1:
            wake(s, link.ring_jobs)
    run.stamp += 1
    for place in ring_links:
        link = s.links[place]
        if link.stamp == run.stamp:  # a ring may cross a link more than once
            continue
        link.stamp = run.stamp
        if link.rings == 1:
            s.jobs[link.ring_jobs].shared_links += 1
        if link.rings > 0:
            job.shared_links += 1
        link.rings += 1
        link.ring_jobs += number


@njit
def leave_links(s, job):
    run = s.run[0]
    if job.num_transfers == 0:
        return
    number = s.workers[job.first_worker].job
    transfer = s.transfers[job.first_transfer]
    run.stamp += 1
    for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
        link = s.links[s.entries[e].link]
        if link.stamp == run.stamp:
            continue
        link.stamp = run.stamp
        link.rings -= 1
        link.ring_jobs -= number
        if link.rings == 1:
            s.jobs[link.ring_jobs].shared_links -= 1


@njit
def leave_gpu(s, number):
    gpu = s.workers[number].gpu
    g = s.gpus[gpu]
    change_free_bytes(s, gpu, s.workers[number].memory_bytes)
    g.num_residents -= 1
    place = 0
    while s.residents[gpu, place] != number:
        place += 1
    s.residents[gpu, place] = s.residents[gpu, g.num_residents]
    add_penalties(s, gpu)
    if g.num_residents == 1:
        s.jobs[s.workers[s.residents[gpu, 0]].job].shared_gpus -= 1
    if g.num_residents == 0:
        s.run[0].allocated_gpus -= 1


@njit
def book(s, job):
    """Write down what a job has done on its GPUs and links since it was placed."""
    book_computing(s, job)
    for number in range(job.first_transfer, job.first_transfer + job.num_transfers):
        transfer = s.transfers[number]
        sent_bytes = transfer.bytes * transfer.times_sent
        if transfer.state != IDLE:
            sent_bytes += transfer.bytes - bytes_left_now(transfer, s.run[0].now_ns)
        transfer.times_sent = 0
        for e in range(transfer.first_entry, transfer.first_entry + transfer.num_entries):
            s.links[s.entries[e].link].bytes += sent_bytes


@njit
def book_computing(s, job):
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        busy_ns = s.workers[job.first_worker].busy_ns if job.lockstep == 1 else s.workers[number].busy_ns
        job.busy_ns += busy_ns
        job.busy_per_gpu_ns += busy_ns / job.num_gpus
        s.gpus[s.workers[number].gpu].busy_ns += busy_ns
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        s.workers[number].busy_ns = 0


@njit
def leave_running(s, job):
    run = s.run[0]
    run.num_running -= 1
    last = s.running[run.num_running]
    s.running[job.running_place] = last
    s.jobs[last].running_place = job.running_place
    job.anchor = job.due = 0
    run.components_changed = 1


@njit
def remove_job(s, job):
    """A job leaves its GPUs."""
    book(s, job)
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        leave_gpu(s, number)
    leave_links(s, job)
    leave_running(s, job)
    s.run[0].must_place = 1


@njit
def remove_finished(s):
    run = s.run[0]
    for place in range(run.num_finished):
        remove_job(s, s.jobs[s.finished[place]])
        run.num_jobs_left -= 1
    run.num_finished = 0


# --- servers that fail and come back (called from Python)


@njit
def cut_compute(s, job, number):
    """The task that a worker's GPU is running for it ends undone."""
    run = s.run[0]
    worker = s.workers[number]
    g = s.gpus[worker.gpu]
    if g.worker == number:
        if run.record == 1:
            record_slice(s, CUT_SLICE, number, job, g.task, g.started_ns, ZERO, 0.0)
        stop_computing(run, g, worker, job, ONE)
        unschedule(run, s.heap, s.position, s.end_ns, worker.gpu)
        touch_gpu(run, s.gpus, s.touched_gpus, worker.gpu)


@njit
def cut_transfer(s, number):
    """A transfer vanishes, running or waiting."""
    run = s.run[0]
    transfer = s.transfers[number]
    if transfer.state == ACTIVE:
        pause_transfer(s, number)
    if transfer.state == WAITING:
        leave_waiting(s, number)
        run.rerate = run.communicate = 1


@njit
def forget_iteration(s, job):
    """Withdraw all that is ready and all that has ended of the current iteration."""
    for task in range(job.first_task, job.first_task + job.num_tasks):
        record = s.tasks[task]
        record.pending = record.compute_predecessors * job.num_gpus + record.reduce_predecessors
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        worker = s.workers[number]
        worker.num_ready = 0
        for task in range(job.num_tasks):
            record = s.tasks[job.first_task + task]
            s.ready[worker.first_flag + task] = 0
            s.pending[worker.first_flag + task] = record.compute_predecessors + record.reduce_predecessors


@called_from_python
def most_slices(run):
    """The most that an instant can record: tasks and transfers end, change, start, and a failure cuts all."""
    return 2 * run.heap_size + 4 * run.num_active + 2 * run.num_waiting + 2 * run.num_gpus + 16


@called_from_python
def stop_job(s, number, checkpoint_iterations):
    """A job loses its GPUs and its work since its last checkpoint, and goes back to the queue."""
    run = s.run[0]
    job = s.jobs[number]
    if job.dormant == 1:
        wake(s, number)
    if job.lockstep == 1:
        expand(s, job)
    for worker in range(job.first_worker, job.first_worker + job.num_gpus):
        cut_compute(s, job, worker)
    count_time(job, run.now_ns)
    remove_job(s, job)
    for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
        cut_transfer(s, transfer)
    forget_iteration(s, job)
    if job.restarting == 1:
        unschedule(run, s.heap, s.position, s.end_ns, run.num_gpus + len(s.transfers) + number)
        job.restarting = 0
    else:
        job.lost_ns += run.now_ns - (job.iteration_ns if checkpoint_iterations == 1 else job.checkpoint_ns)
    lost = (job.start_iterations_left - job.iterations_left) % checkpoint_iterations
    job.iterations_left += lost
    job.samples_left = max(job.samples_left - (job.start_iterations_left - job.iterations_left) * job.batch, 0)
    job.lost_samples += lost * job.batch
    job.start_iterations_left = job.iterations_left
    job.remaining_service_ns = job.iterations_left * job.compute_ns * job.num_gpus
    job.load_left_ns = job.communication_ns = job.num_servers = job.shared_gpus = 0
    job.restarts += 1
    job.state = QUEUED
    join_queue(s, number)


@njit
def join_queue(s, number):
    """A job waits: for the placement policy, or if it is elastic for the allocation policy."""
    run = s.run[0]
    if s.jobs[number].elastic == 1:
        run.num_elastic_queued += 1
    else:
        s.queue[run.num_queued] = number
        run.num_queued += 1


@called_from_python
def fail_gpus(s, gpus, checkpoint_iterations):
    """After step 2: every job with one of these GPUs stops, but for those that have just finished."""
    for gpu in gpus:
        place = 0
        while place < s.gpus[gpu].num_residents:
            number = s.workers[s.residents[gpu, place]].job
            if s.jobs[number].state == RUNNING:
                stop_job(s, number, checkpoint_iterations)
            else:
                place += 1
        change_free_bytes(s, gpu, -OFFLINE_BYTES)
    s.run[0].must_place = 1


@called_from_python
def restore_gpus(s, gpus):
    for gpu in gpus:
        change_free_bytes(s, gpu, OFFLINE_BYTES)
    s.run[0].must_place = 1


@called_from_python
def add_busy_ns(s, busy_ns):
    """Add to ``busy_ns`` what each GPU has computed so far."""
    wake_all(s)
    for gpu in range(len(s.gpus)):
        busy_ns[gpu] += s.gpus[gpu].busy_ns
        for place in range(s.gpus[gpu].num_residents):
            number = s.residents[gpu, place]
            job = s.jobs[s.workers[number].job]
            source = job.first_worker if job.lockstep == 1 else number
            busy_ns[gpu] += s.workers[source].busy_ns
            g = s.gpus[s.workers[source].gpu]
            if g.worker == source:
                busy_ns[gpu] += s.run[0].now_ns - g.started_ns


@called_from_python
def close_books(s):
    """At the end of a run that was cut off: count what unfinished jobs have done and waited so far."""
    run = s.run[0]
    wake_all(s)
    for number in range(len(s.jobs)):
        job = s.jobs[number]
        if job.state == QUEUED:
            job.queueing_ns += run.now_ns - job.since_ns
            job.since_ns = run.now_ns
        elif job.state == RUNNING:
            if job.lockstep == 1:
                expand(s, job)
            job.samples_left = max(job.samples_left - (job.start_iterations_left - job.iterations_left) * job.batch, 0)
            count_time(job, run.now_ns)
            for worker in range(job.first_worker, job.first_worker + job.num_gpus):
                cut_compute(s, job, worker)
            book(s, job)
            for transfer in range(job.first_transfer, job.first_transfer + job.num_transfers):
                if s.transfers[transfer].state == ACTIVE:
                    stop_transfer(s, transfer)
                elif s.transfers[transfer].state == WAITING:
                    leave_waiting(s, transfer)


# --- samples of the whole cluster's state, at most as many as there are records


@called_from_python
def take_samples(s, until_ns):
    """Record the state, which stays as it is until ``until_ns``, at each sampling time before that."""
    run = s.run[0]
    while run.next_sample_ns < until_ns:
        if run.num_samples == len(s.samples) - 1:  # the last is for the end of the run
            merge_samples(s)
            if run.next_sample_ns >= until_ns:
                return
        take_sample(s, run.next_sample_ns)
        if run.next_sample_ns > NEVER - run.sample_step_ns:
            run.next_sample_ns = NEVER
        else:
            run.next_sample_ns += run.sample_step_ns


@called_from_python
def take_sample(s, time_ns):
    run = s.run[0]
    record = s.samples[run.num_samples]
    run.num_samples += 1
    record.time_ns = time_ns
    record.busy_ns = run.busy_ns + np.float64(run.computing_gpus) * (time_ns - run.sampled_ns)
    record.allocated_gpus, record.queued_jobs = run.allocated_gpus, run.num_queued + run.num_elastic_queued
    record.active_transfers, record.waiting_transfers = run.num_active, run.num_waiting
    for place in range(run.num_dormant):
        job = s.jobs[s.dormant[place]]
        record.busy_ns += np.float64(job.num_gpus) * dormant_busy_ns(s, job, run.sampled_ns, time_ns)
        record.active_transfers += dormant_sending(s, job, time_ns)
    run.busy_ns = 0.0
    run.sampled_ns = time_ns


@njit
def merge_samples(s):
    """Make one of every two samples, and take half as many from now on."""
    run = s.run[0]
    for place in range(run.num_samples // 2):
        busy_ns = s.samples[2 * place].busy_ns
        s.samples[place] = s.samples[2 * place + 1]
        s.samples[place].busy_ns += busy_ns
    run.num_samples //= 2
    run.sample_step_ns *= 2
    run.next_sample_ns = run.sampled_ns + run.sample_step_ns


@called_from_python
def fill_loads(s, gpus, load_ns):
    """Fill ``load_ns`` with the load of each GPU of ``gpus``: its residents' remaining compute and communication."""
    for i in range(len(gpus)):
        gpu = gpus[i]
        compute_ns = np.int64(0)
        load_ns[i] = 0
        for place in range(s.gpus[gpu].num_residents):
            worker = s.workers[s.residents[gpu, place]]
            job = s.jobs[worker.job]
            done_ns = s.workers[job.first_worker].done_ns if job.lockstep == 1 else worker.done_ns
            if job.dormant == 1:
                done_ns += dormant_done_ns(s, job)
                load_ns[i] -= dormant_sent_ns(s, job)
            compute_ns += job.compute_ns * job.start_iterations_left - done_ns
            load_ns[i] += job.load_left_ns
        if s.gpus[gpu].relative_speed != 1.0:
            compute_ns = np.int64(np.rint(compute_ns / s.gpus[gpu].relative_speed))
        load_ns[i] += compute_ns


# --- step 5, and the loop


@njit
def resident_to_run(s, gpu):
    """The worker whose ready task the GPU takes next, or -1."""
    rule = s.run[0].order_rule
    best, best_job = -1, -1
    best_major, best_minor = 0, 0.0
    for place in range(s.gpus[gpu].num_residents):
        number = s.residents[gpu, place]
        worker = s.workers[number]
        if worker.num_ready == 0:
            continue
        job = s.jobs[worker.job]
        major = major_key(rule, job)
        minor = minor_key(rule, job)
        if best >= 0:
            if major > best_major or (major == best_major and minor > best_minor):
                continue
            if major == best_major and minor == best_minor and worker.job > best_job:
                continue
        best, best_job, best_major, best_minor = number, worker.job, major, minor
    return best


@njit
def dispatch(s):
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
        start_computing(run, g, number, job, job.num_gpus if job.lockstep == 1 else 1)
        g.task = take_ready(s, worker)
        if job.uneven == 1 or worker.penalty_ppm > 0:
            end = run.now_ns + uneven_ns(s, number, g.task)
        else:
            end = run.now_ns + s.tasks[job.first_task + g.task].duration_ns
        if end < run.now_ns:
            run.clock_overflow = 1
            end = run.now_ns
        schedule(run, s.heap, s.position, s.end_ns, gpu, end)
    run.num_touched_gpus = 0


@njit
def add_rival(s, count, number):
    job = s.jobs[number]
    if job.stamp == s.run[0].stamp:
        return count
    job.stamp = s.run[0].stamp
    s.items[count] = number
    return count + 1


@called_from_python
def gather_rivals(s):
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
def next_instant_ns(s):
    run = s.run[0]
    if run.again == 1:
        return run.now_ns
    instant = NEVER
    if run.heap_size > 0:
        instant = s.end_ns[0]
    if run.next_arrival < len(s.arrivals):
        instant = min(instant, s.jobs[s.arrivals[run.next_arrival]].arrival_ns)
    if run.wake_placement_ns >= 0:
        instant = min(instant, run.wake_placement_ns)
    if run.wake_communication_ns >= 0:
        instant = min(instant, run.wake_communication_ns)
    return min(instant, run.next_capacity_ns)


@njit
def take_events(s):
    """Steps 1 and 2 of the instant ``now_ns``."""
    run = s.run[0]
    run.again = 0
    while run.heap_size > 0 and s.end_ns[0] == run.now_ns:
        item = take_first(run, s.heap, s.position, s.end_ns)
        if item < run.num_gpus:
            end_compute(s, item)
        elif item < run.num_gpus + len(s.transfers):
            end_transfer(s, item - run.num_gpus)
        elif s.jobs[item - run.num_gpus - len(s.transfers)].dormant == 1:
            wake(s, item - run.num_gpus - len(s.transfers))
        else:
            end_restart(s, item - run.num_gpus - len(s.transfers))
    while run.next_arrival < len(s.arrivals) and s.jobs[s.arrivals[run.next_arrival]].arrival_ns == run.now_ns:
        number = s.arrivals[run.next_arrival]
        run.next_arrival += 1
        s.jobs[number].state = QUEUED
        s.jobs[number].since_ns = run.now_ns
        join_queue(s, number)
        run.must_place = 1
    if run.wake_placement_ns == run.now_ns:
        run.wake_placement_ns = -1
        run.must_place = 1
    if run.wake_communication_ns == run.now_ns:
        run.wake_communication_ns = -1
        run.communicate = 1
    do_work(s)


@called_from_python
def advance(s):
    """Run until Python is needed, and return what for."""
    run = s.run[0]
    while True:
        if run.stage == EVENTS:
            if run.clock_overflow == 1:
                return CLOCK_OVERFLOW
            room = len(s.slices) - run.num_slices
            if run.record == 1 and most_slices(run) > room:
                return ASK_FLUSH
            if run.num_jobs_left == 0:
                return DONE
            instant = next_instant_ns(s)
            if (run.first_due >= 0 or run.components_changed == 1) and instant > run.instant_ns:
                examine_components(s)
                instant = next_instant_ns(s)
            if instant > run.pause_ns:
                run.now_ns = run.pause_ns
                run.late = 1
                return PAUSED
            if instant == NEVER:
                return STUCK
            if instant > run.next_sample_ns:
                take_samples(s, instant)
            run.late = 1 if instant == run.instant_ns else 0
            run.now_ns = run.instant_ns = instant
            take_events(s)
            run.stage = CAPACITY
        if run.stage == CAPACITY:
            run.stage = KEYS
            if run.next_capacity_ns == run.now_ns:
                return ASK_CAPACITY
        if run.stage == KEYS:
            run.stage = ALLOCATION
            if run.order_rule == PYTHON_ORDER and gather_rivals(s) > 1:
                return ASK_KEYS
        if run.stage == ALLOCATION:
            run.stage = PLACEMENT
            remove_finished(s)
            if run.must_place == 1 and run.elastic == 1:
                return ASK_ALLOCATION
        if run.stage == PLACEMENT:
            run.stage = COMMUNICATION
            placing = run.must_place == 1 and run.num_queued > 0
            run.must_place = 0
            if placing:
                sort_queue(s)
                return ASK_PLACEMENT
        if run.stage == COMMUNICATION:
            run.stage = RATES
            if run.communicate == 1:
                run.communicate = 0
                if run.communication_rule <= PYTHON_SELECT:
                    return ASK_COMMUNICATION
                if run.communication_rule >= BY_SERVICE:
                    select_transfers(s)
                else:
                    admit_transfers(s)
        if run.stage == RATES:
            run.stage = DISPATCH
            if run.rerate == 1:
                if run.contention_rule == PYTHON_RATES:
                    if run.num_active > 0:
                        return ASK_RATES
                elif run.contention_rule == MAX_MIN:
                    rerate_max_min(s)
                else:
                    rerate_neighbours(s)
                forget_touched_links(s)
        dispatch(s)
        run.stage = EVENTS
        run.rounds += 1
        if run.rounds % ROUNDS_BETWEEN_SIGNALS == 0:
            return HEAR_SIGNALS
