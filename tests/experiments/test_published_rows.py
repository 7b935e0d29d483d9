"""The experiment's tables: sizes that were published, and bytes at the lower bound."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.checkpoints.change_cost import link_bytes
from ddlsched.checkpoints.plan import ReshardPlan
from ddlsched.network.contention import MaxMin
from ddlsched.network.rates import rates_of
from ddlsched.network.topology import Link, Topology

FOLDER = EXPERIMENTS / "reconfiguration"
published, schemes = scripts_of("reconfiguration", "published", "schemes")


def expected(name: str) -> list[dict[str, str]]:
    with (FOLDER / "expected" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class _Flow:
    servers: tuple[int, ...]
    links: tuple[int, ...]


def fair_sharing_s(change: ReshardPlan, topology: Topology) -> float:
    """Return the seconds until all hosts have all, if all pairs transfer at once and cables are shared fairly.

    Progressive filling, by the simulator's own contention model, anew whenever a transfer ends.
    """
    loads, graph = link_bytes(change, topology)
    numbers = {cable: number for number, cable in enumerate(loads)}
    rates = [graph.edges[cable]["bandwidth_bytes_per_s"] for cable in loads]
    links = [
        Link(name=str(n), bandwidth_bytes_per_s=rate, relative_bandwidth=rate / max(rates))
        for n, rate in enumerate(rates)
    ]
    model: Any = MaxMin(per_byte_s=1 / max(rates)) if rates else None
    flows = []
    for (source, target), count in change.bytes_between_hosts.items():
        route = topology.route(graph, source, target)
        flows.append((_Flow((source, target), tuple(numbers[cable] for cable in pairwise(route))), count))
    left = np.array([count for _, count in flows], dtype=float)
    now_s = 0.0
    active = np.flatnonzero(left > 0)
    while len(active):
        speeds = np.array(rates_of(model, [flows[number][0] for number in active], (), links))
        step_s = (left[active] / speeds).min()
        left[active] -= speeds * step_s
        now_s += step_s
        active = active[left[active] > 1.0]
    return float(now_s)


@pytest.mark.long
def test_checkpoints_have_the_published_sizes() -> None:
    for row in expected("sizes"):
        job = schemes.collection(published.tensors_of(row["model"]), published.FROM, published.GPUS_PER_HOST)
        ours_gb = sum(schemes.stored_bytes(job)) / 1e9
        assert ours_gb == pytest.approx(float(row["ours_gb"]), rel=1e-5)
        assert ours_gb == pytest.approx(published.MODELS[row["model"]][1], rel=0.003)


@pytest.mark.long
def test_the_table_of_bytes_is_what_the_plans_move() -> None:
    from ddlsched.checkpoints.change_cost import Site
    from topologies.star import Star

    site = Site(topology=Star(nic_gbps=100.0), host_bytes_per_s=20e9)
    change = published.RESIZES[2]
    old, new = (
        schemes.collection(published.tensors_of("XL"), to, published.GPUS_PER_HOST)
        for to in (published.FROM, change.to)
    )
    rows = [row for row in expected("published") if (row["model"], row["change"]) == ("XL", "PP")]
    for found, row in zip(schemes.moved(old, new, site), rows, strict=True):
        assert found.scheme == row["scheme"]
        assert found.network_bytes / 1e9 == pytest.approx(float(row["network_gb"]), rel=1e-5)
        assert found.transfer_s == pytest.approx(float(row["transfer_s"]), rel=1e-5)
        if found.scheme != "published":
            assert found.network_bytes == found.lower_bound_bytes


def test_sharing_cables_fairly_is_no_faster_than_the_busiest_cable() -> None:
    from ddlsched.checkpoints.change_cost import Site, reconfiguration_s
    from ddlsched.checkpoints.collection import StoredParallelism
    from ddlsched.checkpoints.plan import plan
    from ddlsched.checkpoints.tensor_models import StoredTransformer, job_tensors
    from topologies.star import Star

    tensors = job_tensors(StoredTransformer(num_layers=4, hidden=64, heads=4, vocabulary=256), dtype="F32")
    topology = Star(nic_gbps=1.0)
    for to in (StoredParallelism(tp=4, dp=2), StoredParallelism(dp=5), StoredParallelism(pp=4)):
        old, new = schemes.collection(tensors, StoredParallelism(tp=2), 1), schemes.collection(tensors, to, 1)
        change = plan(old, new)
        busiest_s = reconfiguration_s(change, Site(topology=topology, host_bytes_per_s=1e12)).network_s
        assert busiest_s * (1 - 1e-4) <= fair_sharing_s(change, topology) <= 2 * busiest_s
