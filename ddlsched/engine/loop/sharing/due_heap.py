"""The links that have a step of the filling before them, as a heap: the earliest first."""

from __future__ import annotations

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.layout import State


@njit
def is_due_before(s: State, number: int, other: int) -> bool:
    """By level; by batch, in the order of their first steps; the first step of a batch; the least share."""
    a, b = s.links[number], s.links[other]
    if a.due_level != b.due_level:
        return a.due_level < b.due_level
    if a.due_share != b.due_share:
        return a.due_share < b.due_share
    if a.due_lead != b.due_lead:
        return a.due_lead < b.due_lead
    if a.due_follower != b.due_follower:
        return a.due_follower < b.due_follower
    if a.own_share != b.own_share:
        return a.own_share < b.own_share
    return number < other


@njit
def sift_due_up(s: State, place: int) -> None:
    number = s.due_links[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not is_due_before(s, number, s.due_links[parent]):
            break
        s.due_links[place] = s.due_links[parent]
        s.links[s.due_links[place]].due_place = place
        place = parent
    s.due_links[place] = number
    s.links[number].due_place = place


@njit
def sift_due_down(s: State, place: int) -> None:
    size, number = s.filling[0].num_due, s.due_links[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and is_due_before(s, s.due_links[child + 1], s.due_links[child]):
            child += 1
        if not is_due_before(s, s.due_links[child], number):
            break
        s.due_links[place] = s.due_links[child]
        s.links[s.due_links[place]].due_place = place
        place = child
    s.due_links[place] = number
    s.links[number].due_place = place


@njit
def put_due(s: State, number: int) -> None:
    """Insert a link, or move it to where it now belongs."""
    place = s.links[number].due_place
    if place < 0:
        filling = s.filling[0]
        place = filling.num_due
        filling.num_due += 1
        s.due_links[place] = number
    sift_due_up(s, place)
    sift_due_down(s, s.links[number].due_place)


@njit
def drop_due(s: State, number: int) -> None:
    """Take a link out, if it is there."""
    place = s.links[number].due_place
    if place < 0:
        return
    filling = s.filling[0]
    filling.num_due -= 1
    s.links[number].due_place = -1
    last = s.due_links[filling.num_due]
    if last != number:
        s.due_links[place] = last
        s.links[last].due_place = place
        sift_due_up(s, place)
        sift_due_down(s, s.links[last].due_place)
