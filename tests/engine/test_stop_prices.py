"""One list of prices for all who stop jobs, scaled as the jobs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from jobs_by_hand import data_parallel_job

from algorithms.placement.first_fit import FirstFit
from ddlsched import Cluster, Disturbances, Workload
from ddlsched.engine.stop_prices import StopPrices
from ddlsched.errors import InputError
from ddlsched.network.topology import Network
from ddlsched.plugins.names import resolve
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve

CLUSTER = Cluster(num_servers=2, gpus_per_server=2, exclusive=True)
NETWORK = Network(resolve("topology", "star"), 2)
"""Beside the restart: 2 GPUs of 2,500 MB take 4 s over a card of 10 Gbit/s."""


@dataclass(frozen=True, kw_only=True)
class MovesOnce:
    """First fit; job "a" goes from server 0 to server 1 when its first iteration ends."""

    def place(self, job: Any, cluster: Any) -> Any:
        return FirstFit().place(job, cluster)

    def wake_s(self, now_s: float) -> float | None:
        return 0.5

    def moves(self, running: Any, cluster: Any) -> Any:
        return [(job, (2, 3)) for job in running if cluster.now_s == 0.5]


def price_of_a_move_s(iterations: int, disturbances: Disturbances) -> float:
    """Return by how much later a job of iterations of 1 s ends than it would."""
    job = data_parallel_job("a", 2, forward_s=1.0, iterations=iterations, memory_mb=2500)
    moved = simulate(Workload((job,)), CLUSTER, placement=MovesOnce(), contention="max-min", disturbances=disturbances)
    return float(moved.jobs["jct_s"].item()) - iterations


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_item_6_a_move_costs_a_scaled_job_the_same_share_of_its_service(scale: float) -> None:
    prices = StopPrices(restart_s=30.0, scale=scale)
    assert price_of_a_move_s(round(1000 * scale), prices.disturbances()) == pytest.approx((30 + 4) * scale)


def test_item_6_with_its_whole_memory_a_scaled_job_pays_fifty_times_as_much_for_its_state() -> None:
    assert price_of_a_move_s(20, Disturbances(restart_s=30 * 0.02)) == pytest.approx(0.6 + 4)


@pytest.mark.parametrize(("state_mb", "state_s"), [(None, 4.0), (0.0, 0.0), (1250.0, 2.0)])
def test_item_6_allocations_pay_what_orders_and_placements_pay(state_mb: float | None, state_s: float) -> None:
    prices = StopPrices(restart_s=30.0, state_mb=state_mb, scale=0.1)
    elastic = ElasticJob(
        job_id="a",
        arrival_s=0.0,
        samples=200,
        curve=LinearCurve(fixed_s=1.0, sample_s=0.0),
        gpu_batch=1,
        min_gpus=2,
        max_gpus=2,
        gpu_memory_mb=2500,
    )
    cost = prices.rescale_cost(elastic, NETWORK, 2)
    assert cost.up_s == cost.down_s == cost.resume_s == cost.batch_s == pytest.approx((30 + state_s) / 10)
    assert cost.start_s == 0.0
    assert price_of_a_move_s(100, prices.disturbances()) == pytest.approx(cost.resume_s)


def test_thresholds_scale_with_the_prices() -> None:
    assert StopPrices(scale=0.02).scaled(100.0) == 2.0


def test_a_state_is_said_once() -> None:
    with pytest.raises(InputError, match="both state_mb and state_share are given; expected one of them"):
        Disturbances(state_mb=5.0, state_share=0.5)


@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_a_scale_is_a_part(scale: float) -> None:
    with pytest.raises(InputError, match=r"stop prices: scale is .*; expected a number > 0 to 1"):
        StopPrices(scale=scale)
