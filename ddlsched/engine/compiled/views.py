"""What a view offers in compiled code, under the names of :mod:`ddlsched.policies.views`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import overload, overload_attribute, overload_method, register_jitable

from ddlsched.engine.loop.transfers import bytes_left_now, most_sharing
from ddlsched.engine.native.number_kinds import typed
from ddlsched.engine.native.operators import divide_wholes
from ddlsched.engine.native.view_lists import (
    make_crossed,
    make_links,
    make_numbers,
    make_transfers,
    take_scratch,
)
from ddlsched.engine.native.view_types import (
    CABLE,
    JOB,
    LINK,
    LOADS,
    NETWORK,
    TRANSFER,
    ViewType,
    job_at,
    number_of,
    state_of,
)
from ddlsched.policies.transfer_states import TransferState

__all__ = ["attribute", "method", "names_of", "refuse_link"]

# --- jobs


_attributes: dict[str, dict[str, Any]] = {}
_methods: dict[str, set[str]] = {}


def names_of(view: ViewType) -> set[str]:
    """Return the names that a view has in compiled code."""
    names = {name for name, functions in _attributes.items() if view.what in functions}
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


def _record_of_job(name: str) -> Callable[..., Any]:
    """Return the function that reads a field of a job's record, written out for the compiler."""
    space: dict[str, Any] = {"state_of": state_of, "number_of": number_of}
    exec(f"def read(job):\n    return state_of(job).jobs[number_of(job)].{name}", space)
    function: Callable[..., Any] = space["read"]
    return function


for _name, _field in (
    ("num_gpus", "num_gpus"),
    ("gpu_memory_mb", "gpu_memory_mb"),
    ("memory_bytes", "memory_bytes"),
    ("arrival_s", "arrival_s"),
    ("arrival_ns", "arrival_ns"),
    ("compute_ns", "compute_ns"),
    ("message_bytes", "message_bytes"),
    ("communication_ns", "communication_ns"),
):
    attribute(JOB, _name, _record_of_job(_field))


@register_jitable
def _times(a: int, b: int) -> int:
    """Return a product that Python would not have cut to 64 bits, or raise."""
    if a != 0 and (a * b) // a != b:
        raise OverflowError("more than 64 bits")
    return a * b


@register_jitable
def _plus(a: int, b: int) -> int:
    total = a + b
    if (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0):
        raise OverflowError("more than 64 bits")
    return total


@register_jitable
def _record(view: Any) -> Any:
    return state_of(view).jobs[number_of(view)]


def _misjudged(job: Any) -> int:
    """Return by how many iterations a job is taken for longer than it is, in runs with predicted lengths."""
    raise NotImplementedError


@overload(_misjudged)
@typed
def _misjudged_by_flavour(job: Any) -> Any:
    return (lambda job: _record(job).misjudged_iterations) if job.predicted else (lambda job: 0)  # noqa: ARG005


@register_jitable
def _misjudged_left(job: Any) -> int:
    """Return by how many iterations more a job is taken to have left; one that has not ended has one at least."""
    if _misjudged(job) == 0 or _record(job).iterations_left == 0:
        return 0
    return max(_misjudged(job), 1 - _record(job).iterations_left)


