"""Groups of GPUs in lockstep: GPUs with the same jobs in the same state do the same, so that one stands for all.

Whatever changes the tasks of one worker of a job changes those of all at once: an iteration begins for all, an
all-reduce ends for all, and a GPU takes by an order that asks jobs, not GPUs. So GPUs that hold the same jobs, all of
whose workers there have done the same, run the same task since the same instant and have the same ready, stay alike
until a job joins or leaves some of them. One, the leader, is simulated and counts for the group; the workers on the
others have no tasks, and hold in ``busy_ns`` by how much they have computed longer than the leader's.
"""

from __future__ import annotations

from ddlsched.engine.loop.heap import schedule, unschedule
from ddlsched.engine.loop.tasks import join_ready, leave_ready, touch_gpu
from ddlsched.engine.native.jit import called_by_address, njit
from ddlsched.engine.records import Records, State

MOST_COMPARED = 16
"""A GPU is compared with so many others of its job at most."""
LONGEST_WAIT = 256
"""For so many iterations at most a job waits until its GPUs are compared again."""
NO_NEED = 1 << 60
"""For GPUs that will not become alike before a job joins or leaves one of them."""


@njit
def worker_on(s: State, gpu: int, job_number: int) -> int:
    """A job's worker on a GPU, or -1."""
    for place in range(s.gpus[gpu].num_residents):
        number = s.residents[gpu, place]
        if s.workers[number].job == job_number:
            return number
    return -1


@njit
def same_progress(s: State, number: int, other: int) -> bool:
    """Whether two workers of a job have done the same and have the same ready."""
    worker, mate = s.workers[number], s.workers[other]
    if worker.done_ns != mate.done_ns or worker.num_ready != mate.num_ready or worker.penalty_ppm != mate.penalty_ppm:
        return False
    for task in range(s.jobs[worker.job].num_tasks):
        flag, other_flag = worker.first_flag + task, mate.first_flag + task
        if s.pending[flag] != s.pending[other_flag] or s.ready[flag] != s.ready[other_flag]:
            return False
    return True


@njit
def same_running(s: State, gpu: int, other: int) -> bool:
    """Whether two GPUs run the same task of a job since the same instant, or nothing."""
    g, o = s.gpus[gpu], s.gpus[other]
    if g.worker < 0 or o.worker < 0:
        return g.worker < 0 and o.worker < 0
    return (
        s.workers[g.worker].job == s.workers[o.worker].job
        and g.task == o.task
        and g.started_ns == o.started_ns
        and s.end_ns[s.position[gpu]] == s.end_ns[s.position[other]]
    )


@njit
def alike(s: State, gpu: int, other: int) -> bool:
    if s.gpus[gpu].num_residents != s.gpus[other].num_residents or not same_running(s, gpu, other):
        return False
    for place in range(s.gpus[gpu].num_residents):
        number = s.residents[gpu, place]
        job = s.jobs[s.workers[number].job]
        mate = worker_on(s, other, s.workers[number].job)
        if mate < 0 or job.uneven == 1 or job.lockstep == 1 or not same_progress(s, number, mate):
            return False
    return True


@njit
def follow(s: State, gpu: int, leader: int) -> None:
    """A GPU that is like another one, and leads none, is no longer simulated."""
    run = s.run[0]
    g, first = s.gpus[gpu], s.gpus[leader]
    if g.worker >= 0:
        unschedule(run, s.heap, s.position, s.end_ns, gpu)
        s.jobs[s.workers[g.worker].job].running_workers -= 1
        g.worker = -1
    if g.touched == 1:
        touch_gpu(run, s.gpus, s.touched_gpus, leader)
    for place in range(g.num_residents):
        number = s.residents[gpu, place]
        worker = s.workers[number]
        if worker.num_ready > 0:
            leave_ready(s, number)
        worker.leader = worker_on(s, leader, worker.job)
        worker.busy_ns -= s.workers[worker.leader].busy_ns
    g.next_in_group, first.next_in_group = first.next_in_group, gpu
    g.leader = leader
    first.group_size += 1


