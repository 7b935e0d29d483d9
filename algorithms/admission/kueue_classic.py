"""Kueue's preemption by rules: within the queue, reclaiming what is lent, and borrowing by priority.

Candidates are merged from the sorted rows of their queues, no further than until the job fits; a queue that no longer
uses more than its quota is left.
"""

from __future__ import annotations

import numba
import numpy as np

from algorithms.admission.victims import LOWER, RECLAIMED, UNLIMITED, WITHIN, Need, QuotaArrays
from ddlsched.cluster.tenants import Preemption
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import LevelRoom, TenantsView, Victim, kind_code
from ddlsched.policies.views import JobView

_REASONS = WITHIN, RECLAIMED, LOWER
_NOBODY, _NOWHERE = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
_NO_LEVEL = _NOWHERE, _NOWHERE, _NOBODY, _NOBODY, _NOWHERE
_part = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only compiled code calls. Nothing there makes arrays or sets rows: to compile that takes seconds."""
_KEPT = 4
"""For how many priorities of a queue it is kept what its jobs up to there have in units."""
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
            level = units, free, room.parts, room.spans, np.empty_like(free)
            count = _search(*tree, arrays.used(kind).copy(), level)
        holdings = tenants.holdings
        return [Victim(holdings[number].job, _REASONS[reason]) for number, reason in found[:count].tolist()], height


class RoomBound:
    """Tells for whom no unit of its level would have room, whoever gives way, without a search for each.

    Counted is who gives way as long as its queue, and the groups up to the one that has the job's, too, use more than
    their quotas: of each queue or group that is the same for all jobs of others.
    """

    def __init__(self, arrays: QuotaArrays, kind: str) -> None:
        self._arrays, self._kind = arrays, kind
        self._places = np.array([*arrays.leaves.values()])
        self._rules = arrays.rules().astype(np.int64)
        self._asked = np.zeros((0, 4), np.int64)
        """Of each job whom it is alike, as ``_alike`` says, or -1 if it needs no room, -2 if it was not looked at; its
        GPUs, its priority, and the place of its queue."""
        self._alike: dict[tuple[str, int], tuple[int, JobView]] = {}
        """By level and memory that jobs need room in: a number, and one of these jobs."""
        self._levels: dict[str, slice] = {}
        """Where the units of each level are among those of all."""
        self._units = np.zeros((0, 0), np.int32)
        """Of each GPU its unit of each level."""
        self._given_up: tuple[np.ndarray, ...] = ()
        """What each node gives up in each unit, and all of a group; the changes of queues that are counted, and if jobs
        had just started then, when that was, else -1."""
        self._own: tuple[np.ndarray, ...] = ()
        """What jobs of queues up to some priorities have in each unit; whether that is known, and the priorities."""

    def among(self, tenants: TenantsView, jobs: dict[int, QuotaNode]) -> dict[int, QuotaNode]:
        """Return those of some jobs, by numbers, with their queues."""
        if (room := tenants.room) is None or not jobs:
            return {}
        if not len(self._asked):
            self._asked = np.full((len(room.spans), 4), -2)
        numbers = np.fromiter(jobs, np.int64, len(jobs))
        for number in numbers[self._asked[numbers, 0] == -2].tolist():
            self._look_at(tenants.pending.job(number), jobs[number], room)
        asked, without = self._asked[numbers], np.zeros(len(numbers), bool)
        there, noted = {*asked[:, 0].tolist()}, None
        for (level, _), (alike, job) in self._alike.items():
            if alike not in there:
                continue
            (_, free), rows = room.of(job), np.flatnonzero(asked[:, 0] == alike)
            if asked[rows, 1].max() > free.max():
                noted = noted or self._note(room, tenants.now_ns)
                without[rows] = _without_room(asked[rows, 1:], free, self._levels[level].start, self._rules, noted)
        return {number: jobs[number] for number in numbers[without].tolist()}

    def _look_at(self, job: JobView, leaf: QuotaNode, room: LevelRoom) -> None:
        level, alike = None if leaf.queue.preemption.reclaim == "lower-or-newer" else room.level_of(job), -1
        if level is not None:
            alike, _ = self._alike.setdefault((level, job.memory_bytes), (len(self._alike), job))
            if level not in self._levels:
                self._add(level, *room.of(job))
        self._asked[job.number] = alike, job.num_gpus, job.priority, self._arrays.leaves[leaf]

    def _add(self, level: str, units: np.ndarray, free: np.ndarray) -> None:
        """Add the units of a level."""
        first = max((units.stop for units in self._levels.values()), default=0)
        self._levels[level] = slice(first, first + len(free))
        self._units = np.column_stack([*self._units.T, (first + units).astype(np.int32)])
        counts, queues = np.zeros((2, len(self._arrays.parents), first + len(free)), np.int64), len(self._places)
        self._given_up = counts, np.full(queues, -1), np.full(queues, -1)
        self._own = (
            np.zeros((counts.shape[1], _KEPT, counts.shape[2]), np.int64),
            np.zeros((2, counts.shape[1], _KEPT), np.int64),
        )

    def _note(self, room: LevelRoom, now_ns: int) -> tuple[object, ...]:
        """Note what nodes give up now, and return what that follows from."""
        arrays, kind, running = self._arrays, self._kind, (self._arrays.rows, self._arrays.counts)
        where = self._units, room.parts, room.spans
        tree = arrays.parents, arrays.used(kind), arrays.amounts(kind)
        asked, scratch = np.array([0, 0, 0, 0, kind_code(kind), now_ns]), np.zeros((4, len(arrays.parents)), np.int64)
        _note_given_up(
            self._places, arrays.changes, (*self._given_up, self._own[1]), running, tree, asked, where, scratch
        )
        return self._given_up[0], self._own, arrays.downwards, running, tree, asked, where


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
    commons, nearer, order, at, used = nodes[0], nodes[1], nodes[2], nodes[4], nodes[5]
    none, gpus, fits = len(parents) - 1, asked[0], False
    count = 0  # of those taken: queue, row, reason; of victims: number, reason
    for stage in range(3):  # what is nearer, what is not, the own
        rule, anyone = rules[0] if stage == 2 else rules[1], stage != 1 or not borrowing
        first = none  # of the queues in ``order`` that have candidates, by their next ones: first who gives way first
        for leaf in range(none):
            if (leaf != place) if stage == 2 else (commons[leaf] == none or (nearer[leaf] != 0) != (stage == 0)):
                continue
            first = _line_up(leaf, order, first, rows, counts, at, (rule, anyone, rules, asked))
        while first < none and not fits:
            leaf = order[first]
            row = rows[leaf, at[leaf]]
            if stage == 2 or _lacks(leaf, commons[leaf], used, amounts, parents):
                reason = 0 if stage == 2 else 2 if stage == 1 and _may_borrow_from(row, rules, asked) else 1
                taken[count, 0], taken[count, 1], taken[count, 2] = leaf, at[leaf], reason
                count += 1
                _count(leaf, row[3], -1, used, amounts, parents)
                enough += _moved(row[2], 1, room, gpus, level)
                fits = enough and _fits(place, gpus, borrowing, used, amounts, parents)
                at[leaf] = _next(rows[leaf], at[leaf] + 1, counts[leaf], rule, anyone, rules, asked)
            else:
                at[leaf] = counts[leaf]  # for good: what is used only falls
            if at[leaf] == counts[leaf]:
                first += 1
            else:
                _sink(order, first, none, rows, at)
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


@numba.njit(cache=True)
def _note_given_up(places, changes, given_up, running, tree, asked, where, scratch):  # type: ignore[no-untyped-def]
    """Count anew what nodes give up below which jobs are others, or had just started."""
    (rows, counts), (parents, now_used, amounts), stale = running, tree, scratch[0]
    (of_node, of_group), known, fresh, (is_known, _) = given_up
    for queue in range(len(places)):
        place = node = places[queue]
        if changes[queue] == known[queue] and (fresh[queue] < 0 or fresh[queue] == asked[5]):
            continue
        known[queue], fresh[queue] = changes[queue], -1
        _fill(is_known[place], 0)
        for at in range(counts[place]):
            if -rows[place, at, 1] >= asked[5]:
                fresh[queue] = asked[5]
        while node != len(parents) - 1:
            stale[node], node = 1, parents[node]
    none = len(parents) - 1
    for node in range(none):
        if stale[node] == 0 or parents[node] == none:
            continue
        for unit in range(of_node.shape[1]):
            of_group[parents[node], unit] -= of_node[node, unit]
            of_node[node, unit] = 0
        for each in range(none):
            scratch[3, each] = now_used[each]
        _give_up(node, of_node[node], running, (parents, scratch[3], amounts), asked, where, scratch)
        for unit in range(of_node.shape[1]):
            of_group[parents[node], unit] += of_node[node, unit]


@_part
def _give_up(node, room, running, tree, asked, where, scratch):  # type: ignore[no-untyped-def]
    """Count what a queue or group gives up, as long as it and those below it use more than their quotas."""
    (rows, counts), (parents, used, amounts), order, at = running, tree, scratch[1], scratch[2]
    none = len(parents) - 1
    first = none
    for leaf in range(none):
        above = leaf
        while above != none and above != node:
            above = parents[above]
        if above == node:
            first = _line_up(leaf, order, first, rows, counts, at, (3, True, asked, asked))
    while first < none:
        leaf = order[first]
        row, lacks = rows[leaf, at[leaf]], _lacks(leaf, parents[node], used, amounts, parents)
        at[leaf] = _next(rows[leaf], at[leaf] + 1, counts[leaf], 3, True, asked, asked) if lacks else counts[leaf]
        if lacks:
            _count(leaf, row[3], -1, used, amounts, parents)
            _give(row[2], room, where)
        if at[leaf] < counts[leaf]:
            _sink(order, first, none, rows, at)
        else:
            first += 1


@_part
def _give(number, room, where):  # type: ignore[no-untyped-def]
    """Count a job's GPUs as free."""
    units, parts, spans = where
    for at in range(spans[number, 0], spans[number, 1]):
        for level in range(units.shape[1]):
            room[units[parts[at, 0], level]] += parts[at, 1]


