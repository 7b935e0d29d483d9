"""The links whose transfers have changed at this instant."""

from __future__ import annotations

from ddlsched.engine.native.jit import njit
from ddlsched.engine.records.layout import State


@njit
def touch_link(s: State, link: int) -> None:
    if s.links[link].touched == 0:
        s.links[link].touched = 1
        run = s.run[0]
        s.touched_links[run.num_touched_links] = link
        run.num_touched_links += 1


@njit
def forget_touched_links(s: State) -> None:
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0
