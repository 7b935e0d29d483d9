"""What Python calls of functions that compiled code calls too.

They are compiled here once more, for Python alone: so the loop, which nearly every run needs, is compiled without what
only a call from Python needs.
"""

from __future__ import annotations

from ddlsched.engine.loop import admission, advance, failures, order, rates, rivals, samples, transfers
from ddlsched.engine.loop.skipping import dormancy
from ddlsched.engine.native.jit import NUMBER, REAL, STATE, called_from_python
from ddlsched.engine.records.layout import State


@called_from_python(STATE)
def gather_transfers(s: State) -> int:
    return admission.gather_transfers(s)


@called_from_python(STATE, NUMBER)
def start_transfer(s: State, number: int) -> None:
    transfers.start_transfer(s, number)


@called_from_python(STATE, NUMBER)
def pause_transfer(s: State, number: int) -> None:
    transfers.pause_transfer(s, number)


@called_from_python(STATE)
def gather_rivals(s: State) -> int:
    return rivals.gather_rivals(s)


@called_from_python(STATE)
def rank_rivals(s: State) -> None:
    rivals.rank_rivals(s)


@called_from_python(STATE)
def sort_queue(s: State) -> None:
    order.sort_queue(s)


@called_from_python(STATE)
def list_component(s: State) -> int:
    return rates.list_component(s)


@called_from_python(STATE, NUMBER, REAL, NUMBER)
def change_share(s: State, number: int, weight: float, level: int) -> None:
    rates.change_share(s, number, weight, level)


@called_from_python(STATE)
def rerate_max_min(s: State) -> None:
    rates.rerate_max_min(s)


@called_from_python(STATE, NUMBER)
def take_sample(s: State, time_ns: int) -> None:
    samples.take_sample(s, time_ns)


@called_from_python(STATE, NUMBER)
def take_samples(s: State, until_ns: int) -> None:
    samples.take_samples(s, until_ns)


@called_from_python(STATE, NUMBER, NUMBER)
def stop_job(s: State, number: int, checkpoint_iterations: int) -> None:
    failures.stop_job(s, number, checkpoint_iterations)


@called_from_python(STATE, NUMBER)
def wake(s: State, number: int) -> None:
    dormancy.wake(s, number)


@called_from_python(STATE)
def most_slices(s: State) -> int:
    return advance.most_slices(s.run[0])
