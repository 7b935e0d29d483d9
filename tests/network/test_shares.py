"""Shares that see the job and its bytes: what transfers get on one link, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import ddlsched
from ddlsched.errors import InputError, PluginError
from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import message_parts
from ddlsched.network.weighted_shares import Mltcp, SizeShares, StrictLevels
from ddlsched.results.slices import transfer_slices
from ddlsched.testing import job_view, transfer_view


def job(job_id: str, arrival_s: float = 0.0, *, gpus: int = 2, iterations: int = 1, **given: Any) -> ddlsched.Job:
    """Return a job that computes for a second, then sends 1e9 bytes: a second at the 1e9 bytes/s of the runs here."""
    iteration = ddlsched.DataParallelIteration(
        **{"forward_s": 0.5, "backward_s": 0.5, "message_bytes": 1e9 * gpus / (2 * (gpus - 1))} | given
    )
    return ddlsched.Job(
        job_id=job_id, arrival_s=arrival_s, num_gpus=gpus, iterations=iterations, iteration=iteration, gpu_memory_mb=1
    )


def run(contention: Any, *jobs: ddlsched.Job, **given: Any) -> ddlsched.Result:
    """Run jobs on GPUs of their own that share the card of server 0."""
    cards = [ddlsched.Server(gpus=len(jobs), gpu_memory_mb=1.0)] + [ddlsched.Server(gpus=1, gpu_memory_mb=1.0)] * sum(
        each.num_gpus - 1 for each in jobs
    )
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(servers=tuple(cards)),
        placement=OnServer0(),
        order="fifo",
        communication="bounded-overlap:limit=1000",
        contention=contention,
        **given,
    )


@dataclass(frozen=True, kw_only=True)
class OnServer0:
    """One GPU of server 0, and free ones of the others."""

    def place(self, job: Any, cluster: Any) -> Any:
        free = [gpu for gpu in cluster.eligible_gpus(job) if not cluster.num_residents(gpu)]
        on_0 = [gpu for gpu in free if cluster.server_of(gpu) == 0]
        return [on_0[0], *[gpu for gpu in free if cluster.server_of(gpu) > 0][: job.num_gpus - 1]]


def test_mltcp_by_hand() -> None:
    """F = 1 + 3 x share sent, asked at the half too. Job a sends from 1.0 s, job b from 1.25 s.

    Then a has F = 1.75 and b 1, so a sends 7/11 of the card: its half after 0.25 x 11/7 s, when b has sent 1/7. Now
    F is 2.5 and 1 + 3/7: a sends 7/11 again, and its other half takes 0.5 x 11/7 s. When it ends, b has sent 1/7 +
    2/7; it has the card for itself, and ends when both messages are through, at 3 s.
    """
    model = Mltcp(per_byte_s=1e-9, slope=3.0, intercept=1.0, message_parts=2)
    result = run(model, job("a"), job("b", 0.25), timeline=True)
    assert result.jobs["finish_s"].tolist() == pytest.approx([1.25 + 0.75 * 11 / 7, 3.0])
    rates = {(row.job_id, row.rate_bytes_per_s) for row in transfer_slices(result).itertuples()}
    expected = [("a", 1e9), ("a", 7e9 / 11), ("b", 4e9 / 11), ("b", 1e9)]
    assert {(job_id, round(rate, -3)) for job_id, rate in rates} == {(name, round(rate, -3)) for name, rate in expected}
    assert result.links["bytes"][0] == pytest.approx(2e9)


def test_mltcp_without_parts_asks_only_when_transfers_change() -> None:
    """At 1.4 s a has sent 0.4 and keeps F = 1.4 of 2.4: it ends 0.6 / (1.4 / 2.4) later."""
    model = Mltcp(per_byte_s=1e-9, slope=1.0, intercept=1.0, message_parts=1)
    result = run(model, job("a"), job("b", 0.4))
    assert result.jobs["finish_s"].tolist() == pytest.approx([1.4 + 0.6 * 2.4 / 1.4, 3.0])


@pytest.mark.parametrize("late_s", [0.05, 0.2, 0.5])
def test_mltcp_pushes_jobs_apart_by_the_law(late_s: float) -> None:
    """Two equal jobs that start to send d apart end S d (aT - d) / (aT I + d S) further apart than d."""
    model = Mltcp(per_byte_s=1e-9, slope=1.75, intercept=0.25, message_parts=1000)
    a, b = run(model, job("a"), job("b", late_s)).jobs["finish_s"]
    further_s = 1.75 * late_s * (1.0 - late_s) / (0.25 + late_s * 1.75)
    assert b - a - late_s == pytest.approx(further_s, rel=0.02)


def test_mltcp_jobs_come_to_take_turns() -> None:
    """Both compute for a second and send for one: apart by d at first, they end up not meeting at all."""
    jobs = job("a", iterations=30), job("b", 0.1, iterations=30)
    fair, mltcp = (run(model, *jobs).jobs["jct_s"].sum() for model in (MaxMin(per_byte_s=1e-9), Mltcp(per_byte_s=1e-9)))
    assert fair > 2 * 30 * 2.8
    assert mltcp < 2 * 30 * 2.1


@pytest.mark.long
def test_a_level_goes_strictly_first() -> None:
    """The job of 2 GPUs comes later and takes the link; that of 4 keeps what it had sent, stands still, and goes on."""
    model = StrictLevels(per_byte_s=1e-9, by="gpus", first=3.0)
    result = run(model, job("wide", gpus=4), job("narrow", 0.25), timeline=True)
    assert result.jobs["finish_s"].tolist() == pytest.approx([3.0, 2.25])
    slices = transfer_slices(result)
    assert slices[slices["start_ns"] == 1_250_000_000].set_index("job_id")["rate_bytes_per_s"].to_dict() == {
        "wide": 0.0,
        "narrow": pytest.approx(1e9),
    }


@pytest.mark.long
def test_levels_by_bytes_sent_are_asked_at_the_parts() -> None:
    """A transfer that has sent half of its bytes steps back: from 1.5 s job b, which came at 1.5 s, goes first.

    At 2.0 s b has sent half, too, and both share until a has sent the rest, at 3.0 s, as has b.
    """
    model = StrictLevels(per_byte_s=1e-9, by="bytes-sent", first=0.5e9, levels=2, message_parts=2)
    result = run(model, job("a"), job("b", 0.5))
    assert result.jobs["finish_s"].tolist() == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    ("by", "first", "level"),
    [
        ("gpus", 2.0, 2),
        ("remaining-service", 9.0, 2),
        ("attained-service", 9.0, 1),
        ("bytes-left", 1e6, 5),
        ("bytes-sent", 1e9, 0),
        ("compute-share", 1.0, 0),
    ],
)
def test_the_level_of_each_rule(by: str, first: float, level: int) -> None:
    """A job of 4 GPUs with 60 of 100 iterations of 0.1 s left (24 of 40 GPU-seconds), and 20 of 100 MB."""
    view = transfer_view(job_view(num_gpus=4, iterations_left=60, servers=(0, 1)), bytes_left=20e6, message_bytes=100e6)
    assert StrictLevels(by=by, first=first, factor=2.0).level(view) == level


@pytest.mark.parametrize(("iterations_left", "level"), [(14, 0), (15, 1), (149, 1), (150, 2)])
def test_the_first_level_ends_at_a_gpu_minute_and_each_further_one_is_ten_times_as_wide(
    iterations_left: int, level: int
) -> None:
    """Of a job of 4 GPUs and iterations of 1 s."""
    left = job_view(num_gpus=4, iterations=200, iterations_left=iterations_left, compute_s=1.0, servers=(0, 1))
    assert StrictLevels().level(transfer_view(left, message_bytes=1.0)) == level


def test_the_weight_of_mltcp() -> None:
    job = job_view(num_gpus=2, servers=(0, 1))
    weights = [Mltcp().weight(transfer_view(job, bytes_left=left, message_bytes=100.0)) for left in (100.0, 50.0, 0.0)]
    assert weights == pytest.approx([0.25, 1.125, 2.0])
    assert Mltcp().weight(transfer_view(job, bytes_left=0.0, message_bytes=0.0)) == 0.25


def test_a_small_message_gets_less_of_a_link_than_a_large_one() -> None:
    # On one link of 1e9 B/s a message of 4e8 bytes gets 2/3 beside one of 1e8: 1e8 take 0.3 s, then 2e8 are left.
    model = SizeShares(per_byte_s=1e-9, exponent=0.5)
    assert run(model, job("a", message_bytes=4e8), job("b", message_bytes=1e8)).jobs["jct_s"].tolist() == pytest.approx(
        [1.5, 1.3]
    )
    even = SizeShares(per_byte_s=1e-9, exponent=0.0)
    assert run(even, job("a", message_bytes=4e8), job("b", message_bytes=1e8)).jobs["jct_s"].tolist() == pytest.approx(
        [1.5, 1.2]
    )


def test_chunks_after_the_first_cost_time_and_bound_what_is_in_flight() -> None:
    model = SizeShares(per_byte_s=1e-9, exponent=0.5, chunk_bytes=4e6, chunk_s=0.01)
    assert model.wire_bytes(10e6, 2) == pytest.approx(10e6 + 2 * 0.01 * 1e9)
    assert model.wire_bytes(4e6, 4) == pytest.approx(6e6)
    assert not model.conserves_bytes
    for servers in (2, 4):  # 2 (n - 1) steps of a chunk's n-th part each, however long the message
        job_of = job_view(num_gpus=servers, servers=tuple(range(servers)))
        view = transfer_view(job_of, bytes_left=1e8, message_bytes=model.wire_bytes(1e8, servers))
        assert model.weight(view) == pytest.approx((4 / servers) ** 0.5)
        small = transfer_view(job_of, bytes_left=1e6, message_bytes=model.wire_bytes(1e6, servers))
        assert model.weight(small) == pytest.approx((1 / servers) ** 0.5)
    assert SizeShares(exponent=0.5).conserves_bytes
    assert model.step_bytes(transfer_view(job_view(num_gpus=2, servers=(0, 1)), message_bytes=0.5)) == 1.0


def test_no_more_of_a_step_counts_than_the_window_holds() -> None:
    model = SizeShares(per_byte_s=1e-9, exponent=1.0, window_bytes=3e5)
    for servers, message_bytes, weight in ((2, 2e5, 0.1), (2, 8e5, 0.3), (4, 8e5, 0.2), (4, 8e6, 0.3)):
        job_of = job_view(num_gpus=servers, servers=tuple(range(servers)))
        view = transfer_view(job_of, message_bytes=model.wire_bytes(message_bytes, servers))
        assert model.weight(view) == pytest.approx(weight)
    # Both steps are above the window: the link is shared evenly, as by max-min.
    jobs = job("a", message_bytes=4e8), job("b", message_bytes=1e8)
    assert run(model, *jobs).jobs["jct_s"].tolist() == pytest.approx([1.5, 1.2])


def test_steps_cost_time_that_grows_beside_others() -> None:
    """A ring of two has 2 steps of 0.1 s: 1e8 bytes take 0.3 s alone, and twice that beside an equal one."""
    model = SizeShares(per_byte_s=1e-9, exponent=1.0, step_s=0.1)
    assert model.wire_bytes(1e8, 4) == pytest.approx(1.5e8 + 6 * 0.1 * 1e9)
    assert not model.conserves_bytes
    one, other = job("a", message_bytes=1e8), job("b", message_bytes=1e8)
    assert run(model, one).jobs["jct_s"].tolist() == pytest.approx([1.3])
    assert run(model, one, other).jobs["jct_s"].tolist() == pytest.approx([1.6, 1.6])
    view = transfer_view(job_view(num_gpus=2, servers=(0, 1)), message_bytes=model.wire_bytes(1e8, 2))
    assert model.weight(view) == pytest.approx(50.0)  # MB of a step, without its cost


def test_a_larger_exponent_never_gives_a_small_message_more() -> None:
    jobs = job("a", message_bytes=4e8), job("b", message_bytes=1e8)
    ends_s = [
        run(SizeShares(per_byte_s=1e-9, exponent=exponent), *jobs).jobs["jct_s"].tolist()[1]
        for exponent in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert ends_s == sorted(ends_s)
    assert ends_s[-1] == pytest.approx(1.5)  # in proportion to the messages, both end at once


@dataclass(frozen=True, kw_only=True)
class Weightless(MaxMin):
    """A weight of 0 once half of the message is sent."""

    message_parts: int = 2

    def weight(self, transfer: Any) -> float:
        return transfer.bytes_left // (0.6 * transfer.message_bytes)


@pytest.mark.long
def test_a_weight_of_0_is_refused_with_model_job_and_time() -> None:
    with pytest.raises(PluginError) as refused:
        run(Weightless(per_byte_s=1e-9), job("a"), job("b", 0.4))
    said = str(refused.value)
    assert "contention Weightless(" in said
    assert "at 1.6 s, job 'a': weight answered 0.0; expected a finite number > 0" in said


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Mltcp(intercept=0.0), "intercept is 0.0; expected a number > 0"),
        (lambda: Mltcp(slope=-1.0), "slope is -1.0"),
        (lambda: Mltcp(message_parts=0), "message_parts is 0; expected a whole number from 1 to 1000"),
        (lambda: SizeShares(exponent=2.5), "exponent is 2.5; expected a number from 0 to 1"),
        (lambda: SizeShares(chunk_bytes=0.0), "chunk_bytes is 0.0; expected a number > 0 (inf for whole messages)"),
        (lambda: SizeShares(chunk_s=1.0), "chunk_s is 1.0, chunk_bytes inf; expected both"),
        (lambda: SizeShares(chunk_s=-1.0), "chunk_s is -1.0; expected seconds from 0 to 1e6"),
        (lambda: SizeShares(step_s=-1.0), "step_s is -1.0; expected seconds from 0 to 1e6"),
        (lambda: SizeShares(window_bytes=0.0), "window_bytes is 0.0; expected a number > 0 (inf for whole steps)"),
        (lambda: StrictLevels(by="size"), "by is 'size'; expected one of gpus, compute-share"),
        (lambda: StrictLevels(factor=1.0), "factor is 1.0; expected a number > 1"),
        (lambda: StrictLevels(levels=9), "levels is 9; expected a whole number from 1 to 8"),
        (lambda: message_parts(Weightless(message_parts=-1)), "Weightless: message_parts is -1"),
    ],
)
def test_bad_parameters_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        make()
    assert said in str(refused.value)
