"""The links whose transfers have changed at this instant."""

from __future__ import annotations

from ddlsched.engine.native.jit import njit


@njit
def touch_link(s, link):
    if s.links[link].touched == 0:
        s.links[link].touched = 1
        run = s.run[0]
        s.touched_links[run.num_touched_links] = link
        run.num_touched_links += 1


@njit
def forget_touched_links(s):
    run = s.run[0]
    for place in range(run.num_touched_links):
        s.links[s.touched_links[place]].touched = 0
    run.num_touched_links = 0
    run.rerate = 0