@numba.njit(cache=True)
def _without_room(needs, free, begin, rules, noted):  # type: ignore[no-untyped-def]
    """Return which of ``needs`` (GPUs, priority, queue) no unit has room for, with what others and the own give up.

    The units are those from ``begin`` on.
    """
    given_up, kept, downwards, (rows, counts), (parents, used, amounts), asked, where = noted
    none, own_gpus, at, given, most_room = len(parents) - 1, 0, 0, 0, 0
    place_before, most_before, since_before = -1, 0, -1
    room, most_of = np.empty((none + 1, len(free)), np.int64), np.zeros(none + 1, np.int64)
    _fill_room(none, room, most_of, free, begin, given_up, parents)
    for node in downwards:
        _fill_room(node, room, most_of, free, begin, given_up, parents)
    without, own = np.zeros(len(needs), np.bool_), np.zeros(given_up[0].shape[1], np.int64)
    for row in range(len(needs) - 1, -1, -1):  # in a queue the lowest priority first: a higher one counts more
        gpus, priority, place = needs[row]
        most = priority - rules[place, 3]
        if place != place_before or most < most_before:
            at, given, own_gpus, since_before = 0, 0, 0, -1
            _fill(own, 0)
        most_before, place_before = most, place
        while rules[place, 4] and at < counts[place] and rows[place, at, 0] <= most:
            own_gpus += rows[place, at, 3] * _may_preempt(rows[place, at], 3, asked)
            at += 1
        has, quota = used[place], amounts[0, place]
        from_all = rules[place, 1] or (has < quota and has + gpus - own_gpus <= quota)
        since, rest, group = place, max(0, gpus - _free_here(place, used, amounts)), parents[place]
        near = from_all or has + gpus <= quota  # others above ``since`` give up what they use
        while since != none and not near:
            near, since = group != none and used[group] + rest <= amounts[0, group], group
            rest, group = max(0, rest - _free_here(group, used, amounts)), parents[group]
        since = since if rules[place, 0] else none
        if most_of[since] >= gpus:
            continue
        if since != since_before or given < at:
            _count_own(own, (place, given, at, most), kept, rows, asked, where)
            most_room, given, since_before = 0, at, since
            for unit in range(len(free)):
                most_room = max(most_room, room[since, unit] + own[begin + unit])
        without[row] = most_room < gpus
    return without


