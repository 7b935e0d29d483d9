"""What a view offers in compiled code, under the names of :mod:`ddlsched.policies.views`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from ddlsched.engine.loop.admission import flows_on, jobs_on
from ddlsched.engine.loop.order import sort_numbers
from ddlsched.engine.loop.tasks import mix
from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing
from ddlsched.engine.native.machine_code import overload, overload_attribute, overload_method, register_jitable
from ddlsched.engine.native.operators import add, compiled_only, divide_wholes, multiply, text_of, typed
from ddlsched.engine.native.view_types import (
    CABLE,
    FLOW,
    JOB,
    LINK,
    LOADS,
    NETWORK,
    TRANSFER,
    ViewType,
    job_at,
    make_crossed,
    make_links,
    make_numbers,
    make_paths,
    make_transfers,
    number_of,
    state_of,
    take_scratch,
)
from ddlsched.policies.job_view import JobView
from ddlsched.policies.network_views import TransferState
from ddlsched.policies.view_parts import StoredField, fields_of, plus, times

# --- jobs


_attributes: dict[str, dict[str, Any]] = {}
_methods: dict[str, set[str]] = {}


def names_of(view: ViewType) -> set[str]:
    """Return the names that a view has in compiled code, but for those from which others are made."""
    names = {name for name, functions in _attributes.items() if view.what in functions}
    names = {name for name in names if not name.startswith("_")}
    return names | _methods.get(view.what, set())


def attribute(view: ViewType, name: str, function: Callable[..., Any]) -> None:
    """Let a view have an attribute. numba wants one function for all views that have one of this name."""
    if name not in _attributes:
        functions = _attributes[name] = {}

        def choose(view):  # type: ignore[no-untyped-def]
            compiled = functions.get(view.what)
            return None if compiled is None else lambda view: compiled(view)

        overload_attribute(ViewType, name)(choose)
    _attributes[name][view.what] = register_jitable(function)


def _reader(field: StoredField) -> Callable[..., Any]:
    """Return the function that reads a field of a job's record, written out for the compiler."""
    space: dict[str, Any] = {"state_of": state_of, "number_of": number_of}
    exec(f"def read(job):\n    return state_of(job).jobs[number_of(job)].{field.record}", space)
    read = register_jitable(space["read"])
    if field.kind == "str | None":
        return lambda job: None if read(job) == 0 else text_of(read(job))
    if field.kind == "float | None":
        return lambda job: None if math.isnan(read(job)) else read(job)
    return read


for _field in fields_of(JobView).values():
    attribute(JOB, _field.name, _reader(_field))


@overload(times)
@typed
def _times(a: Any, b: Any) -> Any:  # noqa: ARG001
    return lambda a, b: multiply(a, b)


@overload(plus)
@typed
def _plus(a: Any, b: Any) -> Any:  # noqa: ARG001
    return lambda a, b: add(a, b)


@register_jitable
def _record(view: Any) -> Any:
    return state_of(view).jobs[number_of(view)]


@compiled_only
def _misjudged(job: Any) -> Any:
    """Return by how many iterations a job is taken for longer than it is, in runs with predicted lengths."""
    return (lambda job: _record(job).misjudged_iterations) if job.predicted else (lambda job: 0)  # noqa: ARG005


def _start(job: Any) -> Any:
    record = _record(job)
    if record.num_servers == 0:
        return None
    return divide_wholes(record.start_ns, 1_000_000_000)


def _gpus(job: Any) -> Any:
    s, record = state_of(job), _record(job)
    if record.num_servers == 0:
        return make_numbers(job, 0, 0)
    first = take_scratch(s, record.num_gpus)
    for i in range(record.num_gpus):
        s.scratch[first + i] = s.workers[record.first_worker + i].gpu
    return make_numbers(job, first, record.num_gpus)


@register_jitable
def _list_servers(s: Any, record: Any) -> Any:
    first = take_scratch(s, record.num_servers)
    count = 0
    for worker in range(record.first_worker, record.first_worker + record.num_gpus):
        if count == record.num_servers:
            break
        server = s.gpus[s.workers[worker].gpu].server
        known = False
        for place in range(first, first + count):
            known = known or s.scratch[place] == server
        if not known:
            s.scratch[first + count] = server
            count += 1
    return first


def _servers(job: Any) -> Any:
    record = _record(job)
    if record.num_servers == 0:
        return make_numbers(job, 0, 0)
    return make_numbers(job, _list_servers(state_of(job), record), record.num_servers)


_OTHERWISE = "dag", "gpus", "job_id", "servers", "start_s"
"""What compiled code does not have, or finds in another way than Python."""

attribute(JOB, "_misjudged", lambda job: _misjudged(job))
for _name, _property in vars(JobView).items():
    if isinstance(_property, property) and _name not in {*fields_of(JobView), *_OTHERWISE}:
        attribute(JOB, _name, cast(Callable[..., Any], _property.fget))
attribute(JOB, "start_s", _start)
attribute(JOB, "gpus", _gpus)
attribute(JOB, "servers", _servers)


# --- transfers


@register_jitable
def _transfer(view: Any) -> Any:
    return state_of(view).transfers[number_of(view)]


@register_jitable
def _bytes_left(transfer: Any) -> Any:
    return bytes_left_now(_transfer(transfer), state_of(transfer).run[0].now_ns)


