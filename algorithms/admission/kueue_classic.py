"""Kueue's preemption by rules: within the queue, reclaiming what is lent, and borrowing by priority.

Candidates are merged from the sorted rows of their queues, no further than until the job fits; a queue that no longer
uses more than its quota is left.
"""

from __future__ import annotations

import numba
import numpy as np

from algorithms.admission.victims import UNLIMITED, WITHIN, Need, QuotaArrays
from ddlsched.cluster.tenants import Preemption
from ddlsched.policies.tenants_view import TenantsView, Victim, kind_code

__all__ = ["ClassicSearch"]

_REASONS = (
    WITHIN,
    "reclaimed quota that it had borrowed",
    "lower priority, for a queue that borrows",
)
_NOBODY, _NOWHERE = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
_NO_LEVEL = _NOWHERE, _NOWHERE, _NOWHERE, _NOBODY, _NOWHERE
_part = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only compiled code calls. Nothing there makes arrays or sets rows: to compile that takes seconds."""
_RULES = {"never": 0, "lower-priority": 1, "lower-or-newer": 2, "any": 3}


class ClassicSearch:
    """Searches for who gives way to a job.

    References
    ----------
    Kueue, concepts/preemption ("classic preemption"), and keps/79-hierarchical-cohorts.
    """

    def __init__(self, arrays: QuotaArrays) -> None:
        self._arrays = arrays
        self._rules = {leaf: self._rules_of(leaf.queue.preemption) for leaf in arrays.leaves}

    @staticmethod
    def _rules_of(rules: Preemption) -> np.ndarray:
        most = UNLIMITED if rules.borrow_max_priority is None else rules.borrow_max_priority
        return np.array([_RULES[rules.within_queue], _RULES[rules.reclaim], _RULES[rules.borrow], most])

    def victims(self, need: Need, tenants: TenantsView) -> tuple[list[Victim], int]:
        """Return who gives way to a job, as few as the order of candidates allows; none if it would not fit even so.

        They leave room in a unit of the level that the job requires. With them, how high the smallest group is that has
        what the job needs once its quota suffices, -1 if it never does. Who runs, and what is used, is as noted.
        """
        arrays, job, kind = self._arrays, need.job, need.kind
        asked = np.array([need.gpus, job.priority, job.arrival_ns, job.number, kind_code(kind), tenants.now_ns])
        place, used, count = arrays.leaves[need.node], arrays.used(kind).copy(), 0
        amounts = arrays.amounts(kind)
        most = arrays.counts.sum()
        taken, found = np.empty((most, 3), np.int64), np.empty((most, 2), np.int64)
        nodes = np.empty((6, len(arrays.parents)), np.int64)
        running = arrays.rows, arrays.counts, (taken, found, nodes)
        tree = running, arrays.parents, amounts, place, asked, self._rules[need.node]
        if not need.fits() and not (count := _search(*tree, used, _NO_LEVEL)):
            return [], -1
        height = _height(place, need.gpus, arrays.parents, used, amounts, arrays.heights)
        if (room := tenants.room) is not None and not room.suffices(job):
            units, free = room.of(job)
            level = units, free, room.gpus, room.spans, np.empty_like(free)
            count = _search(*tree, arrays.used(kind).copy(), level)
        holdings = tenants.holdings
        return [Victim(holdings[number].job, _REASONS[reason]) for number, reason in found[:count].tolist()], height


@_part
def _fill(array, value):  # type: ignore[no-untyped-def]
    for place in range(len(array)):
        array[place] = value


@_part
def _free_here(place, used, amounts):  # type: ignore[no-untyped-def]
    return max(0, amounts[1, place] - used[place])


@_part
def _fits(place, gpus, borrowing, used, amounts, parents):  # type: ignore[no-untyped-def]
    """Return whether a queue may use so many GPUs more, as QuotaNode.available says; if told without borrowing."""
    if not borrowing and used[place] + gpus > amounts[0, place]:
        return False
    free, least, none = 0, UNLIMITED, len(parents) - 1
    while parents[place] != none:
        lent = amounts[0, place] - amounts[1, place]
        free += _free_here(place, used, amounts)
        least = min(least, free + lent - max(0, used[place] - amounts[1, place]) + amounts[2, place])
        place = parents[place]
    return gpus <= min(least, free + amounts[0, place] - used[place])


@numba.njit(cache=True)
def _height(place, gpus, parents, used, amounts, heights):  # type: ignore[no-untyped-def]
    """Return how high the smallest group is that has so many GPUs more for a queue; 0 for the queue itself."""
    none = len(parents) - 1
    if used[place] + gpus <= amounts[0, place] or parents[place] == none:
        return 0
    while True:
        gpus -= _free_here(place, used, amounts)
        place = parents[place]
        if used[place] + gpus <= amounts[0, place] or parents[place] == none:
            return heights[place]


@_part
def _count(place, gpus, sign, used, amounts, parents):  # type: ignore[no-untyped-def]
    """Count a job's GPUs, or no more, as QuotaNode.add and remove do."""
    while place != len(parents) - 1 and gpus > 0:
        kept = amounts[1, place]
        above = gpus - max(0, kept - used[place]) if sign > 0 else min(gpus, used[place] - kept)
        used[place] += sign * gpus
        place, gpus = parents[place], above


