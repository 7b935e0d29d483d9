"""Shares of connections by hand: one a job, by what it has in flight, of links that carry less for several."""

from __future__ import annotations

import pytest

from ddlsched.errors import InputError
from ddlsched.network.rates import contention_form, rates_of
from ddlsched.network.topology import Link
from ddlsched.network.weighted_shares import ConnectionShares
from ddlsched.policies.views import TransferView
from ddlsched.testing import job_view, transfer_view

LINKS = [Link(name=f"card {number}", bandwidth_bytes_per_s=1e9, relative_bandwidth=1.0) for number in range(4)]


def transfer(job: int, servers: tuple[int, ...], megabytes: float) -> TransferView:
    """Return a transfer of a ring's step of so many MB."""
    view = job_view(number=job, num_gpus=len(servers), servers=servers)
    return transfer_view(view, message_bytes=megabytes * 1e6 * 2 * (len(servers) - 1))


def rates(model: ConnectionShares, *active: TransferView) -> list[float]:
    return [rate / 1e9 for rate in rates_of(model, active, [], LINKS)]


EVEN = ConnectionShares(per_byte_s=1e-9, exponent=0.0)


def test_the_transfers_of_a_job_have_one_share_between_them() -> None:
    """Three buckets of one job beside one message of another: half of the card each job, by bytes among the buckets."""
    buckets = [transfer(0, (0, 1), megabytes) for megabytes in (1.0, 1.0, 2.0)]
    assert rates(EVEN, *buckets, transfer(1, (0, 2), 1.0)) == pytest.approx([0.125, 0.125, 0.25, 0.5])
    assert rates(EVEN, *buckets) == pytest.approx([0.25, 0.25, 0.5])


def test_what_a_connection_has_in_flight_counts_up_to_the_window() -> None:
    """Buckets of 4 MB together, of which the window holds 2, beside a step of 1 MB: two thirds of the card."""
    model = ConnectionShares(per_byte_s=1e-9, exponent=1.0, window_bytes=2e6)
    buckets = [transfer(0, (0, 1), megabytes) for megabytes in (1.0, 3.0)]
    assert rates(model, *buckets, transfer(1, (0, 2), 1.0)) == pytest.approx([1 / 6, 1 / 2, 1 / 3])


def test_a_link_that_several_jobs_cross_carries_less() -> None:
    """Cards 0 carries 1 / 1.1 for two jobs and 1 / 1.2 for three; buckets of one job are one."""
    model = ConnectionShares(per_byte_s=1e-9, exponent=0.0, loss=0.1)
    one, other, third = transfer(0, (0, 1), 1.0), transfer(1, (0, 2), 1.0), transfer(2, (0, 3), 1.0)
    assert rates(model, one, transfer(0, (0, 1), 1.0)) == pytest.approx([0.5, 0.5])
    assert rates(model, one, other) == pytest.approx([0.5 / 1.1] * 2)
    assert rates(model, one, other, third) == pytest.approx([1 / 3.6] * 3)


def test_a_ring_alone_is_held_up_by_its_servers_and_others_fill_the_gaps() -> None:
    """Rings of 2 and 3 servers have 1 / 1.1 and 1 / 1.2 of their cards alone; two that share one have all of it."""
    model = ConnectionShares(per_byte_s=1e-9, exponent=0.0, wait=0.1)
    pair, three = transfer(0, (0, 1), 1.0), transfer(1, (1, 2, 3), 1.0)
    assert rates(model, pair) == pytest.approx([1 / 1.1])
    assert rates(model, three) == pytest.approx([1 / 1.2])
    assert rates(model, pair, three) == pytest.approx([0.5, 0.5])
    assert rates(model, pair, transfer(0, (0, 1), 3.0)) == pytest.approx([0.25 / 1.1, 0.75 / 1.1])


def test_rings_of_one_job_on_links_of_their_own_do_not_bound_each_other() -> None:
    """As of groups of workers: cards 0 and 1, and 2 and 3."""
    rings = transfer(0, (0, 1), 1.0), transfer(0, (2, 3), 1.0)
    assert rates(EVEN, *rings) == pytest.approx([1.0, 1.0])
    assert rates(ConnectionShares(per_byte_s=1e-9, exponent=0.0, wait=0.1), *rings) == pytest.approx([1 / 1.1] * 2)


def test_what_a_ring_cannot_use_goes_to_the_others() -> None:
    """Two jobs hold job 0 to a third on card 1; on card 0 the other job gets the rest."""
    active = [transfer(0, (0, 1), 1.0), transfer(1, (1, 2), 1.0), transfer(2, (1, 3), 1.0), transfer(3, (0, 2), 1.0)]
    assert rates(EVEN, *active) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])


def test_it_is_asked_for_all_rates() -> None:
    assert contention_form(EVEN) == "rates"  # its weight alone would not know a job's other transfers


@pytest.mark.parametrize("name", ["loss", "wait"])
def test_a_bad_share_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"ConnectionShares: {name} is -0\.1; expected a number from 0 to 1"):
        ConnectionShares(**{name: -0.1})