def _links_of(transfer: Any) -> Any:
    record = _transfer(transfer)
    return make_crossed(transfer, record.first_entry, record.num_entries)


def _servers_of(transfer: Any) -> Any:
    s = state_of(transfer)
    record = s.jobs[_transfer(transfer).job]
    return make_numbers(transfer, _list_servers(s, record), record.num_servers)


attribute(TRANSFER, "job", lambda transfer: job_at(transfer, _transfer(transfer).job))
attribute(TRANSFER, "message_bytes", lambda transfer: _transfer(transfer).bytes)
attribute(TRANSFER, "bytes_left", lambda transfer: _bytes_left(transfer))
attribute(TRANSFER, "bytes_sent", lambda transfer: _transfer(transfer).bytes - _bytes_left(transfer))
attribute(TRANSFER, "is_active", lambda transfer: _transfer(transfer).state == TransferState.ACTIVE)
attribute(TRANSFER, "links", _links_of)
attribute(TRANSFER, "servers", _servers_of)


# --- links


@register_jitable
def _link(view: Any) -> Any:
    return state_of(view).links[number_of(view)]


attribute(LINK, "num_transfers", lambda link: _link(link).count)
for _view in (LINK, CABLE):
    attribute(_view, "relative_bandwidth", lambda link: _link(link).relative_bandwidth)
    attribute(_view, "bandwidth_bytes_per_s", lambda link: _link(link).bandwidth_bytes_per_s)


for _view in (JOB, TRANSFER, LINK):
    attribute(_view, "number", lambda view: number_of(view))


# --- the network


@register_jitable
def _sorted_transfers(network: Any, first: int) -> Any:
    """Show the transfers from a place to the end of the scratch array, the smallest number first."""
    s = state_of(network)
    count = s.run[0].scratch_used - first
    sort_numbers(s.scratch, first, first + count)
    return make_transfers(network, first, count)


@register_jitable
def known_link(s: Any, link: int) -> int:
    """Return the number of a link; raise for what is none."""
    if link < 0 or link >= len(s.links):
        raise IndexError("there is no such link")
    return link


@register_jitable
def _list_on_link(s: Any, link: int, mine: int, stamp: int) -> None:
    """Add the transfers that run on a link to the scratch array, each once, but for one."""
    e = s.links[link].head
    while e >= 0:
        number = s.entries[e].transfer
        if number != mine and s.transfers[number].seen != stamp:
            s.transfers[number].seen = stamp
            s.scratch[take_scratch(s, 1)] = number
        e = s.entries[e].next


@register_jitable
def _met_by(network: Any, transfer: Any) -> Any:
    s, number = state_of(network), number_of(transfer)
    run, record = s.run[0], s.transfers[number]
    run.seen += 1
    first = run.scratch_used
    for e in range(record.first_entry, record.first_entry + record.num_entries):
        _list_on_link(s, s.entries[e].link, number, run.seen)
    return _sorted_transfers(network, first)


@register_jitable
def _transfers_on(network: Any, link: int) -> Any:
    s = state_of(network)
    run = s.run[0]
    run.seen += 1
    first = run.scratch_used
    _list_on_link(s, known_link(s, link), -1, run.seen)
    return _sorted_transfers(network, first)


@register_jitable
def _sorted_copy(network: Any, numbers: Any, count: int) -> Any:
    s = state_of(network)
    first = take_scratch(s, count)
    for place in range(count):
        s.scratch[first + place] = numbers[place]
    return _sorted_transfers(network, first)


for _view in (NETWORK, LOADS):
    attribute(_view, "now_ns", lambda network: state_of(network).run[0].now_ns)
    attribute(_view, "now_s", lambda network: divide_wholes(state_of(network).run[0].now_ns, 1_000_000_000))
    attribute(_view, "links", lambda network: make_links(network, 0, len(state_of(network).links)))
attribute(NETWORK, "per_byte_s", lambda network: state_of(network).run[0].per_byte_s)
attribute(NETWORK, "penalty_per_byte_s", lambda network: state_of(network).run[0].penalty_per_byte_s)
attribute(NETWORK, "active", lambda n: _sorted_copy(n, state_of(n).active, state_of(n).run[0].num_active))
attribute(NETWORK, "waiting", lambda n: _sorted_copy(n, state_of(n).waiting, state_of(n).run[0].num_waiting))


def method(view: ViewType, name: str, function: Callable[..., Any]) -> None:
    """Let a view have a method of one argument, whose function calls them ``view`` and ``argument``."""
    _methods.setdefault(view.what, set()).add(name)
    what = view.what
    overload_method(ViewType, name)(lambda view, argument: function if view.what == what else None)  # noqa: ARG005


method(NETWORK, "met_by", lambda view, argument: _met_by(view, argument))
method(NETWORK, "most_on_links_of", lambda view, argument: most_sharing(state_of(view), _transfer(argument)))
method(NETWORK, "transfers_on", lambda view, argument: _transfers_on(view, argument))
method(NETWORK, "num_on", lambda view, argument: state_of(view).links[known_link(state_of(view), argument)].count)


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


method(LOADS, "jobs_on", lambda view, argument: jobs_on(state_of(view), known_link(state_of(view), argument)))
method(LOADS, "flows_on", lambda view, argument: flows_on(state_of(view), known_link(state_of(view), argument)))
