"""What compiled path policies see, named as in :mod:`ddlsched.policies.network_views`: hops of rings, and links."""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from ddlsched.engine.compiled.views import attribute, method, refuse_link
from ddlsched.engine.loop.tasks import mix
from ddlsched.engine.native.view_types import FLOW, LOADS, job_at, make_numbers, make_paths, number_of, state_of

_MASK = 0xFFFFFFFF


@register_jitable
def _hop(flow: Any) -> Any:
    return state_of(flow).hops[number_of(flow)]


@register_jitable
def _hash(flow: Any, seed: int) -> int:
    bits = seed & _MASK
    for number in (_hop(flow).job, _hop(flow).source, _hop(flow).target):
        bits = mix((bits + number) & _MASK)
    return bits


attribute(FLOW, "number", lambda flow: _hop(flow).place)
attribute(FLOW, "job", lambda flow: job_at(flow, _hop(flow).job))
attribute(FLOW, "source", lambda flow: _hop(flow).source)
attribute(FLOW, "target", lambda flow: _hop(flow).target)
attribute(FLOW, "route", lambda flow: _hop(flow).route)
attribute(FLOW, "cards", lambda flow: make_numbers(flow, 0, 0))
attribute(FLOW, "paths", lambda flow: make_paths(flow, _hop(flow).first_path, _hop(flow).num_paths))
method(FLOW, "hash", lambda view, argument: _hash(view, argument))


@register_jitable
def _just_chosen(s: Any, link: int) -> int:
    """Return how many hops of the transfer that is asked about have got a link."""
    return s.covers[link].chosen if s.covers[link].chosen_stamp == s.run[0].path_stamp else 0


@register_jitable
def _jobs_on(loads: Any, link: int) -> Any:
    s = state_of(loads)
    refuse_link(s, link)
    return s.links[link].num_jobs + _just_chosen(s, link)


@register_jitable
def _flows_on(loads: Any, link: int) -> Any:
    s = state_of(loads)
    refuse_link(s, link)
    count = s.links[link].count + _just_chosen(s, link)
    e = s.links[link].waiting_head
    while e >= 0:
        count += 1 - s.transfers[s.entries[e].transfer].unrouted
        e = s.entries[e].next
    return count


method(LOADS, "jobs_on", lambda view, argument: _jobs_on(view, argument))
method(LOADS, "flows_on", lambda view, argument: _flows_on(view, argument))