@_part
def _may_preempt(row, rule, asked):  # type: ignore[no-untyped-def]
    if rule == 0 or row[5] != asked[4] or -row[1] >= asked[5]:
        return False
    if rule == 3 or row[0] < asked[1]:
        return True
    newer = row[4] > asked[2] or (row[4] == asked[2] and row[2] > asked[3])
    return rule == 2 and row[0] == asked[1] and newer


@_part
def _lacks(place, end, used, amounts, parents):  # type: ignore[no-untyped-def]
    """Return whether a queue uses more than its quota, and so do the groups below one."""
    while place != end and used[place] > amounts[0, place]:
        place = parents[place]
    return place == end


@_part
def _note_sources(place, gpus, counts, used, amounts, parents, nodes):  # type: ignore[no-untyped-def]
    """Note of each queue that has GPUs for the job the lowest common group, and whether they are nearer to it."""
    none = len(parents) - 1
    commons, nearer, on_way, is_near = nodes[0], nodes[1], nodes[2], nodes[3]
    _fill(on_way, 0)
    _fill(is_near, 0)
    near, rest = used[place] + gpus <= amounts[0, place], max(0, gpus - _free_here(place, used, amounts))
    group = parents[place]
    while group != none:
        on_way[group], is_near[group] = True, near
        near = near or used[group] + rest <= amounts[0, group]
        rest, group = max(0, rest - _free_here(group, used, amounts)), parents[group]
    for leaf in range(none):
        group = leaf
        while group != none and not on_way[group]:
            group = parents[group]
        if leaf != place and counts[leaf] and group != none and _lacks(leaf, group, used, amounts, parents):
            commons[leaf], nearer[leaf] = group, is_near[group]


@numba.njit(cache=True)
def _search(running, parents, amounts, place, asked, rules, used, level):  # type: ignore[no-untyped-def]
    """Write victims' numbers and reasons, return how many they are; ``used`` is what is left once they are gone."""
    (rows, counts, scratch), none = running, len(parents) - 1
    nodes = scratch[2]
    commons, nearer, left = nodes[0], nodes[1], nodes[5]
    _fill(commons, none)
    _fill(nearer, 0)
    if rules[1]:
        _note_sources(place, asked[0], counts, used, amounts, parents, nodes)
    queues = rows, counts, parents, amounts
    any_other = any_nearer = False
    for leaf in range(none):
        if commons[leaf] != none and _next(rows[leaf], 0, counts[leaf], rules[1], True, rules, asked) < counts[leaf]:
            any_other, any_nearer = True, any_nearer or nearer[leaf] != 0
    forbidden = rules[2] == 0
    only_borrowing = not any_other or (forbidden and used[place] >= amounts[0, place])
    first = only_borrowing or not forbidden or any_nearer
    for borrowing in (first, not first):
        if borrowing or not only_borrowing:
            for node in range(len(used)):
                left[node] = used[node]
            count = _attempt(queues, scratch, place, asked, rules, borrowing, level)
            if count:
                for node in range(len(used)):
                    used[node] = left[node]
                return count
    return 0


