"""Rings whose steps wait in queues: what can be said of their rates by hand, and that no link carries too much."""

from __future__ import annotations

import random

import pytest
from experiment_scripts import scripts_of

(queued_steps,) = scripts_of("fidelity", "queued_steps")


def rates(*shape: tuple[float, tuple[int, ...]], per_byte_s: float = 1e-6) -> list[float]:
    links = sorted({link for _, used in shape for link in used})
    return queued_steps._ring_rates(shape, tuple((link, per_byte_s) for link in links))


def test_a_ring_alone_has_its_links() -> None:
    assert rates((5e4, (0, 1)), (8e4, (2, 3))) == pytest.approx([1e6, 1e6])


def test_rings_on_the_same_links_share_them_by_what_they_have_in_flight() -> None:
    assert rates((6e4, (0, 1)), (2e4, (0, 1))) == pytest.approx([0.75e6, 0.25e6])


def test_a_ring_that_waits_elsewhere_is_met_less_often_and_leaves_its_other_link_idle() -> None:
    """The second takes 2 + 8 for a step and is 4 of that in the first's queue, who meets 0.4 of its 2."""
    first, second, third = rates((2e4, (0, 1)), (2e4, (1, 2)), (8e4, (2, 3)))
    assert [first, second, third] == pytest.approx([2 / 2.8 * 1e6, 0.2e6, 0.8e6], rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_no_link_carries_more_than_it_can(seed: int) -> None:
    draw = random.Random(seed)
    shape = [(draw.uniform(1e3, 8e4), tuple(sorted(draw.sample(range(6), draw.randint(1, 4))))) for _ in range(6)]
    found = rates(*shape)
    for link in range(6):
        assert sum(rate for rate, (_, used) in zip(found, shape, strict=True) if link in used) <= 1e6 * (1 + 1e-9)