@_part
def _count_own(own, whose, kept, rows, asked, where):  # type: ignore[no-untyped-def]
    """Count as free what a queue's jobs from one place to another have, unless all up to that priority is known."""
    (place, first, end, most), (rooms, (is_known, priorities)) = whose, kept
    at = most % _KEPT
    if is_known[place, at] and priorities[place, at] == most:
        for unit in range(len(own)):
            own[unit] = rooms[place, at, unit]
        return
    for row in range(first, end):
        if _may_preempt(rows[place, row], 3, asked):
            _give(rows[place, row, 2], own, where)
    is_known[place, at], priorities[place, at] = 1, most
    for unit in range(len(own)):
        rooms[place, at, unit] = own[unit]


@_part
def _fill_room(node, room, most_of, free, begin, given_up, parents):  # type: ignore[no-untyped-def]
    """Reckon how many GPUs units have, and the best of them, once those go that are above a node but not below it."""
    (of_node, of_group), above = given_up, parents[node]
    for unit in range(len(free)):
        if above == len(parents) - 1:
            room[node, unit] = free[unit]
        else:
            more = of_group[above, begin + unit] - of_node[node, begin + unit]
            room[node, unit] = room[above, unit] + more
        most_of[node] = max(most_of[node], room[node, unit])


@_part
def _moved(number, sign, room, needed, level):  # type: ignore[no-untyped-def]
    """Count a job's GPUs as free, or no more; return how many units more have as many as are needed."""
    units, _, parts, spans, _ = level
    change = 0
    if len(room):
        for at in range(spans[number, 0], spans[number, 1]):
            unit = units[parts[at, 0]]
            change -= room[unit] >= needed
            room[unit] += sign * parts[at, 1]
            change += room[unit] >= needed
    return change


@_part
def _line_up(leaf, order, first, rows, counts, at, who):  # type: ignore[no-untyped-def]
    """Put a queue that has a candidate among those in ``order`` from ``first`` on; return the new first place."""
    at[leaf] = _next(rows[leaf], 0, counts[leaf], *who)
    if at[leaf] < counts[leaf]:
        first -= 1
        order[first] = leaf
        _sink(order, first, len(counts) - 1, rows, at)
    return first


@_part
def _sink(order, first, end, rows, at):  # type: ignore[no-untyped-def]
    """Put the first of some queues where it belongs among the others, which are in the order of their next rows."""
    leaf = order[first]
    while first + 1 < end and _is_before(rows[order[first + 1], at[order[first + 1]]], rows[leaf, at[leaf]]):
        order[first] = order[first + 1]
        first += 1
    order[first] = leaf


@_part
def _is_before(row, other):  # type: ignore[no-untyped-def]
    for column in range(3):
        if row[column] != other[column]:
            return row[column] < other[column]
    return False