@njit
def stand_alone(s: State, gpu: int, leader: int) -> None:
    """Simulate a GPU again, from the state that its leader has."""
    g = s.gpus[gpu]
    g.leader, g.next_in_group = gpu, -1
    for place in range(g.num_residents):
        number = s.residents[gpu, place]
        worker = s.workers[number]
        mate = s.workers[worker.leader]
        for task in range(s.jobs[worker.job].num_tasks):
            s.pending[worker.first_flag + task] = s.pending[mate.first_flag + task]
            s.ready[worker.first_flag + task] = s.ready[mate.first_flag + task]
        copy_worker(s, number)
    copy_gpu(s, gpu, leader)


@njit
def copy_worker(s: State, number: int) -> None:
    """Simulate a worker by itself again, from where the one is that stood for it."""
    worker = s.workers[number]
    mate = s.workers[worker.leader]
    worker.leader = number
    worker.busy_ns += mate.busy_ns
    worker.done_ns, worker.load_left_ns = mate.done_ns, mate.load_left_ns
    worker.first_ready, worker.num_ready = mate.first_ready, mate.num_ready
    if worker.num_ready > 0:
        join_ready(s, number)


@njit
def copy_gpu(s: State, gpu: int, leader: int) -> None:
    """Have a GPU run what the one runs that stood for it, or take something when that one does."""
    run = s.run[0]
    g, first = s.gpus[gpu], s.gpus[leader]
    if first.worker >= 0:
        g.worker = worker_on(s, gpu, s.workers[first.worker].job)
        g.task, g.started_ns = first.task, first.started_ns
        s.jobs[s.workers[g.worker].job].running_workers += 1
        schedule(run, s.heap, s.position, s.end_ns, gpu, s.end_ns[s.position[leader]])
    elif first.touched == 1:
        touch_gpu(run, s.gpus, s.touched_gpus, gpu)


@njit
def part_group(s: State, gpu: int) -> None:
    """Simulate each GPU of a GPU's group by itself."""
    leader = s.gpus[gpu].leader
    first = s.gpus[leader]
    while first.next_in_group >= 0:
        follower = first.next_in_group
        first.next_in_group = s.gpus[follower].next_in_group
        stand_alone(s, follower, leader)
    first.group_size = 1


@njit
def part_groups_of(s: State, job: Records) -> None:
    for number in range(job.first_worker, job.first_worker + job.num_gpus):
        part_group(s, s.workers[number].gpu)


@njit
def compare_again(s: State, gpu: int) -> None:
    """A job has joined or left a GPU: let its jobs see which of their GPUs are alike when they begin an iteration."""
    for place in range(s.gpus[gpu].num_residents):
        job = s.jobs[s.workers[s.residents[gpu, place]].job]
        job.group_wait = job.group_window = 0


@called_by_address("group_address")
def group_gpus(s: State, number: int) -> None:
    """At the start of an iteration: let GPUs of a job that are alike be one group."""
    job = s.jobs[number]
    newest, undecided = -1, 0
    for worker in range(job.first_worker, job.first_worker + job.num_gpus):
        gpu = s.workers[worker].gpu
        if s.gpus[gpu].leader != gpu:
            continue
        other, compared, found = newest, 0, -1
        while other >= 0 and compared < MOST_COMPARED and found < 0:
            if s.gpus[other].residents_hash == s.gpus[gpu].residents_hash:
                compared += 1
                if alike(s, gpu, other):
                    found = other
                else:
                    undecided = 1
            other = s.gpus[other].older
        if found >= 0:
            if s.gpus[gpu].group_size > 1:
                part_group(s, gpu)  # the others are compared when their turn comes, or the next time
                undecided = 1
            follow(s, gpu, found)
        else:
            s.gpus[gpu].older, newest = newest, gpu
    job.group_window = min(max(2 * job.group_window, 1), LONGEST_WAIT)
    job.group_wait = job.group_window if undecided == 1 else NO_NEED
