"""What policies see of a job is declared once; views are read and not changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tiers import tried

import ddlsched
from ddlsched.engine.compiled_forms import compile_method
from ddlsched.policies.job_view import JobView
from ddlsched.policies.promises import PROGRESS
from ddlsched.policies.view_parts import fields_of, text_code
from ddlsched.testing import (
    cluster_view,
    flow_view,
    job_view,
    link_loads,
    network_view,
    python_form,
    transfer_view,
)

JOB = job_view(servers=(0, 1), gpus=(0, 4))


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (JOB, "num_gpus"),
        (JOB, "number"),
        (JOB, "remaining_service_ns"),
        (JOB, "mine"),
        (transfer_view(JOB), "bytes_left"),
        (transfer_view(JOB), "links"),
        (network_view(), "now_ns"),
        (network_view(), "active"),
        (cluster_view(), "network"),
        (flow_view(JOB, [(0, 1)]), "route"),
        (link_loads(), "links"),
    ],
)
def test_item_17_no_attribute_of_a_view_can_be_set(view: Any, name: str) -> None:
    before = getattr(view, name, None)
    with pytest.raises(AttributeError, match=f"^{name} of .* cannot be set: policies read views, and answer$"):
        setattr(view, name, 1)
    assert getattr(view, name, None) is before or getattr(view, name) == before


def test_of_transfers_those_count_that_run_on_a_link() -> None:
    """Transfers 1, 2 and 3 run on links 0 and 1, 1 and 2, and 1; link 3 is idle, and what crosses none meets none."""
    running = [
        transfer_view(job_view(number=number, servers=links), links=links)
        for number, links in ((3, (1,)), (1, (0, 1)), (2, (1, 2)))
    ]
    network = network_view(active=running, num_links=4)
    assert [network.num_on(link) for link in range(4)] == [1, 3, 1, 0]
    assert [[each.job.number for each in network.transfers_on(link)] for link in range(4)] == [[1], [1, 2, 3], [2], []]
    for links, most, met in (((), 0, []), ((3,), 0, []), ((0, 3), 1, [1]), ((0, 2), 1, [1, 2]), ((2, 1), 3, [1, 2, 3])):
        asked = transfer_view(job_view(number=9, servers=(0, 1)), links=links)
        assert network.most_on_links_of(asked) == most
        assert [each.job.number for each in network.met_by(asked)] == met


@dataclass(frozen=True, kw_only=True)
class ByUser:
    who: str = "ann"

    def key(self, job: JobView, now_s: float) -> tuple[int, float | None]:
        if job.user is None:
            return 3, 0.0
        if job.user == self.who or job.model in (None, "vgg"):
            return 1, 0.0
        return 2, (job.time_limit_s if job.time_limit_s is not None else 7.5)


@dataclass(frozen=True, kw_only=True)
class ByLimit:
    def key(self, job: JobView, now_s: float) -> float:
        limit_s = job.time_limit_s
        if limit_s is None:
            return 1e9
        return limit_s * (2.0 if job.model in ("bert", "vgg") else 1.0)


@pytest.mark.long
@pytest.mark.parametrize("order", tried([ByUser(), ByUser(who="bob"), ByLimit()], lambda place: place > 0))
def test_compiled_orders_see_texts_and_what_may_be_none(order: Any) -> None:
    iteration = ddlsched.DataParallelIteration(forward_s=0.1, backward_s=0.1, message_bytes=1e6)
    jobs = [
        ddlsched.Job(
            job_id=str(number),
            arrival_s=0.001 * number,
            num_gpus=4,
            iterations=10 + number,
            iteration=iteration,
            gpu_memory_mb=30000,
            model=[None, "bert", "vgg"][number % 3],
            user=[None, "ann", "bob", "carl"][number % 4],
            time_limit_s=[None, 50.0 + number % 5][number % 2],
        )
        for number in range(24)
    ]
    compile_method(order, "key")
    cluster = ddlsched.Cluster(num_servers=2, gpus_per_server=2)
    compiled, plain, fifo = (
        ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, order=form).finished.state.jobs.finish_ns.tolist()
        for form in (order, python_form(order), "fifo")
    )
    assert compiled == plain
    assert compiled != fifo


def test_the_code_of_a_text_is_the_same_in_every_process() -> None:
    assert text_code(None) == 0
    assert text_code("bert") == -2405276065389490926
    assert len({text_code(f"user-{n}") for n in range(10_000)}) == 10_000


def test_what_changes_as_a_job_trains_follows_from_what_is_made_of_what() -> None:
    assert {name for name, field in fields_of(JobView).items() if field.changes} == {"_left", "_remaining_ns"}
    assert {"iterations_left", "remaining_time_ns", "attained_service_ns"} < PROGRESS
    assert not PROGRESS & {"iterations", "service_ns", "num_gpus", "start_s", "gpus"}


def test_an_all_reduce_takes_time_between_two_servers_and_none_within_one() -> None:
    cluster = cluster_view()
    assert cluster.all_reduce_s(1e9, 1) == 0.0
    assert cluster.all_reduce_s(1e9, 2) == pytest.approx(0.8)  # 1e9 B over each card of 10 Gbit/s