@register_jitable
def _service_of(job: Any, iterations: int) -> int:
    return 0 if iterations == 0 else iterations * (_record(job).service_ns // _record(job).iterations)


@register_jitable
def _remaining_ns(job: Any) -> int:
    return _record(job).remaining_service_ns + _service_of(job, _misjudged_left(job))


@register_jitable
def _left(job: Any) -> int:
    return _record(job).iterations_left + _misjudged_left(job)


def _attained(job: Any) -> Any:
    record = _record(job)
    return record.service_ns - record.remaining_service_ns


def _per_gpu(job: Any) -> Any:
    remaining_ns, num_gpus = _remaining_ns(job), _record(job).num_gpus
    return remaining_ns // num_gpus, (remaining_ns % num_gpus) / (num_gpus * 1.0)


def _remaining_time(job: Any) -> Any:
    remaining_ns, record = _remaining_ns(job), _record(job)
    whole_ns = _plus(remaining_ns // record.num_gpus, _times(_left(job), record.communication_ns))
    return whole_ns, (remaining_ns % record.num_gpus) / (record.num_gpus * 1.0)


def _remaining_communication(job: Any) -> Any:
    record = _record(job)
    return _times(_times(_left(job), record.communication_ns), record.num_gpus)


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


attribute(JOB, "iterations", lambda job: _record(job).iterations + _misjudged(job))
attribute(JOB, "iterations_left", lambda job: _left(job))
attribute(JOB, "service_ns", lambda job: _record(job).service_ns + _service_of(job, _misjudged(job)))
attribute(JOB, "remaining_service_ns", lambda job: _remaining_ns(job))
attribute(JOB, "attained_service_ns", _attained)
attribute(JOB, "remaining_service_per_gpu_ns", _per_gpu)
attribute(JOB, "remaining_time_ns", _remaining_time)
attribute(JOB, "remaining_communication_ns", _remaining_communication)
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


def _bytes_sent(transfer: Any) -> Any:
    return _transfer(transfer).bytes - _bytes_left(transfer)


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
attribute(TRANSFER, "bytes_sent", _bytes_sent)
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
def _sort(numbers: Any, first: int, count: int) -> None:
    for place in range(first + 1, first + count):
        number, hole = numbers[place], place
        while hole > first and numbers[hole - 1] > number:
            numbers[hole] = numbers[hole - 1]
            hole -= 1
        numbers[hole] = number


@register_jitable
def _sorted_transfers(network: Any, first: int) -> Any:
    """Show the transfers from a place to the end of the scratch array, the smallest number first."""
    s = state_of(network)
    count = s.run[0].scratch_used - first
    _sort(s.scratch, first, count)
    return make_transfers(network, first, count)


@register_jitable
def refuse_link(s: Any, link: int) -> None:
    """Raise for what is no number of a link."""
    if link < 0 or link >= len(s.links):
        raise IndexError("there is no such link")


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
    refuse_link(s, link)
    run = s.run[0]
    run.seen += 1
    first = run.scratch_used
    _list_on_link(s, link, -1, run.seen)
    return _sorted_transfers(network, first)


@register_jitable
def _num_on(network: Any, link: int) -> int:
    s = state_of(network)
    refuse_link(s, link)
    return s.links[link].count


@register_jitable
def _sorted_copy(network: Any, numbers: Any, count: int) -> Any:
    s = state_of(network)
    first = take_scratch(s, count)
    for place in range(count):
        s.scratch[first + place] = numbers[place]
    return _sorted_transfers(network, first)


def _active(network: Any) -> Any:
    s = state_of(network)
    return _sorted_copy(network, s.active, s.run[0].num_active)


def _waiting(network: Any) -> Any:
    s = state_of(network)
    return _sorted_copy(network, s.waiting, s.run[0].num_waiting)


for _view in (NETWORK, LOADS):
    attribute(_view, "now_ns", lambda network: state_of(network).run[0].now_ns)
    attribute(_view, "now_s", lambda network: divide_wholes(state_of(network).run[0].now_ns, 1_000_000_000))
    attribute(_view, "links", lambda network: make_links(network, 0, len(state_of(network).links)))
attribute(NETWORK, "per_byte_s", lambda network: state_of(network).run[0].per_byte_s)
attribute(NETWORK, "penalty_per_byte_s", lambda network: state_of(network).run[0].penalty_per_byte_s)
attribute(NETWORK, "active", _active)
attribute(NETWORK, "waiting", _waiting)


def method(view: ViewType, name: str, function: Callable[..., Any]) -> None:
    """Let a view have a method of one argument, whose function calls them ``view`` and ``argument``."""
    _methods.setdefault(view.what, set()).add(name)
    what = view.what
    overload_method(ViewType, name)(lambda view, argument: function if view.what == what else None)  # noqa: ARG005


method(NETWORK, "met_by", lambda view, argument: _met_by(view, argument))
method(NETWORK, "most_on_links_of", lambda view, argument: most_sharing(state_of(view), _transfer(argument)))
method(NETWORK, "transfers_on", lambda view, argument: _transfers_on(view, argument))
method(NETWORK, "num_on", lambda view, argument: _num_on(view, argument))
