"""Components: the running jobs, grouped by the GPUs and links that they share."""

from __future__ import annotations

from ddlsched.engine.field_values import Due, Stretch
from ddlsched.engine.loop.order import goes_before
from ddlsched.engine.loop.skipping.due import make_due
from ddlsched.engine.loop.skipping.foreseen import WORDS as PHASE_WORDS
from ddlsched.engine.loop.skipping.measuring import forget_job
from ddlsched.engine.loop.skipping.period_snapshots import snapshot_words
from ddlsched.engine.loop.skipping.sampling import begin_sampling
from ddlsched.engine.native.jit import njit
from ddlsched.engine.records import State

MOST_JOBS = 16
"""In larger components nothing is looked for that recurs: it seldom does."""


@njit
def find_root(s: State, number: int) -> int:
    root = number
    while s.jobs[root].found_root != root:
        root = s.jobs[root].found_root
    s.jobs[number].found_root = root
    return root


@njit
def join_components(s: State, number: int, other: int) -> None:
    root, other_root = find_root(s, number), find_root(s, other)
    s.jobs[max(root, other_root)].found_root = min(root, other_root)


@njit
def join_neighbours(s: State, number: int) -> None:
    """Join a job to those on its GPUs, and to those whose transfers use its links."""
    run = s.run[0]
    job = s.jobs[number]
    if job.shared_gpus > 0:
        for worker in range(job.first_worker, job.first_worker + job.num_gpus):
            gpu = s.workers[worker].gpu
            if s.gpus[gpu].stamp != run.stamp:  # the first of its jobs joins them all
                s.gpus[gpu].stamp = run.stamp
                for place in range(s.gpus[gpu].num_residents):
                    join_components(s, number, s.workers[s.residents[gpu, place]].job)
    if job.shared_links > 0:
        for place in range(job.first_link, job.first_link + job.num_links):
            link = s.links[s.job_links[place]]
            if link.stamp == run.stamp:
                join_components(s, number, link.first_job)
            else:
                link.stamp, link.first_job = run.stamp, number


@njit
def list_changed(s: State) -> int:
    """List in ``items`` the running jobs of components that may have changed; return how many."""
    run, count = s.run[0], 0
    for place in range(run.num_running):
        number = s.running[place]
        job = s.jobs[number]
        known = job.component > run.first_component and job.component_stay == job.stay
        if not known or s.jobs[job.root].changed == run.num_finds:
            s.items[count] = number
            job.found_root, job.found_next = number, -1
            count += 1
    run.num_finds += 1
    return count


@njit
def find_components(s: State) -> None:
    """Group the running jobs by shared GPUs and links; a group that is as it was keeps what is known of it."""
    run = s.run[0]
    run.components_changed, run.first_due = 0, -1
    if 2 * run.num_words > len(s.snapshots):
        run.num_words = 0
        run.first_component = run.num_components
    count = list_changed(s)
    run.stamp += 1
    for place in range(count):
        join_neighbours(s, s.items[place])
    for place in range(count):
        number = s.items[place]
        root = find_root(s, number)
        if root != number:
            s.jobs[number].found_next = s.jobs[root].found_next
            s.jobs[root].found_next = number
    for place in range(run.num_running):
        number = s.running[place]
        if s.jobs[number].found_root == number:
            keep_or_begin(s, number)


@njit
def is_as_it_was(s: State, root: int) -> bool:
    """Whether a group has the same jobs, on the same GPUs, as when it was found last."""
    component, count, number = s.jobs[root].component, 0, root
    while number >= 0:
        job = s.jobs[number]
        if job.component != component or job.component_stay != job.stay:
            return False
        count += 1
        number = job.found_next
    known = component > s.run[0].first_component and s.jobs[root].root == root
    return known and count == s.jobs[root].component_size


@njit
def keep_or_begin(s: State, root: int) -> None:
    run = s.run[0]
    if is_as_it_was(s, root):
        goes_on = Due.GOES_ON.value if s.jobs[root].stretch == Stretch.MEASURED else 0
        number = root
        while number >= 0:
            job = s.jobs[number]
            if job.due > 0 or goes_on > 0:
                make_due(s, number, max(job.due, goes_on))
            goes_on, number = 0, job.next_member
        return
    run.num_components += 1
    number, count = root, 0
    while number >= 0:
        job = s.jobs[number]
        job.root, job.next_member = root, job.found_next
        if job.component_stay != job.stay:
            forget_job(job)
        job.component, job.component_stay = run.num_components, job.stay
        job.anchor = job.due = job.counts = job.num_phases = 0
        job.stretch, job.first_of_links = Stretch.NONE, -1
        count += 1
        number = job.next_member
    s.jobs[root].component_size = count
    if s.jobs[root].dormant == 0:
        begin_component(s, root, count)


@njit
def begin_component(s: State, root: int, count: int) -> None:
    """Give a component room for a snapshot, and its most urgent job the part of the anchor."""
    run = s.run[0]
    may_recur = run.rerouting == 0 and count <= MOST_JOBS and reserve_snapshots(s, root)
    anchor = most_urgent(s, root) if may_recur else root
    job = s.jobs[anchor]
    job.anchor = 1 if may_recur else 0
    job.tries = job.window = job.resting_until_ns = 0
    if run.sampling == 1 and (count > 1 or run.rerouting == 1):
        begin_sampling(s, root, anchor)


@njit
def reserve_snapshots(s: State, root: int) -> bool:
    run = s.run[0]
    first, number = run.num_words, root
    s.jobs[root].phases = -1
    if s.jobs[root].grouped == 1:  # of others a period is seldom as long as it takes to simulate
        s.jobs[root].phases = first
        run.num_words += PHASE_WORDS * len(s.foreseen)
    while number >= 0:
        job = s.jobs[number]
        job.snapshot = run.num_words
        run.num_words += snapshot_words(job)
        if run.num_words > len(s.snapshots):
            run.num_words = first
            return False
        number = job.next_member
    return True


@njit
def most_urgent(s: State, root: int) -> int:
    """The job of a component that goes before the others, which never starves."""
    anchor, number = root, s.jobs[root].next_member
    while number >= 0:
        if goes_before(s, number, anchor):
            anchor = number
        number = s.jobs[number].next_member
    return anchor