@_part
def _next(rows, begin, end, rule, anyone, rules, asked):  # type: ignore[no-untyped-def]
    """Return the place of the first candidate from a place on; if not of anyone, whom a queue that borrows may take."""
    for at in range(begin, end):
        if rule != 3 and rows[at, 0] > asked[1]:
            return end
        if _may_preempt(rows[at], rule, asked) and (anyone or _may_borrow_from(rows[at], rules, asked)):
            return at
    return end


@_part
def _may_borrow_from(row, rules, asked):  # type: ignore[no-untyped-def]
    """Return whether a job is of so low a priority that it gives way to a queue that borrows."""
    return rules[2] != 0 and row[0] < asked[1] and row[0] <= rules[3]


@_part
def _attempt(queues, scratch, place, asked, rules, borrowing, level):  # type: ignore[no-untyped-def]
    """Take candidates' GPUs until the job fits; then let those stay that need not go."""
    room = level[4]
    enough = 0 if len(room) else 1
    for unit in range(len(room)):
        room[unit] = level[1][unit]
        enough += room[unit] >= asked[0]
    (rows, counts, parents, amounts), (taken, victims, nodes) = queues, scratch
    commons, nearer, at, used = nodes[0], nodes[1], nodes[4], nodes[5]
    none, gpus, fits = len(parents) - 1, asked[0], False
    count = 0  # of those taken: queue, row, reason; of victims: number, reason
    for stage in range(3):  # what is nearer, what is not, the own
        _fill(at, 0)
        while not fits:
            best = -1
            for leaf in range(none):
                if (leaf != place) if stage == 2 else (commons[leaf] == none or (nearer[leaf] != 0) != (stage == 0)):
                    continue
                rule, anyone = rules[0] if stage == 2 else rules[1], stage != 1 or not borrowing
                at[leaf] = _next(rows[leaf], at[leaf], counts[leaf], rule, anyone, rules, asked)
                if at[leaf] == counts[leaf]:
                    continue
                if stage < 2 and not _lacks(leaf, commons[leaf], used, amounts, parents):
                    at[leaf] = counts[leaf]  # for good: what is used only falls
                elif best < 0 or _is_before(rows[leaf, at[leaf]], rows[best, at[best]]):
                    best = leaf
            if best < 0:
                break
            row = rows[best, at[best]]
            reason = 0 if stage == 2 else 2 if stage == 1 and _may_borrow_from(row, rules, asked) else 1
            taken[count, 0], taken[count, 1], taken[count, 2] = best, at[best], reason
            count, at[best] = count + 1, at[best] + 1
            _count(best, row[3], -1, used, amounts, parents)
            enough += _moved(row[2], 1, room, gpus, level)
            fits = enough and _fits(place, gpus, borrowing, used, amounts, parents)
    kept = 0
    for number in range(count - 1 if fits else -1, -1, -1):
        leaf, row = taken[number, 0], rows[taken[number, 0], taken[number, 1]]
        if number < count - 1:
            _count(leaf, row[3], 1, used, amounts, parents)
            enough += _moved(row[2], -1, room, gpus, level)
            if enough and _fits(place, gpus, borrowing, used, amounts, parents):
                continue
            _count(leaf, row[3], -1, used, amounts, parents)
            enough += _moved(row[2], 1, room, gpus, level)
        victims[kept, 0], victims[kept, 1] = row[2], taken[number, 2]
        kept += 1
    return kept


@_part
def _moved(number, sign, room, needed, level):  # type: ignore[no-untyped-def]
    """Count a job's GPUs as free, or no more; return how many units more have as many as are needed."""
    units, _, gpus, spans, _ = level
    change = 0
    if len(room):
        for at in range(spans[number, 0], spans[number, 1]):
            unit = units[gpus[at]]
            change -= room[unit] >= needed
            room[unit] += sign
            change += room[unit] >= needed
    return change


@_part
def _is_before(row, other):  # type: ignore[no-untyped-def]
    for column in range(3):
        if row[column] != other[column]:
            return row[column] < other[column]
    return False
