"""Compiled policies are called by their address, and their keys say who goes first.

Keys are up to ``KEY_WORDS`` whole numbers, then the number, which makes the order total.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.field_values import FAILED, KEY_WORDS, ONE, ZERO, Communication, Door
from ddlsched.engine.native.jit import call_address, njit
from ddlsched.engine.records import State


@njit
def call_policy(s: State, door: int, address: int, number: int, place: int, fields: int) -> int:
    """Return a compiled policy's answer; note the door of the first that fails."""
    answer = call_address(address, s, number, place, fields)
    if answer == FAILED:
        if s.run[0].failed_door < 0:
            s.run[0].failed_door = door
        return 0
    return answer


@njit
def asked_beforehand(s: State, number: int) -> int:
    """What the communication policy says of a transfer; where it fails nothing is noted."""
    run = s.run[0]
    return call_address(run.communication_address, s, number, ZERO, run.communication_fields)


FEW = 12
"""So many are sorted by insertion."""


@njit
def write_key(s: State, number: int, place: int) -> None:
    """Write a job's key to a place of ``keys``: what the order says, or its rank if the order ranks jobs beforehand."""
    run = s.run[0]
    if run.order_ranked == 1:
        s.keys[place * KEY_WORDS] = s.jobs[number].rank
    else:
        call_policy(s, Door.ORDER.value, run.order_address, number, place, run.order_fields)


@njit
def copy_key(s: State, words: int, place: int, to_place: int) -> None:
    for word in range(words):
        s.keys[to_place * KEY_WORDS + word] = s.keys[place * KEY_WORDS + word]


@njit
def key_before(s: State, words: int, place: int, number: int, other_place: int, other: int) -> bool:
    """Whether what has the key at one place goes before what has that at another."""
    for word in range(words):
        mine, others = s.keys[place * KEY_WORDS + word], s.keys[other_place * KEY_WORDS + word]
        if mine != others:
            return mine < others
    return number < other


@njit
def goes_before(s: State, number: int, other: int) -> bool:
    """Whether a job goes before another."""
    run = s.run[0]
    place = len(s.keys) // KEY_WORDS - 2
    write_key(s, number, place)
    write_key(s, other, place + 1)
    return key_before(s, run.key_words, place, number, place + 1, other)


@njit
def sort_items(s: State, items: np.ndarray, words: int, count: int) -> None:
    """Sort by (key, item), keys at the places of the items: short lists by insertion, others by a heap."""
    if count <= FEW:
        insert_all(s, items, words, count)
        return
    for place in range(count // 2 - 1, -1, -1):
        sink(s, items, words, place, count)
    for last in range(count - 1, 0, -1):
        swap(s, items, words, 0, last)
        sink(s, items, words, 0, last)


@njit
def insert_all(s: State, items: np.ndarray, words: int, count: int) -> None:
    spare = len(s.keys) // KEY_WORDS - 1
    for place in range(1, count):
        item, hole = items[place], place
        copy_key(s, words, place, spare)
        while hole > 0 and key_before(s, words, spare, item, hole - 1, items[hole - 1]):
            items[hole] = items[hole - 1]
            copy_key(s, words, hole - 1, hole)
            hole -= 1
        if hole != place:
            items[hole] = item
            copy_key(s, words, spare, hole)


@njit
def swap(s: State, items: np.ndarray, words: int, place: int, other: int) -> None:
    items[place], items[other] = items[other], items[place]
    for word in range(words):
        a, b = place * KEY_WORDS + word, other * KEY_WORDS + word
        s.keys[a], s.keys[b] = s.keys[b], s.keys[a]


@njit
def sink(s: State, items: np.ndarray, words: int, place: int, count: int) -> None:
    """Restore a heap whose last goes first, below a place."""
    while True:
        child = 2 * place + 1
        if child >= count:
            return
        if child + 1 < count and key_before(s, words, child, items[child], child + 1, items[child + 1]):
            child += 1
        if not key_before(s, words, place, items[place], child, items[child]):
            return
        swap(s, items, words, place, child)
        place = child


@njit
def insert(numbers: np.ndarray, first: int, place: int, number: int) -> None:
    """Put a number into the ascending ones that are from a first place to before this one."""
    while place > first and numbers[place - 1] > number:
        numbers[place] = numbers[place - 1]
        place -= 1
    numbers[place] = number


@njit
def sort_numbers(numbers: np.ndarray, first: int, end: int) -> None:
    """Sort the numbers from a first place to before an end."""
    for place in range(first + 1, end):
        insert(numbers, first, place, numbers[place])


@njit
def sort_queue(s: State) -> None:
    """Bring the queue into the order's order; a stable key does not change while a job is queued."""
    run = s.run[0]
    if run.key_is_stable == 0:
        for place in range(run.num_queued):
            write_key(s, s.queue[place], place)
        sort_items(s, s.queue, run.key_words, run.num_queued)
        return
    while run.num_sorted < run.num_queued:
        number = s.queue[run.num_sorted]
        low, high = 0, run.num_sorted
        while low < high:
            middle = (low + high) >> 1
            if goes_before(s, number, s.queue[middle]):
                high = middle
            else:
                low = middle + 1
        for place in range(run.num_sorted, low, -1):
            s.queue[place] = s.queue[place - 1]
        s.queue[low] = number
        run.num_sorted += 1


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
    """List in ``items`` the jobs that this instant may have to choose between, for a Python order; return how many.

    Of those that send it chooses only where any of them may be stopped, and their own keys say nothing of that.
    """
    run = s.run[0]
    run.stamp += 1
    count = ZERO
    if run.must_place == 1 or run.num_finished > 0:
        for place in range(run.num_queued):
            count = add_rival(s, count, s.queue[place])
    if run.communicate == 1 and run.communication < Communication.KEYS:
        for place in range(run.num_waiting):
            count = add_rival(s, count, s.transfers[s.waiting[place]].job)
        for place in range(run.num_active if run.communication == Communication.ASKED_TO_SELECT else ZERO):
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
