"""The order by history: what finished jobs of the kind took, from the nearest kind that is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.ordering.history import ShortByHistory
from ddlsched import Cluster, Workload
from ddlsched.errors import InputError


def job(number: int, took_s: float | None = None, **changes):
    """Return a view as the order reads it: one that has finished if it took a time."""
    view = {"number": number, "num_gpus": 1, "model": "a", "user": None, "arrival_ns": 0, "servers": ()}
    view |= {"compute_ns": 1, "communication_ns": 0, "iterations_left": 1, "attained_service_ns": 0} | changes
    seen = SimpleNamespace(**view)
    seen.took_s = took_s
    return seen


def learned(*jobs):
    """Return an order of patience 1 that has seen the jobs wait and finish."""
    order = ShortByHistory(patience=1.0).begin(Cluster(), np.random.default_rng(0))
    for seen in jobs:
        assert order.key(seen, 0.0) == seen.arrival_ns
    for seen in jobs:
        seen.iterations_left, seen.attained_service_ns = 0, seen.took_s * 1e9 * seen.num_gpus
    return order


def test_without_history_it_is_first_come_first_served():
    assert learned().key(job(1, arrival_ns=7), 1.0) == 7


def test_a_kind_is_expected_to_take_what_it_took_with_the_wider_kind_as_one_job_more():
    order = learned(job(1, 2.0), job(2, 4.0), job(3, 12.0, model="b"))
    wide = (2 + 4 + 12) / 3
    for_gpus = (wide + 18) / 4
    for_model = (for_gpus + 6) / 3
    assert order.key(job(4), 1.0) == pytest.approx(1e9 * (for_model + 6) / 3)
    assert order.key(job(5, model="b"), 1.0) == pytest.approx(1e9 * ((for_gpus + 12) / 2 + 12) / 2)
    assert order.key(job(6, model="c"), 1.0) == pytest.approx(1e9 * for_gpus)
    assert order.key(job(7, num_gpus=2), 1.0) == pytest.approx(1e9 * wide)


def test_all_reduces_count():
    order = learned(job(1, 2.0, compute_ns=10, communication_ns=5))
    assert order.key(job(2), 1.0) == pytest.approx(3e9)


def test_a_job_that_has_not_finished_tells_nothing():
    order = ShortByHistory().begin(Cluster(), np.random.default_rng(0))
    order.key(job(1, attained_service_ns=10**12), 0.0)
    assert order.key(job(2, arrival_ns=3), 1.0) == 3


@pytest.mark.long
def test_a_kind_that_was_short_overtakes_one_that_was_long():
    kinds = {"long": 40, "short": 2}
    jobs = [data_parallel_job(f"{kind} 0", 1, iterations=n, forward_s=0.1, model=kind) for kind, n in kinds.items()]
    jobs += [
        data_parallel_job(f"{kind} {n}", 1, iterations=count, forward_s=0.1, model=kind, arrival_s=0.1)
        for n in (1, 2)
        for kind, count in kinds.items()
    ]
    cluster = Cluster(num_servers=1, gpus_per_server=1, exclusive=True)
    runs = {
        order: ddlsched.simulate(
            Workload.of(jobs), cluster, placement="first-fit", order=ShortByHistory(patience=order)
        ).jobs.set_index("job_id")["start_s"]
        for order in (0.0, 10.0)
    }
    assert runs[0.0]["long 1"] < runs[0.0]["short 2"]
    assert runs[10.0]["long 1"] > runs[10.0]["short 2"]


def test_less_than_no_patience_is_refused():
    with pytest.raises(InputError, match="patience is -1"):
        ShortByHistory(patience=-1)
