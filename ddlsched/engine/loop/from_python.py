"""What Python calls of functions that compiled code calls too.

They are compiled here once more, for Python alone: so the loop, which nearly every run needs, is compiled without what
only a call from Python needs.
"""

from __future__ import annotations

from ddlsched.engine.loop import admission, advance, failures, order, rates, rivals, samples, transfers
from ddlsched.engine.loop.skipping import dormancy
from ddlsched.engine.native.jit import called_from_python


@called_from_python
def gather_transfers(s):
    return admission.gather_transfers(s)


@called_from_python
def start_transfer(s, number):
    transfers.start_transfer(s, number)


@called_from_python
def pause_transfer(s, number):
    transfers.pause_transfer(s, number)


@called_from_python
def gather_rivals(s):
    return rivals.gather_rivals(s)


@called_from_python
def rank_rivals(s):
    rivals.rank_rivals(s)


@called_from_python
def sort_queue(s):
    order.sort_queue(s)


@called_from_python
def list_component(s):
    return rates.list_component(s)


@called_from_python
def change_share(s, number, weight, level):
    rates.change_share(s, number, weight, level)


@called_from_python
def rerate_max_min(s):
    rates.rerate_max_min(s)


@called_from_python
def take_sample(s, time_ns):
    samples.take_sample(s, time_ns)


@called_from_python
def take_samples(s, until_ns):
    samples.take_samples(s, until_ns)


@called_from_python
def stop_job(s, number, checkpoint_iterations):
    failures.stop_job(s, number, checkpoint_iterations)


@called_from_python
def wake(s, number):
    dormancy.wake(s, number)


@called_from_python
def most_slices(run):
    return advance.most_slices(run)
